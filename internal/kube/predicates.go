package kube

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
)

// Later passes all but what is there as the process starts. It is for objects that wake
// others, of which each comes by itself then: to find them would take a list of all of them,
// of ten thousand volumes 6 MiB.
func Later() predicate.Predicate {
	return predicate.Funcs{CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList }}
}

// ProvisionerJudged passes the updates of a PavProvisioner after which it may be used
// otherwise than before: it was changed, accepted or not, or is being deleted. The
// counts in its status change with every volume and wake nobody. As with Later, neither
// does one that is there as the process starts.
func ProvisionerJudged() predicate.Predicate {
	return predicate.And(Later(), predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		old, ok := e.ObjectOld.(*pavv1.PavProvisioner)
		now, ok2 := e.ObjectNew.(*pavv1.PavProvisioner)
		if !ok || !ok2 {
			return true
		}
		return old.Generation != now.Generation || (old.DeletionTimestamp == nil) != (now.DeletionTimestamp == nil) ||
			!equality.Semantic.DeepEqual(accepted(old), accepted(now))
	}})
}

func accepted(p *pavv1.PavProvisioner) any {
	return meta.FindStatusCondition(p.Status.Conditions, pavv1.ConditionAccepted)
}
