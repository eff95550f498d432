// Package protect keeps claims that a pod uses, and volumes that a claim is bound to, from being
// deleted too early. It adds Kubernetes' finalizers where admission missed them, and removes them
// once nothing uses the object any more.
//
// Claims are reconciled by namespace. The live list of pods that must precede the removal of a
// finalizer then serves all claims that wait for it.
//
// It binds, releases and destroys nothing, and does not know who made a volume.
package protect
