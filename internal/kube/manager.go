package kube

import (
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// NewManager is a manager whose controllers have client-go's work queue. The priority queue
// that controller-runtime 0.24 gives them otherwise hands an object over while it holds its
// lock, and for ever if the worker that waited has left because the queue was shut down: then
// the process does not end, nor gives its lease back, within its grace period
// (https://github.com/kubernetes-sigs/controller-runtime/issues/3538). Nothing here asks for
// priorities. Its client logs each write, its recorders each Event.
func NewManager(config *rest.Config, options ctrl.Options) (ctrl.Manager, error) {
	options.Controller.UsePriorityQueue = ptr.To(false)
	options.NewClient = logging(options.NewClient)
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return nil, err
	}
	return loggingManager{mgr}, nil
}
