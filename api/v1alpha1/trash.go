package v1alpha1

// How long the data of a released volume is kept, and what the trash notes on a
// PersistentVolume.
const (
	// AnnotationRetention says how long a volume stays in the trash after its claim has
	// gone: a Go duration, days allowed as in 30d or 1d12h; 0s for not at all. On a
	// PersistentVolume, a PersistentVolumeSet or a StorageClass, where it may be a
	// parameter of that name too; the first of these that says something counts.
	AnnotationRetention = "tarn.dev/retention"
	// AnnotationReclaimPolicy is the reclaim policy that a volume has once its retention
	// is over. Until then spec.persistentVolumeReclaimPolicy is Retain, so that nothing
	// destroys the volume, whoever its provisioner is.
	AnnotationReclaimPolicy = "tarn.dev/reclaim-policy"
	// AnnotationHeldFor is the retention that was in force when it was last looked at: it
	// counts where what said it has gone since.
	AnnotationHeldFor = "tarn.dev/held-for"
	// AnnotationClaim is the claim of a volume as JSON, with which it is made anew:
	// labels, annotations and spec.
	AnnotationClaim = "tarn.dev/claim"
	// AnnotationUndeleted is on a namespace that tarn undelete has created: the uid of a
	// volume for which it did. Users of the namespace do not know it.
	AnnotationUndeleted = "tarn.dev/undeleted"
	// AnnotationTrashedUntil is until when a released volume waits in the trash, RFC 3339.
	// Who changes it changes the time.
	AnnotationTrashedUntil = "tarn.dev/trashed-until"
	// LabelTrashedUntil shows the same time to kubectl get -L, in the characters a label
	// may have. Only volumes that are in the trash have it.
	LabelTrashedUntil = "tarn.dev/trashed-until"
)
