//go:build e2e

package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// mayNotGo makes a disruption budget that allows no eviction of the one pod with the label. It
// waits until the budget has counted the pod.
func (s *scenario) mayNotGo(label string) *policyv1.PodDisruptionBudget {
	s.t.Helper()
	least := intstr.FromInt32(1)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "stay"}}
	budget.Spec = policyv1.PodDisruptionBudgetSpec{MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"stays": label}}}
	s.create(budget)
	s.await("the budget to count its pod", func() (bool, string) {
		err := s.get(budget)
		return err == nil && budget.Status.ObservedGeneration > 0 && budget.Status.CurrentHealthy == 1, fmt.Sprintf("%+v (%v)", budget.Status, err)
	})
	return budget
}

// explainsKept wants the answer for a pod to say that one of its containers keeps a lost mount. It
// runs the command, which replaces the pod.
func (s *scenario) explainsKept(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim, container, why string) {
	s.t.Helper()
	told := "volume " + claim.Spec.VolumeName + " was lost on node "
	keeps := fmt.Sprintf(" and is available again, but not for container %s of pod %s/%s, which keeps the lost mount: %s", container, s.name, pod.Name, why)
	e := s.explains("pod", s.name+"/"+pod.Name, "is running: claim "+s.name+"/"+claim.Name+": "+told, keeps)
	want := fmt.Sprintf("kubectl -n %s get pod %s -o yaml | kubectl replace --force -f -", s.name, pod.Name)
	if e.Healthy || e.command() != want {
		s.t.Errorf("want it not healthy, and the command %q; got %+v", want, e)
	}
	s.does(want)
	s.ready(pod)
	if e := s.explains("pod", s.name+"/"+pod.Name, "is running: "); !e.Healthy {
		s.t.Errorf("the pod that was made anew is told of what the one before has lost: %+v", e)
	}
}

// TestAPodThatABudgetKeepsIsEvictedWhenItLetsItGo uses pods whose owner has no controller, except
// one. No controller replaces those, so an existing pod is the original.
func TestAPodThatABudgetKeepsIsEvictedWhenItLetsItGo(t *testing.T) {
	t.Parallel()
	shelf := shelfWithData(t)
	s := begin(t, "budget")
	s.step = 2 * soon // a rejected eviction is retried after at most half a minute
	s.needsThisMachine()
	staging := bindsShelf(shelf, "exit 1")
	staging["recovery"] = "RestartConsumers"
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": staging}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "owner"}}
	s.create(owner)
	owned := func(p *corev1.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: &yes}}
	}
	kept := s.consumer("kept", claim.Name, stays, owned, func(p *corev1.Pod) { p.Labels = map[string]string{"stays": "kept"} })
	free := s.consumer("free", claim.Name, stays, owned)
	bare := s.consumer("bare", claim.Name, stays)
	s.ready(kept)
	s.ready(free)
	s.ready(bare)
	budget := s.mayNotGo("kept")
	first := s.endsItself(shelf)

	s.gone(free)
	s.told(free, "RestartedForVolume", claim.Spec.VolumeName, "this pod is evicted")
	s.told(kept, "RestartRefused", claim.Spec.VolumeName, "cannot be evicted yet", "The disruption budget "+budget.Name+" needs 1 healthy pods", "eviction is retried")
	waits := s.stageOf("waiting for the budget", func(g *tarn.PavStage) bool {
		left := g.Status.Pod.Evictions
		return len(left) == 1 && left[0].PodUID == kept.UID && left[0].Refusals > 1 && containsAll(left[0].Message, []string{budget.Name})
	})

	s.explains("pod", s.name+"/kept", "volume "+claim.Spec.VolumeName+" was lost on node ", "but not for pod "+s.name+"/kept, which is to be evicted and cannot be: ", budget.Name)

	s.explainsKept(bare, claim, "main", "no controller would create the pod again, so Tarn does not evict it")

	// A volume that is lost once more meanwhile is still staged again.
	second := s.endsItself(shelf)
	again := s.bindsAgain(second, 2)
	if second.Name == first.Name || again.UID != waits.UID {
		t.Errorf("staging pod %s of stage %s was followed by %s of %s, want another of the same", first.Name, waits.UID, second.Name, again.UID)
	}
	s.remove(bare)
	s.neverRestarted(kept)
	for _, e := range s.events(kept.Namespace, kept.Name) {
		if e.Reason == "RestartedForVolume" {
			t.Errorf("the pod that stays is told %q", e.Message)
		}
	}

	s.delete(budget)
	s.told(kept, "RestartedForVolume", "this pod is evicted")
	s.gone(kept)
	s.gone(again)
	s.remove(claim)
}
