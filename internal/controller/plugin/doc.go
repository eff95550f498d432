// Package plugin drives the plugins that make volumes inside this process: it
// promises a volume in the claim, has it made, writes its PersistentVolume, and
// destroys it when it is released and its policy says so. It keeps the contract of an
// external provisioner, so any binder that knows that contract binds what it makes.
//
// It writes claims' finalizer tarn.dev/in-process with what belongs to it, and the
// PersistentVolumes of its plugins. Of phases it sets Failed alone, where a released volume
// could not be destroyed. It knows no plugin but by its interface and no other controller.
package plugin
