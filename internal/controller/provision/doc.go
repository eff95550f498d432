// Package provision creates volumes for claims. It writes a PavVolume, validates the claim, creates
// the volume, and writes the PersistentVolume. It keeps the contract of an external provisioner, so
// any binder that knows that contract binds its volumes.
//
// It writes PavVolumes up to phase Created, and PersistentVolumes for claims. To undo a creation
// that began, it hands the PavVolume to reclaim by phase Undoing. It knows no other controller.
package provision
