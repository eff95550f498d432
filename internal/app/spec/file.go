package spec

import (
	"fmt"
	"strings"
)

// File is a paas.toml.
type File struct {
	App     App
	Volumes []Volume
}

// App is section [app]: what runs.
type App struct {
	// Name of the application, a DNS label; empty leaves it to the caller.
	Name string
	// Image of its container; never empty.
	Image string
	// Command and Args replace the image's own; nil keeps them.
	Command, Args []string
	// Port it listens on, 1 to 65535; 0 means none.
	Port int32
	// Env are environment variables.
	Env map[string]string
	// Secrets are environment variables from Secrets, each as SECRET/KEY.
	Secrets map[string]string
	// Replicas is how many pods run, 0 to MaxReplicas. The default is 1.
	Replicas int32
}

// Volume is one [[volumes]] table.
type Volume struct {
	// Name of the volume within the application, a DNS label.
	Name string
	// MountPath is the absolute, clean path of the directory at which the volume is mounted.
	MountPath string
	// SizeGi is the size in GiB, MinSizeGi to MaxSizeGi.
	SizeGi int64
	// AccessMode says how many pods may use it at once.
	AccessMode AccessMode
	// StorageClass that creates the volume; empty means the default class of its access mode.
	StorageClass string
	// PreserveOnDelete keeps the volume when the application is deleted.
	PreserveOnDelete bool
}

// AccessMode says how many pods may use a volume; a closed set.
type AccessMode string

// The access modes of paas.toml.
const (
	// ReadWriteOnce: by the pods of one node, so by one replica.
	ReadWriteOnce AccessMode = "rwo"
	// ReadWriteMany: by any number of replicas.
	ReadWriteMany AccessMode = "rwx"
)

// DefaultClasses are the storage classes of volumes that name none.
var DefaultClasses = map[AccessMode]string{
	ReadWriteOnce: "ovh-csi-rbd",
	ReadWriteMany: "ovh-csi-nfs",
}

// Limits of a file.
const (
	MinSizeGi   = 1
	MaxSizeGi   = 1000
	MaxReplicas = 1000
	// MaxBytes is the longest file, in bytes. MaxVolumes is the number of volumes that it may have.
	MaxBytes   = 256 << 10
	MaxVolumes = 64
	// MaxSecrets is how many variables an application may have from Secrets.
	MaxSecrets = 100
	// maxKeys is how many keys and list items a file may have: 64 volumes have 400.
	maxKeys = 2000
	// LongestName is the longest name of an application, in characters. The names of its claims
	// contain it, together with a volume's name.
	LongestName = 51
	// longestImage and longestPath are limits in the schema of App.
	longestImage, longestPath = 1024, 255
	// maxClaimName is the longest paas-app-{app}-{volume}, because it is used as a label.
	maxClaimName = 63
)

// ClaimName returns the name of the claim of an application's volume.
func ClaimName(app, volume string) string { return "paas-app-" + app + "-" + volume }

// Problem is one error or warning about a file.
type Problem struct {
	// Line and Column of the text that it is about, from 1. They are 0 for JSON, which has no
	// lines.
	Line, Column int
	// Key it is about, as volumes[1].size; empty for the file as a whole.
	Key string
	// Message says what is wrong and what to write instead.
	Message string
}

// String returns a problem as compilers print it, without the name of the file.
func (p Problem) String() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "%d:%d: ", p.Line, p.Column)
	}
	if p.Key != "" {
		fmt.Fprintf(&b, "%s: ", p.Key)
	}
	b.WriteString(p.Message)
	return b.String()
}

// Problems are all problems of a file, in its order.
type Problems []Problem

// Error returns each problem on a line of its own.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}
