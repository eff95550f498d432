// Package volume holds the words of the field as pure functions: sizes, access
// modes, what a claim or a PersistentVolume is at this moment.
//
// Glossary: a claim is a PersistentVolumeClaim, a volume a PersistentVolume, a class
// a StorageClass. A record is a PavVolume, a stage a PavStage. A handle is the name
// a provisioner knows its volume by.
//
// It knows no client, no context and no clock.
package volume
