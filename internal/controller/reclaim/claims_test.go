package reclaim

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

func TestAVolumeIsNotDeletedAsLongAsAClaimNamesIt(t *testing.T) {
	drawn := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "data", UID: "u2"}}
	drawn.Spec.VolumeName, drawn.Status.Phase = "pvc-u1", corev1.ClaimBound
	made := testkit.Claim("ns", "data", "u1", "prov")
	made.Spec.VolumeName, made.Status.Phase = "pvc-u1", corev1.ClaimBound
	for _, c := range []struct {
		name   string
		phase  tarnv1.VolumePhase
		volume func(*corev1.PersistentVolume) // nil if it was removed by force
		claim  *corev1.PersistentVolumeClaim
	}{
		{"its claimRef was cleared under the claim it was made for", tarnv1.VolumeCreated, available, made},
		{"its claimRef was cleared under a claim that has drawn it", tarnv1.VolumeCreated, available, drawn},
		{"its claimRef was cleared while it was being deleted", tarnv1.VolumeDeleting, available, drawn},
		{"it was removed by force, and its record is deleted", tarnv1.VolumeCreated, nil, drawn},
		{"it was removed by force while it was being deleted", tarnv1.VolumeDeleting, nil, drawn},
	} {
		t.Run(c.name, func(t *testing.T) {
			record := goes(c.phase, "h")
			objects := []client.Object{record, c.claim.DeepCopy(), testkit.Provisioner("prov")}
			if c.volume != nil {
				vol := testkit.Volume(record)
				c.volume(vol)
				objects = append(objects, vol)
			} else {
				record.DeletionTimestamp, record.Finalizers = &metav1.Time{Time: now}, []string{tarnv1.FinalizerRecord}
			}
			e := endingOf(t, objects...)
			for range 3 {
				if err := e.look(); !errors.Is(err, errClaimThere) {
					t.Errorf("looked: %v, want to be asked again", err)
				}
			}
			status := e.status()
			told := meta.FindStatusCondition(status.Conditions, tarnv1.ConditionDeletable)
			if status.Phase != c.phase || e.pods() > 0 || told == nil || told.Reason != reasonClaimThere || !strings.Contains(told.Message, c.claim.Namespace+"/data") {
				t.Fatalf("the record is %s, %d pods, condition %+v", status.Phase, e.pods(), told)
			}
			if err := e.store.Delete(t.Context(), c.claim.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := e.look(); err != nil {
					t.Fatal(err)
				}
			}
			if e.pods() != 1 {
				t.Errorf("%d deletion pods when the claim is gone, want 1", e.pods())
			}
		})
	}
}

// available makes a volume one without a claimRef that is being deleted.
func available(vol *corev1.PersistentVolume) {
	vol.Spec.ClaimRef, vol.Status.Phase = nil, corev1.VolumeAvailable
	vol.DeletionTimestamp, vol.Finalizers = &metav1.Time{Time: now}, []string{"kubernetes.io/pv-protection"}
}
