// Package results serves the inline volumes of Tarn's own CSI driver, pav.tarn.dev:
// the /pav of a pod that runs to its end. What the pod leaves there is stored on the
// pod, as annotation tarn.dev/result, before its folder may go.
//
//	publish:   record and folder made, folder mounted at the target
//	the pod ends; the container runtime tells it at once, if it is given to us
//	           -> result with exit codes stored, and the controller goes on
//	unpublish: the kubelet is done with the pod
//	           -> result stored if it is not yet; unmounted, folder removed
//
// It must not know what a result means, and nothing of PavProvisioners.
package results
