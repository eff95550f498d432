package pool

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
)

// Reasons of condition Followed of a PersistentVolumeSetScaler. AtMaximum is one too: the set
// has reached its maximumReplicas.
const (
	// reasonFollowed: the set has the number of replicas that the scaler asks for.
	reasonFollowed = "Followed"
	// reasonNotNamed: spec.scaler of the set does not name this scaler. An administrator has to
	// set it.
	reasonNotNamed = "NotNamedBySet"
)

// concernsScaler reports whether a set and a scaler name each other in at least one direction.
func concernsScaler(set *tarnv1.PersistentVolumeSet, o client.Object) bool {
	scaler, ok := o.(*tarnv1.PersistentVolumeSetScaler)
	return ok && (scaler.Spec.PersistentVolumeSet == set.Name || isNamed(set, scaler))
}

// isNamed reports whether a set names a scaler.
func isNamed(set *tarnv1.PersistentVolumeSet, scaler *tarnv1.PersistentVolumeSetScaler) bool {
	ref := set.Spec.Scaler
	return ref != nil && ref.Namespace == scaler.Namespace && ref.Name == scaler.Name
}

// scaler is the scaler that the set follows: they name each other; nil for none.
func (v *View) scaler() *tarnv1.PersistentVolumeSetScaler {
	for i := range v.Scalers {
		if s := &v.Scalers[i]; s.Spec.PersistentVolumeSet == v.Set.Name && isNamed(v.Set, s) && s.DeletionTimestamp == nil {
			return s
		}
	}
	return nil
}

// follows returns the minimum that the set should have; without a scaler, the present one.
func follows(v *View) int32 {
	scaler := v.scaler()
	if scaler == nil {
		return v.Set.Spec.MinimumReplicas
	}
	return min(scaler.Spec.Replicas, v.Set.Spec.MaximumReplicas)
}

// scalerText describes a scaler that the set names in vain.
func scalerText(v *View) string {
	if ref := v.Set.Spec.Scaler; ref != nil && v.scaler() == nil {
		return fmt.Sprintf("; spec.scaler names PersistentVolumeSetScaler %s/%s, which does not exist or does not name this set", ref.Namespace, ref.Name)
	}
	return ""
}

// reportScalers writes the changed status of the scalers that name the set.
func reportScalers(v *View, status tarnv1.PersistentVolumeSetStatus, now time.Time) []action.Action {
	var actions []action.Action
	for i := range v.Scalers {
		s := &v.Scalers[i]
		if s.Spec.PersistentVolumeSet != v.Set.Name {
			continue // the reconcile of that set reports it
		}
		to := s.DeepCopy()
		to.Status.Replicas, to.Status.Selector = status.UnboundReplicas, status.Selector
		c := metav1.Condition{Type: tarnv1.ConditionFollowed, Status: metav1.ConditionTrue, Reason: reasonFollowed, ObservedGeneration: s.Generation, LastTransitionTime: metav1.NewTime(now)}
		switch {
		case !isNamed(v.Set, s):
			c.Status, c.Reason = metav1.ConditionFalse, reasonNotNamed
			c.Message = fmt.Sprintf("spec.scaler of PersistentVolumeSet %s does not name this scaler; an administrator must set it to {namespace: %s, name: %s}", v.Set.Name, s.Namespace, s.Name)
		case s.Spec.Replicas > v.Set.Spec.MaximumReplicas:
			c.Reason = reasonAtMaximum
			c.Message = fmt.Sprintf("maximumReplicas of PersistentVolumeSet %s is %d", v.Set.Name, v.Set.Spec.MaximumReplicas)
		}
		meta.SetStatusCondition(&to.Status.Conditions, c)
		if !equality.Semantic.DeepEqual(to.Status, s.Status) {
			actions = append(actions, action.PatchStatus{From: s, To: to})
		}
	}
	return actions
}
