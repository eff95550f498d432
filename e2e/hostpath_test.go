//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const hostPath = "tarn.dev/host-path"

// hostPathRoot is the directory of the cluster's local-path volumes, "" where the cluster has none.
// Where Tarn's controllers are pods, the environment names it.
func (m machine) hostPathRoot() string {
	if root := os.Getenv("TARN_HOST_PATH_ROOT"); root != "" {
		return root
	}
	text, err := m.run("status", "--output", "json")
	var status struct {
		DataDir string `json:"dataDir"`
	}
	if json.Unmarshal([]byte(text), &status) != nil || err != nil && text == "" {
		return ""
	}
	root := filepath.Join(status.DataDir, "host-path")
	if _, err := os.Stat(root); err != nil {
		return ""
	}
	return root
}

// needsHostPath skips a case whose cluster is elsewhere. The embedded cluster must have the class
// local-path.
func (s *scenario) needsHostPath() {
	s.t.Helper()
	s.needsThisMachine()
	class := &storagev1.StorageClass{}
	if err := suite.live.Get(s.ctx, client.ObjectKey{Name: "local-path"}, class); err != nil || class.Provisioner != hostPath {
		s.t.Fatalf("the cluster has no class local-path of %s (%v)", hostPath, err)
	}
}

// folders makes a class of the case for tarn.dev/host-path.
func (s *scenario) folders(edit func(*storagev1.StorageClass)) {
	s.t.Helper()
	class := &storagev1.StorageClass{ObjectMeta: named(s.name), Provisioner: hostPath}
	edit(class)
	s.create(class)
}

// volumeOf gives the volume of a bound claim.
func (s *scenario) volumeOf(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	s.t.Helper()
	vol := &corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)}
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(vol), vol); err != nil {
		s.t.Fatal(err)
	}
	return vol
}

// asNobody lets a pod run as an unprivileged user, whose group owns the volume.
func asNobody(pod *corev1.Pod) {
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](1000), RunAsGroup: ptr.To[int64](1000), FSGroup: ptr.To[int64](2000),
	}
}

func TestAFolderOfLocalPathLivesAsLongAsItsClaim(t *testing.T) {
	t.Parallel()
	s := begin(t, "folder")
	s.needsHostPath()
	unbound := s.example("local-path/claim.yaml")
	unbound.SetNamespace(s.name)
	s.create(unbound)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: named("local-path")}
	claim.Namespace = s.name
	claim = s.bound(claim)
	for _, starts := range []string{"started 1 times", "started 2 times"} {
		o := s.example("local-path/pod.yaml")
		o.SetNamespace(s.name)
		s.create(o)
		pod := &corev1.Pod{ObjectMeta: named("local-path")}
		pod.Namespace = s.name
		s.ready(pod)
		s.prints(pod, starts)
		s.remove(pod)
	}
	folder := s.volumeOf(claim).Spec.Local.Path
	if got := entriesOf(t, folder); len(got) != 1 || got[0] != "starts" {
		t.Errorf("%s holds %q, want what the pods wrote", folder, got)
	}
	volume := s.volumeOf(claim)
	s.remove(claim)
	s.gone(volume)
	if _, err := os.Lstat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the claim and its volume are gone, %s is not (%v)", folder, err)
	}
}
