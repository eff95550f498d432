// Package results serves the inline volumes of Tarn's own CSI driver, pav.tarn.dev: the /pav of a
// pod that runs to its end. It stores what the pod leaves there on the pod, as annotation
// tarn.dev/result, before it removes the directory.
//
//	publish:   record and directory made, directory mounted at the target
//	the pod ends; the container runtime reports it at once, if the agent has its socket
//	           -> result with exit codes stored, and the controller continues
//	unpublish: the kubelet is done with the pod
//	           -> result stored if it is not yet; unmounted, directory removed
//
// It must not know what a result means, and knows nothing of PavProvisioners.
package results
