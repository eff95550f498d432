// Package provision makes volumes for claims: PavVolume written, claim validated,
// volume created, PersistentVolume written. It keeps the contract of an external
// provisioner, so any binder that knows that contract binds what it makes.
//
// It writes PavVolumes up to phase Created and PersistentVolumes for claims. What
// was begun and must go again is handed to reclaim by the phase Undoing. It knows no
// other controller.
package provision
