// Package e2e tests Tarn from outside, on a cluster with a real kubelet. It knows
// KUBECONFIG, the resources of package api, and, where the cluster is
// tarn-cluster's on this machine, how to kill a component and where the kubelet
// keeps its folders; it must not know how Tarn is made.
//
// Every test is a case: objects with a name of their own, in a namespace of their
// own. When it ends, whatever it left undone is deleted, and then the case proves
// that nothing of it is left: no object, no pod, no mount, no folder. A case that
// fails tells its story first.
//
// The tests have the build tag e2e; `make e2e` runs them.
package e2e
