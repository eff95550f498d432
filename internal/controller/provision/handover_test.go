package provision

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
)

func TestAVolumeThatWasHandedOnBeforeItsRecordSaysSoIsNotUndone(t *testing.T) {
	provisioner := testkit.Provisioner("prov")
	for name, ref := range map[string]*corev1.ObjectReference{
		"to nobody, by a pool":  nil,
		"to a claim that drew":  {Namespace: "tenant", Name: "data", UID: "u2"},
		"to a claim by name":    {Namespace: "tenant", Name: "data"},
		"to one that scrubs it": {Namespace: "tarn-system", Name: "scrub-volume-pvc-u1", UID: "u3"},
	} {
		t.Run(name, func(t *testing.T) {
			claim, record := made("u1", "shelf-7", tarnv1.VolumeCreated)
			vol, err := newVolume(record)
			if err != nil {
				t.Fatal(err)
			}
			vol.Spec.ClaimRef = ref
			for _, c := range []struct {
				cache string
				world *world
			}{
				{"has it", newWorld(t, record, vol, provisioner)},
				{"does not have it yet", newWorld(t, record, vol, provisioner)},
				{"does not have it yet, and a new claim has its name", newWorld(t, record, vol, provisioner, testkit.Claim("ns", claim.Name, "u4", "prov"))},
				{"does not have it yet, and the first claim is still there", newWorld(t, record, vol, provisioner, claim)},
				{"does not have it yet, and another volume has its handle", newWorld(t, record, vol, provisioner, claim, handMade("prov", "shelf-7"))},
			} {
				if c.cache != "has it" {
					c.world.remembering(record, provisioner)
				}
				c.world.look("u1")
				status := c.world.record("u1").Status
				if status.Phase != tarnv1.VolumeCreated || !meta.IsStatusConditionTrue(status.Conditions, tarnv1.ConditionProvisioned) {
					t.Errorf("the cache %s: the record is %s, %+v; its volume would be destroyed", c.cache, status.Phase, status.Conditions)
				}
			}
		})
	}
}

func TestACreationPodThatIsSlowToGoTakesNoneWithItThatMakesTheVolumeAnew(t *testing.T) {
	claim, record := made("u1", "shelf-7", tarnv1.VolumeCreated)
	pod := func(name string, labels map[string]string) *corev1.Pod {
		labels[tarnv1.LabelRecord], labels[tarnv1.LabelStep] = string(record.UID), string(tarnv1.StepCreation)
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: labels, OwnerReferences: []metav1.OwnerReference{{UID: record.UID}},
		}}
	}
	meta.SetStatusCondition(&record.Status.Conditions, metav1.Condition{Type: tarnv1.ConditionProvisioned, Status: metav1.ConditionTrue, Reason: reasonProvisioned})
	record.Status.PodNamespace = "default"
	first := pod(steppod.PodName(tarnv1.StepCreation, claim.UID, 1), map[string]string{})
	anew := pod(steppod.RecyclePodName(tarnv1.StepCreation, "scrub-uid", false), map[string]string{tarnv1.LabelScrub: "volume"})
	w := newWorld(t, claim, record, testkit.Volume(record), testkit.Provisioner("prov"), first, anew)
	w.look("u1")
	if pods := w.pods(); len(pods) != 1 || pods[0].Name != anew.Name {
		t.Errorf("%d pods are left, want that which makes the volume anew", len(pods))
	}
}
