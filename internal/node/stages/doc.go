// Package stages makes volumes of PavProvisioners available on this node: the
// kubelet's publish and unpublish calls on one side, the node's half of the PavStage
// protocol (see api/v1alpha1.PavStage) on the other. The two meet in the PavStage
// object and wake each other by its events, so that a crash at any line loses nothing.
//
//	publish ----> PavStage created, target recorded ----> wait ----> bind-mount
//	                    |                                   ^
//	                    v                                   |
//	worker        folder made, /pav/ready watched ----> Staged (or Failed, deleted)
//	                    |
//	unpublish --> target unmounted, last one: PavStage deleted, wait until it is gone
//	                    |
//	worker        pod Stopped: all unmounted ----> Unmounted
//	              pod Unstaged: folder removed, finalizer off
//
// It never creates, changes or deletes a pod and must not know how one is made of a
// template.
package stages
