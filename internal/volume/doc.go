// Package volume holds the rules for claims and volumes as pure functions: sizes, access modes, and
// the present state of a claim or a PersistentVolume.
//
// Glossary: a claim is a PersistentVolumeClaim, a volume a PersistentVolume, a class a
// StorageClass. A record is a PavVolume, a stage a PavStage. A handle is the provisioner's name for
// its volume.
//
// The package knows no client, no context and no clock.
package volume
