package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"tarn.dev/tarn/provisioners"
)

func TestTheReadyProvisionersAreListedAndShownWithoutACluster(t *testing.T) {
	t.Setenv("KUBECONFIG", t.TempDir()+"/none")
	out, said, status := run(t, "", "provisioner", "list")
	if status != 0 || !strings.Contains(said, "what the cluster has is unknown: no cluster is configured") {
		t.Errorf("exit status %d and %q", status, said)
	}
	for _, name := range provisioners.Names() {
		if !strings.Contains(out, "\n"+name+" ") {
			t.Errorf("%s is not in the list:\n%s", name, out)
		}
		if out, said, status := run(t, "", "provisioner", "show", name); status != 0 || strings.Count(out, "\nkind: ") != 2 || said != "" {
			t.Errorf("show %s: exit status %d, %q:\n%s", name, status, said, out)
		}
		if out, _, status := run(t, "", "provisioner", "show", name, "--example"); status != 0 || !strings.Contains(out, "kind: Pod\n") {
			t.Errorf("the example of %s: exit status %d\n%s", name, status, out)
		}
	}
	var list []readyProvisioner
	out, _, _ = run(t, "", "provisioner", "list", "--output", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != len(provisioners.Names()) {
		t.Errorf("%v: %s", err, out)
	}
	for _, p := range list {
		if p.Name == "xfs" && (p.AccessModes != "RWO,RWOP" || !p.Grows || p.Topology != "Node" || p.Installed != nil) {
			t.Errorf("xfs is listed as %+v", p)
		}
	}
	for _, command := range []string{"show", "install"} {
		if _, said, status := run(t, "", "provisioner", command, "nosuch"); status != exitUsage || !strings.Contains(said, "the ready ones are ") {
			t.Errorf("%s nosuch: exit status %d, %q", command, status, said)
		}
	}
}
