//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

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

func TestARetainedFolderStaysUntilItsPolicySaysDelete(t *testing.T) {
	t.Parallel()
	s := begin(t, "folder-kept")
	s.needsHostPath()
	s.folders(func(c *storagev1.StorageClass) {
		c.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimRetain)
		c.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
	})
	claim := s.claim("data")
	s.told(claim, "WaitForFirstConsumer")
	pod := s.consumer("writer", claim.Name, "echo kept > /data/note", asNobody)
	s.succeeded(pod)
	s.remove(pod)
	volume := s.volumeOf(s.bound(claim))
	s.remove(claim)
	s.await("volume "+volume.Name+" to be Released", func() (bool, string) {
		err := s.get(volume)
		return err == nil && volume.Status.Phase == corev1.VolumeReleased, fmt.Sprintf("it is %s (%v)", volume.Status.Phase, err)
	})
	note := filepath.Join(volume.Spec.Local.Path, "note")
	if text, err := os.ReadFile(note); err != nil || string(text) != "kept\n" {
		t.Errorf("the note on the retained volume reads %q (%v)", text, err)
	}
	before := volume.DeepCopy()
	volume.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	if err := suite.live.Patch(s.ctx, volume, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	s.gone(before)
	if _, err := os.Lstat(before.Spec.Local.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the volume is gone, its folder is not (%v)", err)
	}
}

func TestAFolderIsDeletedThoughItsVolumeIsDeletedFirst(t *testing.T) {
	t.Parallel()
	s := begin(t, "folder-first")
	s.needsHostPath()
	s.folders(func(*storagev1.StorageClass) {})
	claim := s.bound(s.claim("data"))
	volume := s.volumeOf(claim)
	s.delete(volume)
	if _, err := os.Lstat(volume.Spec.Local.Path); err != nil {
		t.Errorf("the claim is there, its folder: %v", err)
	}
	s.remove(claim)
	s.gone(volume)
	if _, err := os.Lstat(volume.Spec.Local.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the volume is gone, its folder is not (%v)", err)
	}
}

func TestAClaimThatNoFolderCanServeIsTold(t *testing.T) {
	t.Parallel()
	s := begin(t, "folder-none")
	s.needsHostPath()
	s.folders(func(c *storagev1.StorageClass) { c.MountOptions = []string{"noatime"} })
	claim := s.claim("data")
	s.told(claim, "ProvisioningFailed", "mount options", "noatime", s.name)
	s.remove(claim)
}

// Claims are made and deleted while the controller is killed repeatedly. In the end no directory is
// left. The case does not run beside others.
func TestNoFolderIsLeftHoweverOftenTheControllerDies(t *testing.T) {
	s := begin(t, "folder-crash")
	s.needsHostPath()
	s.folders(func(*storagev1.StorageClass) {})
	first := s.bound(s.claim("first"))
	root := filepath.Dir(s.volumeOf(first).Spec.Local.Path)

	kills, round := 8, 700*time.Millisecond
	if inPods() { // a takeover takes seconds, and there should not be more claims for that
		kills, round = 3, 2*time.Second
	}
	over := make(chan error, 1)
	go func() {
		for range kills {
			select {
			case <-time.After(rand.N(500 * time.Millisecond)):
			case <-t.Context().Done():
			}
			if err := suite.machine.kill(controller); err != nil {
				over <- err
				return
			}
		}
		over <- nil
	}()
	claims := []*corev1.PersistentVolumeClaim{first}
	for dying := true; dying; {
		begun := len(claims)
		for i := range 10 {
			claims = append(claims, s.claim(fmt.Sprintf("data-%d", begun+i)))
			if i%2 == 1 { // at any point of its work
				s.delete(claims[len(claims)-2])
			}
		}
		<-time.After(rand.N(round)) // to act at a random time
		for i := range 5 {
			s.delete(claims[begun+1+2*i])
		}
		select {
		case err := <-over:
			if err != nil {
				t.Fatal(err)
			}
			dying = false
		default:
		}
	}
	s.delete(first)
	for _, claim := range claims {
		s.gone(claim)
		s.gone(&corev1.PersistentVolume{ObjectMeta: named("pvc-" + string(claim.UID))})
		for _, name := range []string{"pvc-", ".deleting-pvc-"} {
			folder := filepath.Join(root, name+string(claim.UID))
			if _, err := os.Lstat(folder); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is left (%v)", folder, err)
			}
		}
	}
	if err := audited(hostPath); err != nil {
		t.Error(err)
	}
	t.Logf("%d claims came and went while the controller was killed %d times", len(claims), kills)
}
