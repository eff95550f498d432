// Package podend tells from the container runtime that a pod has ended, one to two
// seconds before the kubelet tells the API server, and judges how, whoever has told of its
// containers' ends. It is a short cut: whoever listens
// must come to the same end without it. It is left where the kubelet may have ended the pod,
// as far as its Node shows that; what must not be wrong waits for the kubelet all the same.
//
// It must not know what is done about a pod's end.
package podend
