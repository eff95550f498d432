// Package reclaim deletes volumes. It applies the reclaim policy to a released PersistentVolume,
// runs deletion pods, and undoes creations that failed or lost their claim.
//
// It writes PavVolumes from phases Undoing and Deleting on, and removes the provisioner's finalizer
// from PersistentVolumes. No other part of Tarn destroys storage. In place of Kubernetes' binder it
// sets a released volume of policy Delete to Failed if no provisioner can delete it. It knows no
// other controller.
package reclaim
