package kube

import (
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// NewManager gives a manager whose client logs each write and whose recorders log each Event.
//
// Its controllers have client-go's work queue, not the priority queue that is the default of
// controller-runtime 0.24. That queue hands an object over while it holds its lock. If the waiting
// worker has left because the queue was shut down, this blocks for ever. The process then neither
// ends nor releases its lease within its grace period
// (https://github.com/kubernetes-sigs/controller-runtime/issues/3538). Tarn uses no priorities.
func NewManager(config *rest.Config, options ctrl.Options) (ctrl.Manager, error) {
	options.Controller.UsePriorityQueue = ptr.To(false)
	options.NewClient = logging(options.NewClient)
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return nil, err
	}
	return loggingManager{mgr}, nil
}
