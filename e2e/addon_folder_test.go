//go:build e2e

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// objects gives the objects of the chart with some values, as text, by kind and name.
func (a addOn) objects(t *testing.T, values ...string) map[string]string {
	t.Helper()
	manifest, err := a.rendered(values...)
	if err != nil {
		t.Fatalf("%v: %s", err, manifest)
	}
	found := map[string]string{}
	for text := range strings.SplitSeq(manifest[strings.Index(manifest, "---\n"):], "---\n") {
		var o metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(text), &o); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if o.Kind != "" {
			found[o.Kind+" "+o.Name] = text
		}
	}
	return found
}

// controllerOf is the key of the controllers' Deployment in objects.
const controllerOf = "Deployment " + controller

func TestAddOnOnlyControllersGetAFolderOfTheNodeAndOnlyWhereItIsAskedFor(t *testing.T) {
	a := needsAddOn(t)
	t.Parallel()
	without, with := a.objects(t), a.objects(t, "controller.hostPath=/var/lib/tarn")
	if len(without) != len(with) || without[controllerOf] == "" {
		t.Fatalf("there are %d objects, and %d with the folder", len(without), len(with))
	}
	for name, text := range with {
		if name != controllerOf && text != without[name] {
			t.Errorf("%s is another where controllers mount a folder:\n%s", name, text)
		}
	}
	for _, right := range []string{"hostPath", "host-path", "volumes:", "NODE_NAME", "runAsUser: 0", "add:"} {
		if strings.Contains(without[controllerOf], right) {
			t.Errorf("without the value the controller has %q", right)
		}
		if !strings.Contains(with[controllerOf], right) {
			t.Errorf("with the value the controller has no %q", right)
		}
	}
}

// The controller's pod may remove files that pods of other users keep private. No user but root can
// reach them meanwhile.
func TestAddOnAFolderOfTheNodeGoesWhoeverWroteThere(t *testing.T) {
	needsAddOn(t)
	t.Parallel()
	s := begin(t, "folder-theirs")
	s.needsHostPath()
	s.folders(func(*storagev1.StorageClass) {})
	claim := s.bound(s.claim("data"))
	pod := s.consumer("writer", claim.Name, "for d in own shared; do mkdir /data/$d && echo theirs > /data/$d/note; done; chmod 1777 /data/shared && chmod 0 /data/own", asNobody)
	s.succeeded(pod)
	s.remove(pod)
	volume := s.volumeOf(claim)
	folder := volume.Spec.Local.Path
	root := filepath.Dir(folder)
	if info, err := os.Stat(root); err != nil || root != suite.machine.hostPathRoot() || info.Mode().Perm() != 0o700 {
		t.Errorf("the volume lies in %s, want %s, for root alone: %v (%v)", root, suite.machine.hostPathRoot(), info, err)
	}
	s.remove(claim)
	s.gone(volume)
	if _, err := os.Lstat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the volume is gone, its folder is not (%v)", err)
	}
}
