//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
