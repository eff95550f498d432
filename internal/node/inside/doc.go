// Package inside exchanges mounts inside running containers: a container has a copy
// of the kubelet's mounts from when it was started, which nothing done outside can
// change any more.
//
// It knows containers by the cgroups the kubelet puts a pod's processes into. It must
// not know of volumes, stages or the API.
package inside
