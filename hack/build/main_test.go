package main

import (
	"strings"
	"testing"
)

func TestTheClusterIsAllProgramsOfItsModules(t *testing.T) {
	t.Chdir("../..")
	all, err := programs("v1")
	if err != nil {
		t.Fatal(err)
	}
	chosen, err := choose(all, []string{"tarn", "cluster"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range chosen {
		names = append(names, p.name)
		if strings.HasSuffix(p.ldflags, "=") {
			t.Errorf("%s gets no version: %s", p.name, p.ldflags)
		}
	}
	if got, want := strings.Join(names, " "), "tarn tarn-cluster pause etcd kubernetes containerd cni runc"; got != want {
		t.Errorf("the programs are %s, want %s", got, want)
	}
	if _, err := choose(all, []string{"kubectl"}); err == nil || !strings.Contains(err.Error(), `"kubectl"`) {
		t.Errorf("a name without a program gives %v, want an error with it", err)
	}
}
