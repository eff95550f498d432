package main

import "testing"

func TestMemoryIsCountedWhereTheKernelCountsIt(t *testing.T) {
	first := cgroup{dir: "/sys/fs/cgroup/memory/a/b", usage: "memory.usage_in_bytes", inactive: "total_inactive_file"}
	second := cgroup{dir: "/sys/fs/cgroup/a/b", usage: "memory.current", inactive: "inactive_file"}
	for _, c := range []struct {
		name, text string
		want       cgroup
	}{
		{"version 1", "5:devices:/x\n4:memory:/a/b\n1:name=systemd:/\n", first},
		{"version 1, hierarchies together", "3:cpu,memory:/a/b\n", first},
		{"version 2", "0::/a/b\n", second},
		{"both, memory in version 1", "4:memory:/a/b\n0::/x\n", first},
		{"both, memory in version 2", "0::/a/b\n1:name=systemd:/x\n", second},
	} {
		if got := countedIn(c.text); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}
