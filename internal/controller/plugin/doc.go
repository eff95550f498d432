// Package plugin runs the plugins that make volumes inside this process. It records a promise
// in the claim, has the volume made and writes its PersistentVolume. When the volume is
// released, it destroys the volume if its policy is Delete. It keeps the contract of an
// external provisioner, so every binder that supports that contract can bind the volumes.
//
// The controller writes the finalizer tarn.dev/in-process of claims with its annotations, and
// the PersistentVolumes of its plugins. The only phase it sets is Failed, if a released volume
// could not be destroyed. It knows plugins only by their interface, and no other controller.
package plugin
