package explain

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// ofSet finds why a pool lacks spare volumes, and returns its state in a word.
func (s *story) ofSet(set *tarnv1.PersistentVolumeSet, fillers []*claimView) string {
	o := Object{Kind: Set, Name: set.Name}
	status := set.Status
	counts := fmt.Sprintf("%d of at least %d spare volumes, %d in use, %d being made, at most %d, class %s",
		status.UnboundReplicas, set.Spec.MinimumReplicas, status.BoundReplicas, status.CreatingReplicas, set.Spec.MaximumReplicas, set.Spec.Template.Spec.StorageClassName)
	link := s.add(Link{Object: o, State: "not reconciled", Since: moment(set.CreationTimestamp.Time), Message: counts})
	ready := meta.FindStatusCondition(status.Conditions, tarnv1.ConditionReady)
	switch {
	case set.DeletionTimestamp != nil:
		link.State, link.Since = "Terminating", moment(set.DeletionTimestamp.Time)
		s.endingSet(set, link, ready)
		return link.State
	case ready == nil || status.ObservedGeneration != set.Generation:
		s.controllerSilent("it has to be reconciled", writtenAt(set))
		return link.State
	case ready.Status == metav1.ConditionTrue:
		link.State, link.Since = "Ready", moment(ready.LastTransitionTime.Time)
		s.fine = counts
		return link.State
	}
	link.State, link.Since, link.Reason = "not Ready", moment(ready.LastTransitionTime.Time), ready.Reason
	link.Message += "; " + ready.Message
	s.blame("%s", ready.Message)
	if status.BoundReplicas+status.UnboundReplicas >= set.Spec.MaximumReplicas && status.UnboundReplicas < set.Spec.MinimumReplicas && status.CreatingReplicas == 0 {
		link.Next = "when a volume in use is released, or when you raise the maximum, as the command does"
		link.Command = kubectl("", "patch", "pvset", set.Name, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"maximumReplicas":%d}}`, status.BoundReplicas+set.Spec.MinimumReplicas))
		return link.State
	}
	if s.view.Maker != nil && s.provisionerUnusable(s.view.Maker, true) {
		return link.State // filler claims, if there are any, wait for the same
	}
	var parts []*story
	for _, c := range fillers {
		part := s.part(c.Object.Name)
		part.ofClaim(c)
		if part.cause != "" {
			part.cause = fmt.Sprintf("%s: %s", c.Object, part.cause)
		}
		parts = append(parts, part)
	}
	s.weigh(parts...)
	return link.State
}

// endingSet finds what keeps a pool that is being deleted.
func (s *story) endingSet(set *tarnv1.PersistentVolumeSet, link *Link, ready *metav1.Condition) {
	if slices.Contains(set.Finalizers, tarnv1.FinalizerPool) {
		link.Next = "when its spare volumes are being deleted"
		s.blame("its spare volumes have to be deleted first")
		if ready != nil && ready.Status != metav1.ConditionTrue && ready.Message != "" {
			s.blame("%s", ready.Message)
		}
		s.controllerSilent("", set.DeletionTimestamp.Time)
	}
	s.keepers(link.Object, "pvset", set, tarnv1.FinalizerPool, true)
}
