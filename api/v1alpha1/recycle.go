package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RecycleMethod is how a released volume is made fit for its next user.
type RecycleMethod string

// The methods, which are the values of AnnotationRecycle.
const (
	// RecycleFiles removes everything in the volume's file system.
	RecycleFiles RecycleMethod = "Files"
	// RecycleZero overwrites what was on the storage with zeros: all of a block volume;
	// of a file system each file, then what is free.
	RecycleZero RecycleMethod = "Zero"
	// RecycleDiscard tells the storage to forget what was on it.
	RecycleDiscard RecycleMethod = "Discard"
	// RecycleRecreate destroys the storage by the provisioner's deletion pod and makes it
	// anew by its creation pod, under the same handle. It is for volumes that a
	// PavProvisioner has made.
	RecycleRecreate RecycleMethod = "Recreate"
)

// StepRecycling is what the pod of volumeRecycling does.
const StepRecycling Step = "recycling"

// ConditionRecycled of a PavVolume is True when its volume was recycled the last time
// that was asked for, and False, with the reason, when that has failed.
const ConditionRecycled = "Recycled"

// StepScrubbing is the value of LabelStep on a scrub pod.
const StepScrubbing Step = "scrubbing"

// LabelScrub carries on a scrub claim and its pod the uid of the PersistentVolume
// they are for.
const LabelScrub = "tarn.dev/scrub"

// ScrubPrefix begins the name of a scrub claim; the uid of its volume ends it.
const ScrubPrefix = "scrub-"

// Annotations of PersistentVolumes that are recycled.
const (
	// AnnotationRecycle says, on a volume or its class, that a volume is to be recycled once it is released, and
	// how. Its reclaim policy must be Retain or Recycle.
	AnnotationRecycle = "tarn.dev/recycle"
	// AnnotationRecyclePolicy keeps the reclaim policy of a volume that is being
	// recycled; meanwhile it is Retain, so that nobody else touches it.
	AnnotationRecyclePolicy = "tarn.dev/recycle-policy"
	// AnnotationRecycleFor keeps, as NAMESPACE/NAME, the claim for which a volume that is
	// being recycled was reserved by hand: it is again, once it is clean.
	AnnotationRecycleFor = "tarn.dev/recycle-for"
	// AnnotationRecycled is the RecycleCertificate of the last time a volume was
	// recycled, as JSON.
	AnnotationRecycled = "tarn.dev/recycled"
	// AnnotationRecycleFailure is the RecycleFailure of a volume that could not be
	// recycled yet, as JSON.
	AnnotationRecycleFailure = "tarn.dev/recycle-failure"
)

// RecycleCertificate says what was done to a volume for its next user.
// +kubebuilder:object:generate=false
type RecycleCertificate struct {
	// Method is what was done.
	Method RecycleMethod `json:"method"`
	// Bytes is how much was overwritten or discarded; where a PavProvisioner did it, which
	// does not say, how large the volume is.
	Bytes int64 `json:"bytes,omitempty"`
	// Files is how many files and folders were removed.
	Files int64 `json:"files,omitempty"`
	// Found is how many names a volume that was made anew has in its folder.
	Found int64 `json:"found,omitempty"`
	// SampleSHA256 is the hash of what Tarn read back to verify it: offsets and content
	// of the sample, or the folders that should be empty with the names in them.
	SampleSHA256 string `json:"sampleSHA256"`
	// Provisioner names the PavProvisioner whose pods did it, empty for Tarn's own.
	Provisioner string `json:"provisioner,omitempty"`
	// Seconds is how long it took, reading back included.
	Seconds float64 `json:"seconds"`
	// Claim is the uid of the scrub claim, Image the image that did it, Time when its
	// pod had ended; set by the controller.
	Claim string       `json:"claim,omitempty"`
	Image string       `json:"image,omitempty"`
	Time  *metav1.Time `json:"time,omitempty"`
	// Freed is when the volume was made nobody's after that, for whoever gets it next; it
	// is taken off when that one has left the volume.
	Freed *metav1.Time `json:"freed,omitempty"`
	// Verifier is the image of Tarn that read the sample after a provisioner's pods.
	Verifier string `json:"verifier,omitempty"`
}

// RecycleFailure says why a volume could not be recycled.
// +kubebuilder:object:generate=false
type RecycleFailure struct {
	// Claim is the uid of the scrub claim of the last attempt.
	Claim string `json:"claim"`
	// Attempts is how many have failed one after the other.
	Attempts int `json:"attempts"`
	// Time is when the last one failed.
	Time metav1.Time `json:"time"`
	// Message says why.
	Message string `json:"message"`
}
