// Package e2e tests Tarn from outside, on a cluster with a real kubelet. It knows KUBECONFIG and
// the resources of package api. Where tarn-cluster runs the cluster on this machine, it also knows
// how to kill a component and where the kubelet keeps its directories. It must not know how Tarn is
// made.
//
// Every test is a case: objects with a name of their own, in a namespace of their own. When it
// ends, it deletes the remaining objects, and then proves that nothing is left: no object, pod,
// mount or directory. A failing case first logs its story.
//
// The tests have the build tag e2e; `make e2e` runs them.
package e2e
