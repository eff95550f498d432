//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"sync"
	"testing"

	shelf "tarn.dev/tarn/provisioners"
)

// onTheShelf begins a case with a provisioner and a class of the directory provisioners, both under
// the case's name. The image of its pods is made available first.
func onTheShelf(t *testing.T, name string) *scenario {
	t.Helper()
	return onTheShelfWith(t, name, nil)
}

// onTheShelfWith is onTheShelf with further parameters of the class.
func onTheShelfWith(t *testing.T, name string, parameters map[string]string) *scenario {
	t.Helper()
	s := begin(t, name)
	s.needsThisMachine()
	shelfImage(t, name)
	provisioner, err := shelf.Provisioner(name)
	if err != nil {
		t.Fatal(err)
	}
	class, err := shelf.Class(name)
	if err != nil {
		t.Fatal(err)
	}
	provisioner.SetName(s.name)
	s.create(provisioner)
	class.SetName(s.name)
	class.Object["provisioner"] = s.name
	all, _ := class.Object["parameters"].(fields)
	if all == nil {
		all = fields{}
	}
	for parameter, value := range parameters {
		all[parameter] = value
	}
	class.Object["parameters"] = all
	s.create(class)
	return s
}

// ofServers are the provisioners that need a server or a Secret. Their own cases bring those.
var ofServers = []string{"bucket", "encrypted", "git", "sshfs"}

func TestEachReadyProvisionerPassesTarnPavTest(t *testing.T) {
	t.Parallel()
	if !suite.machine.here() {
		t.Skip("images are made by tarn-cluster, and the cluster is not on this machine")
	}
	for _, name := range shelf.Names() {
		if slices.Contains(ofServers, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shelfImage(t, name)
			class, err := shelf.Class(name)
			if err != nil {
				t.Fatal(err)
			}
			// What volumes lie in goes with the case.
			class.Object["parameters"] = fields{"folder": t.TempDir(), "poolSize": "1Gi"}
			claim := fields{"metadata": fields{"name": "small"}, "spec": fields{"accessModes": []string{"ReadWriteOnce"},
				"resources": fields{"requests": fields{"storage": "320Mi"}}}}
			r := tries(t, 0, "", "--class", objectFile(t, "StorageClass", class.Object), "--claim", objectFile(t, "PersistentVolumeClaim", claim), "../provisioners/"+name+"/provisioner.yaml")
			for _, step := range r.Steps {
				if slices.Contains([]string{"created", "written", "expanded", "read", "deleted", "nothing left"}, step.Name) && (!step.Passed || strings.HasPrefix(step.Detail, "skipped")) {
					t.Errorf("step %s: passed %t, %s", step.Name, step.Passed, step.Detail)
				}
			}
			if !r.Passed || len(r.Steps) == 0 {
				t.Errorf("the report is %+v", r)
			}
		})
	}
}

// shelfImages has a function for each provisioner whose image a case has needed. The first call
// makes the image in the cluster.
var shelfImages sync.Map

// shelfImage makes the image of a provisioner's pods from the packages of its Dockerfile. Each is
// made once for all cases.
func shelfImage(t *testing.T, name string) {
	t.Helper()
	reference, packages, err := shelf.Image(name)
	if err != nil {
		t.Fatal(err)
	}
	if reference == shelf.ToolImage {
		return // every cluster has it
	}
	once, _ := shelfImages.LoadOrStore(name, sync.OnceValue(func() error {
		_, err := suite.machine.run("image", "build", "--tag", reference, "--packages", strings.Join(packages, ","))
		return err
	}))
	if err := once.(func() error)(); err != nil {
		t.Fatal(err)
	}
}
