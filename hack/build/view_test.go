package main

import (
	"bytes"
	"testing"
	"time"
)

func packages(stale bool, names ...string) map[string]pkg {
	all := make(map[string]pkg)
	for _, name := range names {
		all[name] = pkg{key: name + "@v1", stale: stale}
	}
	return all
}

func set(names ...string) map[string]bool {
	all := make(map[string]bool)
	for _, name := range names {
		all[name] = true
	}
	return all
}

func TestProgressCountsWhatProgramsShareOnce(t *testing.T) {
	other := map[string]pkg{"a": {key: "a@v2", stale: true}}
	for name, c := range map[string]struct {
		progress progress
		elapsed  time.Duration
		want     string
	}{
		"before the others are counted": {
			progress: progress{started: []map[string]bool{set("a"), nil}, packages: make([]map[string]pkg, 2)},
			want:     "etcd: 1 packages compiled, still counting the others",
		},
		"too early for a speed": {
			progress: progress{complete: true, started: []map[string]bool{set("a"), nil}, packages: []map[string]pkg{packages(true, "a", "b"), packages(true, "b", "c")}},
			elapsed:  time.Second,
			want:     "etcd: 1 of 3 packages compiled",
		},
		"at the speed so far": {
			progress: progress{complete: true, started: []map[string]bool{set("a"), nil}, packages: []map[string]pkg{packages(true, "a", "b"), packages(true, "b", "c")}},
			elapsed:  20 * time.Second,
			want:     "etcd: 1 of 3 packages compiled, about 40 s left",
		},
		"another version of the same package": {
			progress: progress{complete: true, started: []map[string]bool{set("a", "b"), nil}, packages: []map[string]pkg{packages(true, "a", "b"), other}},
			elapsed:  4 * time.Minute,
			want:     "etcd: linking; 2 of 3 packages compiled, about 2 minutes left",
		},
		"compiled before": {
			progress: progress{complete: true, started: []map[string]bool{set("a"), nil}, packages: []map[string]pkg{packages(true, "a"), packages(false, "b")}},
			elapsed:  time.Minute,
			want:     "etcd: linking; 1 of 1 packages compiled",
		},
		"a program that is done needs nothing more": {
			progress: progress{complete: true, current: 1, started: []map[string]bool{set("a"), set("c")}, packages: []map[string]pkg{packages(true, "a", "b"), packages(true, "c", "d")}},
			elapsed:  20 * time.Second,
			want:     "etcd: 2 of 3 packages compiled, about 10 s left",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.progress.line("etcd", c.elapsed); got != c.want {
				t.Errorf("progress is %q, want %q", got, c.want)
			}
		})
	}
}

func TestNothingIsPrintedWhenNothingIsCompiled(t *testing.T) {
	var out bytes.Buffer
	v := newView(&out, []program{{name: "etcd"}})
	v.at(0)
	v.end()
	if out.Len() != 0 {
		t.Errorf("printed %q, want nothing", &out)
	}
}

func TestATerminalsLineIsClearedBeforeWhatGoSays(t *testing.T) {
	var out bytes.Buffer
	v := newView(&out, []program{{name: "etcd"}})
	v.terminal = true
	v.say("go: downloading x")
	if got, want := out.String(), "\r\x1b[Kgo: downloading x\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}
