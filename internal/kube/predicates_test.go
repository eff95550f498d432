package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
)

func TestWhatIsThereAtTheStartWakesNobody(t *testing.T) {
	p := &pavv1.PavProvisioner{}
	for name, passes := range map[string]predicate.Predicate{"Later": Later(), "ProvisionerJudged": ProvisionerJudged()} {
		if passes.Create(event.CreateEvent{Object: p, IsInInitialList: true}) {
			t.Errorf("%s passes what is there at the start", name)
		}
		if !passes.Create(event.CreateEvent{Object: p}) || !passes.Delete(event.DeleteEvent{Object: p}) || !passes.Update(event.UpdateEvent{ObjectOld: &corev1.Pod{}, ObjectNew: &corev1.Pod{}}) {
			t.Errorf("%s does not pass what happens later", name)
		}
	}
	accepted := p.DeepCopy()
	accepted.Generation = 1
	if judged := ProvisionerJudged(); judged.Update(event.UpdateEvent{ObjectOld: p, ObjectNew: p}) || !judged.Update(event.UpdateEvent{ObjectOld: p, ObjectNew: accepted}) {
		t.Error("the updates that pass are not those after which a provisioner may be used otherwise")
	}
}
