// Package plugin says what a provisioner is that needs no pod: it makes, deletes and
// scrubs volumes inside the process of the controllers. Each of the three is a small
// interface; package plugintest holds the suite every plugin must pass.
//
// A plugin keeps nothing in memory that must survive a crash: every call may come
// again, with the same arguments, and ends in the same state. It knows no client, no
// claim and no policy; whether a volume may go is decided before it is asked.
package plugin

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
)

// Plugin is one provisioner of this kind.
type Plugin struct {
	// Name is what classes call it.
	Name string
	// Node is the node its volumes lie on; empty where they are reached from all. A
	// plugin of one node can only work in a process that runs there.
	Node string
	// Place is an id of the storage its volumes lie in, which another that may be found at
	// the same address does not have: a path tells no disk from another. It is written down
	// with every volume. Empty where that cannot happen.
	Place string

	Creator Creator
	// Deleter is nil where volumes cannot be deleted; their deletion is refused then.
	Deleter Deleter
	// Recycler is nil where volumes cannot be scrubbed.
	Recycler Recycler
}

// Request is a volume to be made.
type Request struct {
	// Name is the volume's, a DNS subdomain: the same name is the same volume.
	Name string
	// Bytes is the least it must hold.
	Bytes int64
	// Mode is what it is to be: files, or a raw block device.
	Mode        corev1.PersistentVolumeMode
	AccessModes []corev1.PersistentVolumeAccessMode
	// Parameters are the class'.
	Parameters map[string]string
}

// Asset is a volume that was made.
type Asset struct {
	// Source is how the kubelet reaches it.
	Source corev1.PersistentVolumeSource
	// Bytes is what it holds, 0 for what was asked for. Less than that is a failure.
	Bytes int64
}

// Volume is a volume that may have been made.
type Volume struct {
	// Name is that of its Request.
	Name string
	// Source is what stands in its PersistentVolume; nil where there is none, and
	// whatever was made under the name is meant. A source that is not what Create gives
	// for the name is refused, and nothing is touched.
	Source *corev1.PersistentVolumeSource
	// Place is that of the plugin which made it; empty where that is not known. One that
	// the plugin misses, see Creator, is refused, and nothing is touched.
	Place string
}

// Creator makes volumes.
type Creator interface {
	// Check says what of a request the plugin can never serve: the error names the
	// field, its value and the remedy. It only computes.
	Check(r Request) error
	// Create makes the volume, or finds it made. What an earlier call has made it
	// leaves as it is, with its data. An error may leave a part behind, which Delete
	// removes.
	Create(ctx context.Context, r Request) (Asset, error)
	// Misses says that a volume which was made should be found where Create makes the
	// next, and that another storage is there instead of its own: the error names both and
	// the remedy. It is nil for what lies there, for what is reached elsewhere, and where
	// the place is not known. It only computes.
	Misses(v Volume) error
}

// Deleter deletes volumes.
type Deleter interface {
	// Delete removes a volume with its data; one that is gone, or never was, is no
	// error. Work that outlasts the context stops with the context's error, and the
	// next call goes on. ErrInUse says that somebody must let go first.
	Delete(ctx context.Context, v Volume) error
}

// Recycler empties volumes for their next user.
type Recycler interface {
	// Recycle leaves the volume as Create gives it, without any of its data. Its errors
	// are those of Delete.
	Recycle(ctx context.Context, v Volume) error
}

// ErrInUse is wrapped by an error that says what still uses a volume.
var ErrInUse = errors.New("the volume is still in use")
