// Package protect keeps claims that a pod uses, and volumes that a claim is bound to,
// from vanishing when they are deleted: it puts Kubernetes' finalizers on what
// admission has missed, and takes them off once nothing uses the object any more.
//
// Claims are looked at by namespace, so that the one list of pods that must be read
// before anything is let go serves all claims that wait for it.
//
// It binds, releases and destroys nothing, and it does not know who made a volume.
package protect
