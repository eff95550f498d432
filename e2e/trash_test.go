//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

// keeps makes the case's StorageClass, whose volumes stay in the trash for a time.
func (s *scenario) keeps(retention string) {
	s.t.Helper()
	s.trashClass(func(class *storagev1.StorageClass) {
		class.Annotations = map[string]string{tarn.AnnotationRetention: retention}
	})
}

// trashClass makes the case's StorageClass. It registers the cleanup of its volumes in the trash.
func (s *scenario) trashClass(edit func(*storagev1.StorageClass)) {
	s.t.Helper()
	class := &storagev1.StorageClass{ObjectMeta: named(s.name), Provisioner: s.name}
	edit(class)
	s.create(class)
	s.t.Cleanup(func() { // the remains of a failed case would be reported as a leak
		s.clear("pods", &corev1.PodList{}, client.InNamespace(s.name))
		s.clear("claims", &corev1.PersistentVolumeClaimList{}, client.InNamespace(s.name))
		out, _, _, err := tool("", "trash", "list", "--namespace", s.name, "--output", "json")
		var left []struct{ Volume string }
		if err := errors.Join(err, json.Unmarshal([]byte(out), &left)); err != nil {
			s.t.Errorf("listing what is left in the trash: %v", err)
		}
		for _, item := range left {
			mustTool(s.t, 0, "", "trash", "purge", item.Volume, "--yes")
		}
	})
}

// written makes a claim of the case's class with a label and an annotation of its own, and writes a
// note into its volume. It gives claim and volume.
func (s *scenario) written(name, note string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	s.t.Helper()
	claim := s.claim(name)
	s.kubectl("label", "pvc", name, "-n", s.name, "app="+name)
	s.kubectl("annotate", "pvc", name, "-n", s.name, "example.com/owner=me")
	pod := s.consumer("writer-"+name, name, "echo "+note+" > /data/note")
	s.succeeded(pod)
	s.remove(pod)
	claim = s.bound(claim)
	return claim, &corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)}
}

// trashed waits until a volume is in the trash, as kubectl shows it.
func (s *scenario) trashed(vol *corev1.PersistentVolume) {
	s.t.Helper()
	now := vol.DeepCopy()
	s.await("volume "+vol.Name+" to be in the trash", func() (bool, string) {
		if err := s.get(now); err != nil {
			return false, err.Error()
		}
		return now.Labels[tarn.LabelTrashedUntil] != "" && now.Status.Phase == corev1.VolumeReleased,
			"it is " + string(now.Status.Phase) + " with policy " + string(now.Spec.PersistentVolumeReclaimPolicy)
	})
	if now.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || now.Annotations[tarn.AnnotationReclaimPolicy] != "Delete" {
		s.t.Errorf("it has policy %s and annotations %v", now.Spec.PersistentVolumeReclaimPolicy, now.Annotations)
	}
}

// trash deletes a claim and waits until its volume is in the trash.
func (s *scenario) trash(claim *corev1.PersistentVolumeClaim, vol *corev1.PersistentVolume) {
	s.t.Helper()
	claim = claim.DeepCopy()
	claim.UID = "" // it may have been restored
	s.remove(claim)
	s.trashed(vol)
}

// listed wants tarn trash list to show these volumes of the case's namespace.
func (s *scenario) listed(want ...string) {
	s.t.Helper()
	out, _ := mustTool(s.t, 0, "", "trash", "list", "--namespace", s.name, "--output", "json")
	var items []struct{ Volume, Claim, Then string }
	if err := json.Unmarshal([]byte(out), &items); err != nil || len(items) != len(want) {
		s.t.Fatalf("%v, want volumes %q in:\n%s", err, want, out)
	}
	for i := range want {
		if items[i].Volume != want[i] || items[i].Then != "Delete" {
			s.t.Errorf("listed %+v, want volume %s", items[i], want[i])
		}
	}
}

// reads wants a pod to read a note from a claim that has its label and annotation.
func (s *scenario) reads(claim *corev1.PersistentVolumeClaim, vol, note string) {
	s.t.Helper()
	now := s.bound(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: claim.Name}})
	if now.Spec.VolumeName != vol || now.UID == claim.UID || now.Labels["app"] != claim.Name || now.Annotations["example.com/owner"] != "me" {
		s.t.Errorf("brought back it has volume %s, labels %v, annotations %v; want %s and those it had", now.Spec.VolumeName, now.Labels, now.Annotations, vol)
	}
	pod := s.consumer("reader-"+claim.Name, claim.Name, `test "$(cat /data/note)" = `+note)
	s.succeeded(pod)
	s.remove(pod)
}

func TestTrashGivesAClaimBackWithItsData(t *testing.T) {
	t.Parallel()
	s, shelf := shelving(t, "undelete")
	s.keeps("1h")
	claim, vol := s.written("data", "precious")
	_, stderr := mustTool(t, 1, "", "undelete", "volume", vol.Name, "--as", s.name+"/other")
	if !strings.Contains(stderr, "is Bound to claim "+s.name+"/data") {
		t.Errorf("undeleting a volume in use: %s", stderr)
	}
	for range 2 { // a restored volume can be restored again
		s.trash(claim, vol)
		s.listed(vol.Name)
		mustTool(t, 0, "", "undelete", "volume", vol.Name)
		s.reads(claim, vol.Name, "precious")
		claim = s.bound(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "data"}})
		s.listed()
	}
	s.trash(claim, vol)
	mustTool(t, 0, "", "undelete", "volume", vol.Name, "--as", s.name+"/other")
	other := s.bound(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "other"}})
	if other.Spec.VolumeName != vol.Name || other.Labels["app"] != "data" {
		t.Errorf("brought back under another name it has volume %s and labels %v", other.Spec.VolumeName, other.Labels)
	}
	reader := s.consumer("reader-other", "other", `test "$(cat /data/note)" = precious`)
	s.succeeded(reader)
	s.remove(reader)
	s.gone(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "data"}})
	s.trash(other, vol)
	abroad := &corev1.Namespace{ObjectMeta: named(s.name + "-abroad")}
	s.create(abroad)
	t.Cleanup(func() { s.deleteIfThere(abroad) })
	mustTool(t, 0, "", "undelete", "volume", vol.Name, "--as", abroad.Name+"/data")
	moved := s.bound(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: abroad.Name, Name: "data"}})
	if moved.Spec.VolumeName != vol.Name || moved.Labels["app"] != "data" {
		t.Errorf("brought back in another namespace it has volume %s and labels %v", moved.Spec.VolumeName, moved.Labels)
	}
	reader = s.consumer("reader", "data", `test "$(cat /data/note)" = precious`, func(pod *corev1.Pod) { pod.Namespace = abroad.Name })
	s.succeeded(reader)
	s.remove(reader)
	s.trash(moved, vol)
	s.never(tarn.StepDeletion)
	mustTool(t, 1, "", "trash", "purge", vol.Name)
	if left := entriesOf(t, shelf); len(left) != 1 {
		t.Errorf("there are folders %q, want that of the volume: nobody has said --yes", left)
	}
	mustTool(t, 0, "", "trash", "purge", vol.Name, "--yes")
	s.gone(vol)
	if left := entriesOf(t, shelf); len(left) != 0 {
		t.Errorf("purged, there are folders %q; the record has another claim's uid", left)
	}
}

func TestTrashGivesADeletedNamespaceBack(t *testing.T) {
	t.Parallel()
	s, shelf := shelving(t, "undelete-ns")
	s.keeps("1h")
	first, one := s.written("first", "one")
	second, two := s.written("second", "two")
	namespace := &corev1.Namespace{ObjectMeta: named(s.name)}
	s.remove(namespace)
	s.trashed(one)
	s.trashed(two)
	_, stderr := mustTool(t, 1, "", "undelete", "namespace", s.name)
	if !strings.Contains(stderr, "--create-namespace") {
		t.Errorf("undeleting into a namespace that is gone: %s", stderr)
	}
	mustTool(t, 0, "", "undelete", "namespace", s.name, "--create-namespace")
	s.reads(first, one.Name, "one")
	s.reads(second, two.Name, "two")
	s.trash(first, one)
	s.trash(second, two)
	mustTool(t, 0, "", "trash", "purge", one.Name, two.Name, "--yes")
	s.gone(one)
	s.gone(two)
	if left := entriesOf(t, shelf); len(left) != 0 {
		t.Errorf("purged, there are folders %q", left)
	}
}

func TestAProvisionerStaysForWhatItHasInTheTrash(t *testing.T) {
	t.Parallel()
	s, shelf := shelving(t, "undelete-last")
	s.keeps("1h")
	claim, vol := s.written("data", "precious")
	s.trash(claim, vol)
	provisioner := &pav.PavProvisioner{ObjectMeta: named(s.name)}
	s.delete(provisioner)
	s.waitsFor(provisioner, []string{"PavVolume " + vol.Name + " (in the trash; tarn trash purge " + vol.Name + " deletes it)"}, nil)
	mustTool(t, 0, "", "trash", "purge", vol.Name, "--yes")
	s.gone(vol)
	s.gone(provisioner)
	if left := entriesOf(t, shelf); len(left) != 0 {
		t.Errorf("purged, there are folders %q", left)
	}
}

// held waits until a claimed volume has a retention, whatever its source.
func (s *scenario) held(vol *corev1.PersistentVolume, retention string) {
	s.t.Helper()
	now := vol.DeepCopy()
	s.await("volume "+vol.Name+" to be held for "+retention, func() (bool, string) {
		if err := s.get(now); err != nil {
			return false, err.Error()
		}
		policy := now.Spec.PersistentVolumeReclaimPolicy
		return policy == corev1.PersistentVolumeReclaimRetain && now.Annotations[tarn.AnnotationHeldFor] == retention,
			fmt.Sprintf("it has policy %s and annotations %v", policy, now.Annotations)
	})
}

func TestTrashAsksTheParameterOfTheClassAndTheVolumeItself(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, label string
		class       func(*storagev1.StorageClass)
		own         string // the annotation of the volume, if it has one
		want        string
		time        time.Duration
	}{
		{"a parameter of its class", "trash-class", func(class *storagev1.StorageClass) {
			class.Parameters = map[string]string{tarn.AnnotationRetention: "2h"}
		}, "", "2h", 2 * time.Hour},
		{"its own annotation", "trash-own", func(*storagev1.StorageClass) {}, "1d", "1d", 24 * time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, shelf := shelving(t, c.label)
			s.trashClass(c.class)
			claim, vol := s.written("data", "kept")
			if c.own != "" {
				s.kubectl("annotate", "pv", vol.Name, tarn.AnnotationRetention+"="+c.own)
			}
			s.held(vol, c.want)
			s.trash(claim, vol)
			s.listed(vol.Name)
			s.keptFor(vol, c.time)
			mustTool(t, 0, "", "undelete", "volume", vol.Name)
			s.reads(claim, vol.Name, "kept")
			s.trash(claim, vol)
			s.never(tarn.StepDeletion)
			mustTool(t, 0, "", "trash", "purge", vol.Name, "--yes")
			s.gone(vol)
			if left := entriesOf(t, shelf); len(left) != 0 {
				t.Errorf("purged, there are folders %q", left)
			}
		})
	}
}

// keptFor wants a volume in the trash to be kept for a time after its release.
func (s *scenario) keptFor(vol *corev1.PersistentVolume, want time.Duration) {
	s.t.Helper()
	now := vol.DeepCopy()
	if err := s.get(now); err != nil {
		s.t.Fatal(err)
	}
	released, text := now.Status.LastPhaseTransitionTime, now.Annotations[tarn.AnnotationTrashedUntil]
	if until, err := time.Parse(time.RFC3339, text); err != nil || !until.Equal(released.Add(want)) {
		s.t.Errorf("released at %s it is kept until %s, want %s longer (%v)", released, text, want, err)
	}
}

// trashIsEmptied in time though the controller is killed.
func trashIsEmptied(t *testing.T) {
	s, shelf := shelving(t, "trash-time")
	s.step = manyKills
	s.keeps("3s")
	claim, vol := s.written("data", "fleeting")
	s.delete(claim)
	if err := suite.machine.kill(controller); err != nil {
		t.Fatal(err)
	}
	s.gone(claim)
	s.gone(vol) // the killed controller's Event may be lost; the retention is not
	if left := entriesOf(t, shelf); len(left) != 0 {
		t.Errorf("there are folders %q", left)
	}
}

// drives stands in for a driver other than Tarn. As Kubernetes requires, it deletes vol, with its
// note in folder, once vol is Released and has policy Delete. The channel receives the time of
// that.
func (s *scenario) drives(vol *corev1.PersistentVolume, folder string) <-chan time.Time {
	done := make(chan time.Time, 1)
	go func() {
		now := vol.DeepCopy()
		for {
			change := suite.news.next()
			if s.get(now) == nil && now.Status.Phase == corev1.VolumeReleased && now.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
				if err := os.Remove(filepath.Join(folder, "note")); err != nil {
					s.t.Error(err)
				}
				s.deleteIfThere(now)
				done <- time.Now()
				return
			}
			select {
			case <-change:
			case <-s.t.Context().Done():
				return
			}
		}
	}()
	return done
}

func TestTrashHoldsTheVolumesOfAnotherDriver(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	s := begin(t, "trash-foreign")
	s.needsThisMachine()
	s.keeps("1h")
	vol := &corev1.PersistentVolume{ObjectMeta: named(s.name)}
	vol.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": s.name}
	vol.Spec = corev1.PersistentVolumeSpec{
		Capacity: size("1Mi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, StorageClassName: s.name,
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
		PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}},
	}
	s.create(vol)
	t.Cleanup(func() { s.deleteIfThere(vol) })
	destroyed := s.drives(vol, folder)
	claim, _ := s.written("data", "foreign")
	s.trash(claim, vol)
	mustTool(t, 0, "", "undelete", "volume", vol.Name)
	s.reads(claim, vol.Name, "foreign")
	s.trash(claim, vol)
	select {
	case <-destroyed:
		t.Fatal("the driver has destroyed a volume in the trash")
	default:
	}
	purged := time.Now()
	mustTool(t, 0, "", "trash", "purge", vol.Name, "--yes")
	s.gone(vol)
	if at := <-destroyed; at.Before(purged) {
		t.Errorf("the driver has destroyed the volume at %s, before it was purged", at)
	}
}
