package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/plugin/hostpath"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// folderVolume returns a volume of tarn.dev/host-path in the root directory /root.
func folderVolume(name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{volume.AnnProvisionedBy: hostpath.Provisioner}},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			Local: &corev1.LocalVolumeSource{Path: filepath.Join("/root", name)},
		}},
	}
}

func TestAuditKnowsWhoseAFolderIs(t *testing.T) {
	for _, c := range []struct {
		name, folder, volume, claim string
		wantState, wantOrphaned     string
	}{
		{"a volume's", "pvc-1", "pvc-1", "", "", ""},
		{"a volume's of another name", "spare", "spare", "", "", ""},
		{"one that is being deleted", ".deleting-pvc-1", "pvc-1", "", "being deleted", ""},
		{"one in the making", "pvc-7", "", "7", "being created or removed", ""},
		{"one being undone", ".deleting-pvc-7", "", "7", "being created or removed", ""},
		{"nobody's", "pvc-7", "pvc-8", "8", "", "by hand"},
		{"nobody's, of the name of another provisioner's volume", "pvc-1", "", "", "", "by hand"},
		{"nobody's, half deleted", ".deleting-pvc-7", "", "", "", "by hand"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := wholeView()
			v.hostPath = &hostPathView{root: "/root", folders: []string{c.folder}, claims: map[types.UID]bool{types.UID(c.claim): true}}
			if c.volume != "" {
				v.take(folderVolume(c.volume))
			}
			items, _ := v.judge(hostpath.Provisioner)
			for _, i := range items {
				if i.Kind == "Folder" {
					if i.Name != "/root/"+c.folder || i.State != c.wantState || (i.Orphaned == "") != (c.wantOrphaned == "") || !strings.Contains(i.Orphaned, c.wantOrphaned) {
						t.Errorf("got %+v", i)
					}
					return
				}
			}
			t.Errorf("no folder among %+v", items)
		})
	}
}

func TestAuditMissesTheFolderOfAVolume(t *testing.T) {
	going := func(vol *corev1.PersistentVolume) { vol.DeletionTimestamp = &metav1.Time{} }
	elsewhere := func(vol *corev1.PersistentVolume) { vol.Spec.Local.Path = "/other/pvc-1" }
	for _, c := range []struct {
		name         string
		change       testkit.With[*corev1.PersistentVolume]
		wantOrphaned bool
	}{
		{"that should be there", func(*corev1.PersistentVolume) {}, true},
		{"but not of one that is being deleted", going, false},
		{"but not of one in another root", elsewhere, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := wholeView()
			v.hostPath = &hostPathView{root: "/root"}
			vol := folderVolume("pvc-1")
			c.change(vol)
			v.take(vol)
			items, orphaned := v.judge(hostpath.Provisioner)
			if len(items) != 1 || orphaned != c.wantOrphaned {
				t.Errorf("got %+v, orphaned %t, want %t", items, orphaned, c.wantOrphaned)
			}
		})
	}
}

func TestAuditTakesTheMarkerOfARootForNoVolume(t *testing.T) {
	a := &audit{client: fake.NewClientBuilder().WithScheme(kube.Scheme()).Build(), hostPathRoot: filepath.Join(t.TempDir(), "root")}
	if _, err := hostpath.New(a.hostPathRoot, "node-1"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(a.hostPathRoot, ".deleting-pvc-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if v, err := a.gatherHostPath(t.Context()); err != nil || len(v.folders) != 1 || v.folders[0] != ".deleting-pvc-1" {
		t.Errorf("got %+v, %v, want the one volume", v, err)
	}
}

func TestAuditWantsARootThatIsThere(t *testing.T) {
	a := &audit{hostPathRoot: filepath.Join(t.TempDir(), "missing")}
	if _, err := a.gatherHostPath(t.Context()); err == nil || !strings.Contains(err.Error(), "--host-path-root") {
		t.Errorf("got %v, want an error that names the flag", err)
	}
	if err := os.Mkdir(a.hostPathRoot, 0o700); err != nil {
		t.Fatal(err)
	}
	a.hostPathRoot = ""
	if v, err := a.gatherHostPath(t.Context()); v != nil || err != nil {
		t.Errorf("without the flag got %+v, %v, want nothing looked at", v, err)
	}
}
