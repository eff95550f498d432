// Package plugin defines a provisioner that needs no pod: it makes, deletes and scrubs volumes
// inside the process of the controllers. Each of the three is a small interface. Package plugintest
// holds the suite that every plugin must pass.
//
// A plugin keeps nothing in memory that must survive a crash. Every call may be repeated with the
// same arguments and must end in the same state. A plugin knows no client, no claim and no policy:
// the caller has decided that a volume may be deleted.
package plugin

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
)

// Plugin is one in-process provisioner.
type Plugin struct {
	// Name is its name in classes.
	Name string
	// Node is the node its volumes lie on; empty if all nodes can reach them. A plugin of one node
	// works only in a process on that node.
	Node string
	// Place is an ID of the storage its volumes lie in. Another storage at the same address has
	// another ID: a path does not tell one disk from another. Place is recorded with every volume.
	// It is empty if the storage cannot be exchanged.
	Place string

	Creator Creator
	// Deleter is nil if volumes cannot be deleted. Their deletion is then rejected.
	Deleter Deleter
	// Recycler is nil if volumes cannot be scrubbed.
	Recycler Recycler
}

// Request is a volume to be made.
type Request struct {
	// Name is the volume's name, a DNS subdomain: the same name is the same volume.
	Name string
	// Bytes is the least capacity.
	Bytes int64
	// Mode is the kind of volume wanted: files, or a raw block device.
	Mode        corev1.PersistentVolumeMode
	AccessModes []corev1.PersistentVolumeAccessMode
	// Parameters are those of the class.
	Parameters map[string]string
}

// Asset is a volume that was made.
type Asset struct {
	// Source is the volume source for the kubelet.
	Source corev1.PersistentVolumeSource
	// Bytes is its capacity; 0 means the capacity asked for. Less than that is a failure.
	Bytes int64
}

// Volume is a volume that may have been made.
type Volume struct {
	// Name is the name in its Request.
	Name string
	// Source is the source in its PersistentVolume. If nil, the call is about whatever was made
	// under the name. A source that Create does not give for the name is rejected, and nothing is
	// touched.
	Source *corev1.PersistentVolumeSource
	// Place is the Place of the plugin that made it; empty if unknown. A volume that the plugin
	// misses, see Creator, is rejected, and nothing is touched.
	Place string
}

// Creator makes volumes.
type Creator interface {
	// Check says why the plugin can never serve a request. The error names the field, its value and
	// the remedy. Check only computes.
	Check(r Request) error
	// Create makes the volume, or finds it. An existing volume stays as it is, with its data. After
	// an error a part of the volume may exist, which Delete removes.
	Create(ctx context.Context, r Request) (Asset, error)
	// Misses is an error if a volume should lie where Create makes new ones, but another storage is
	// there. The error names both storages and the remedy. It is nil for a volume that lies there
	// or elsewhere, and if its place is unknown. Misses only computes.
	Misses(v Volume) error
}

// Deleter deletes volumes.
type Deleter interface {
	// Delete removes a volume with its data. A volume that does not exist is no error. When the
	// context ends, Delete stops with the context's error, and the next call continues. ErrInUse
	// means that a user must release the volume first.
	Delete(ctx context.Context, v Volume) error
}

// Recycler empties volumes for their next user.
type Recycler interface {
	// Recycle leaves the volume as Create gives it, without any of its data. It has the same errors
	// as Delete.
	Recycle(ctx context.Context, v Volume) error
}

// ErrInUse is wrapped by an error that names the users of a volume.
var ErrInUse = errors.New("the volume is still in use")
