package spec

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
	// Replicas is how many pods run, 0 to MaxReplicas; 1 where the file does not say.
	Replicas int32
}

// Volume is one [[volumes]].
type Volume struct {
	// Name of the volume within the application, a DNS label.
	Name string
	// MountPath is the absolute, clean path of the folder it appears at.
	MountPath string
	// SizeGi is the size in GiB, MinSizeGi to MaxSizeGi.
	SizeGi int64
	// AccessMode says how many pods may use it at once.
	AccessMode AccessMode
	// StorageClass it is made by; empty means the class of its access mode.
	StorageClass string
	// PreserveOnDelete keeps the volume when the application is deleted.
	PreserveOnDelete bool
}

// AccessMode is how a volume may be used; a closed set.
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

// Bounds of what a file may ask for.
const (
	MinSizeGi   = 1
	MaxSizeGi   = 1000
	MaxReplicas = 1000
	// MaxBytes is how long a file may be, MaxVolumes how many volumes it may have.
	MaxBytes   = 256 << 10
	MaxVolumes = 64
	// MaxSecrets is how many variables an application may have from Secrets.
	MaxSecrets = 100
	// maxKeys is how many keys and list items it may have: 64 volumes have 400.
	maxKeys = 2000
	// LongestName is how many letters an application's name may have: the name of a claim
	// holds it, with a volume's.
	LongestName = 51
	// longestImage and longestPath are those of an App.
	longestImage, longestPath = 1024, 255
	// maxClaimName is how long paas-app-{app}-{volume} may be: it is used as a label.
	maxClaimName = 63
)

// ClaimName is the name of the claim of an application's volume.
func ClaimName(app, volume string) string { return "paas-app-" + app + "-" + volume }
