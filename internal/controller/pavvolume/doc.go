// Package pavvolume is the controller of a PavVolume's life. It writes a PavVolume for a claim,
// creates the volume and its PersistentVolume, applies the reclaim policy when the claim is gone,
// and undoes creations that failed or lost their claim. Package expand makes volumes larger.
//
// It keeps the contract of an external provisioner, so any binder that knows that contract binds
// its volumes. Nothing else in Tarn destroys storage that the deletion section describes. In place
// of Kubernetes' binder it sets a released volume of policy Delete to Failed if no provisioner can
// delete it.
//
// plan.go draws the phases. It knows no other controller.
package pavvolume
