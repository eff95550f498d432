package v1alpha1

const (
	// AnnotationAutoGrow makes a claim grow when its file system fills up. It is set on the claim
	// or on its StorageClass, as in "at=80% by=20% max=100Gi". That of the claim overrides that of
	// the class, and "off" on the claim disables it.
	AnnotationAutoGrow = "tarn.dev/auto-grow"

	// AnnotationAutoGrown is Tarn's record of the last time that a claim grew by itself, as in
	// "2026-11-29T18:00:05Z from=10Gi to=12Gi reading=2026-11-29T17:59:31Z". No step uses a reading
	// up to that time.
	AnnotationAutoGrown = "tarn.dev/auto-grown"
)
