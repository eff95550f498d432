// Package podend learns from the container runtime that a pod has ended, and judges how. That is
// one to two seconds before the kubelet tells the API server. It judges the ends of containers from
// any source.
//
// It is only a short cut: a listener must reach the same result without it. It says nothing if, as
// far as the Node shows, the kubelet may have ended the pod. A decision that must not be wrong
// still waits for the kubelet.
//
// It must not know what happens after a pod's end.
package podend
