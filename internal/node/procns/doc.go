// Package procns finds the containers of pods among the machine's processes. It exchanges
// mounts inside running ones: a container has a copy of the kubelet's mounts from when it
// was started, which nothing done outside can change any more. And it hears from the kernel
// that one has ended.
//
// It knows containers by the cgroups the kubelet puts a pod's processes into. It must
// not know of volumes, stages or the API.
package procns
