// Package stages makes volumes of PavProvisioners available on this node. It serves the kubelet's
// publish and unpublish calls, and does the node's part of the PavStage protocol (see
// api/v1alpha1.PavStage). The two sides share only the PavStage object and enqueue each other
// through its events, so a crash at any line loses nothing.
//
//	publish ----> PavStage created, target recorded ----> wait ----> bind-mount
//	                    |                                   ^
//	                    v                                   |
//	worker        directory made, /pav/ready watched ----> Staged (or Failed, deleted)
//	                    |
//	unpublish --> target unmounted, last one: PavStage deleted, wait until it is gone
//	                    |
//	worker        pod Stopped: all unmounted ----> Unmounted
//	              pod Unstaged: directory removed, finalizer removed
//
// The worker gathers, plans and applies, as docs/design/0030-one-shape.md describes. Its actions are
// its own: most are steps in the file system. A write to a PavStage that no longer exists must be
// noticed, because the directory made for the stage is removed then.
//
// The package never creates, changes or deletes a pod, and must not know how a template makes one.
package stages
