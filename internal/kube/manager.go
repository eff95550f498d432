// Package kube is the API machinery that every part of Tarn needs: the scheme, indexes, Events and
// the translation of errors. It contains no policy and knows no controller.
package kube

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
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

// Scheme knows every kind Tarn reads or writes.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(apiextensionsv1.AddToScheme(s))
	utilruntime.Must(pavv1.AddToScheme(s))
	utilruntime.Must(tarnv1.AddToScheme(s))
	return s
}
