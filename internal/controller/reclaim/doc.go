// Package reclaim ends volumes: it decides by the reclaim policy what becomes of a
// released PersistentVolume, runs deletion pods, and undoes creations that failed or
// lost their claim.
//
// It writes PavVolumes from phase Undoing and Deleting on, takes the provisioner's
// finalizer off PersistentVolumes, and is the only part of Tarn that destroys
// storage. In the place of Kubernetes' binder it fails released volumes of policy Delete
// that nobody can end. It knows no other controller.
package reclaim
