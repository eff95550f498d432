package kube

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
)

// Later passes everything but the objects that exist when the process starts. It is for objects
// whose events enqueue other objects. At the start those come by themselves, and finding them would
// list all of them: 6 MiB for ten thousand volumes.
func Later() predicate.Predicate {
	return predicate.Funcs{CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList }}
}

// ProvisionerJudged passes the updates of a PavProvisioner that may change how it is used: its spec
// changed, it was accepted or rejected, or it is being deleted. The counts in its status change
// with every volume and pass nothing. As with Later, provisioners that exist when the process
// starts do not pass.
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
