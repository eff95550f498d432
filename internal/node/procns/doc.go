// Package procns finds the containers of pods among the machine's processes, and sees through the
// kernel when one ends. It exchanges mounts inside running containers. A container has its own copy
// of the kubelet's mounts from its start, and no mount outside changes that copy any more.
//
// It identifies containers by the cgroups into which the kubelet puts a pod's processes. It must
// not know of volumes, stages or the API.
package procns
