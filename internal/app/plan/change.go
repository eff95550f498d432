package plan

import (
	corev1 "k8s.io/api/core/v1"

	appspec "tarn.dev/tarn/internal/app/spec"
)

// Scale decides whether an application may have a number of pods. The access modes of the live
// claims decide; a volume without a claim counts by the spec. Zero and one are always allowed.
func Scale(w World, replicas int32) *Error {
	if err := ScaleBounds(replicas); err != nil {
		return err
	}
	switch {
	case replicas <= 1:
		return nil
	case w.App.Spec.Image == "":
		return Errorf(Conflict, "app '%s' has nothing deployed to scale: deploy it first", w.App.Name)
	}
	for _, v := range w.App.Spec.Volumes {
		live := v.AccessMode
		if claim, ours := w.claim(v.Name); ours {
			live = ModeOf(claim)
		}
		if Single(live) {
			return cannotScale(replicas, v.Name, live)
		}
	}
	return nil
}

// ScaleBounds rejects a number of pods that no application may have.
func ScaleBounds(replicas int32) *Error {
	if replicas < 0 || replicas > appspec.MaxReplicas {
		return Errorf(Invalid, "replicas must be between 0 and %d", appspec.MaxReplicas)
	}
	return nil
}

// cannotScale returns the error in the words that the API's contract prescribes.
func cannotScale(replicas int32, volume string, mode corev1.PersistentVolumeAccessMode) *Error {
	return Errorf(Conflict, "cannot scale to %d replicas: volume '%s' is %s (max 1 replica). Re-create the volume with accessMode 'ReadWriteMany' to scale out.", replicas, volume, mode)
}

// ResizeBounds rejects a size that no volume may have.
func ResizeBounds(sizeGi int64) *Error {
	if sizeGi < appspec.MinSizeGi || sizeGi > appspec.MaxSizeGi {
		return Errorf(Invalid, "new_size_gi must be between %d and %d", appspec.MinSizeGi, appspec.MaxSizeGi)
	}
	return nil
}

// Resize decides whether a volume may be expanded to a size in GiB, by its live claim and that
// claim's class.
func Resize(w World, name string, sizeGi int64) (Resized, *Error) {
	if err := ResizeBounds(sizeGi); err != nil {
		return Resized{}, err
	}
	wanted := w.wanted(name)
	claim, ours := w.claim(name)
	switch {
	case wanted == nil:
		return Resized{}, Errorf(NotFound, "volume '%s' not found on app '%s'", name, w.App.Name)
	case claim == nil:
		return Resized{}, Errorf(Conflict, "volume '%s' is not created yet: try again when it is Bound", name)
	case !ours:
		return Resized{}, Errorf(Conflict, "claim '%s' does not belong to app '%s', so it is not touched", claim.Name, w.App.Name)
	case !claim.DeletionTimestamp.IsZero():
		return Resized{}, Errorf(Conflict, "volume '%s' is being deleted", name)
	case sizeGi*gi <= current(claim) || sizeGi <= wanted.SizeGi && current(claim) < wanted.SizeGi*gi && !w.refused():
		return Resized{}, Errorf(Invalid, "size must be strictly greater than current size (no shrink)")
	}
	if err := w.Expandable(claim, name); err != nil {
		return Resized{}, err
	}
	if claim.Status.Phase != corev1.ClaimBound {
		return Resized{}, Errorf(Conflict, "volume '%s' is %s: try again when it is Bound", name, claim.Status.Phase)
	}
	return Resized{Name: name, ClaimName: claim.Name, SizeGi: sizeGi, Status: VolumeResizing, AccessMode: string(ModeOf(claim))}, nil
}

// SizeGi returns the size in GiB below which a volume can never shrink, by its live claim. It is 0
// without a claim.
func (w World) SizeGi(name string) int64 {
	claim, ours := w.claim(name)
	if !ours {
		return 0
	}
	return min(inGi(current(claim)), appspec.MaxSizeGi)
}

// Expandable rejects an expansion that the live class of a claim does not allow.
func (w World) Expandable(claim *corev1.PersistentVolumeClaim, name string) *Error {
	class := w.Classes[ClassOf(claim)]
	switch {
	case ClassOf(claim) == "":
		return Errorf(Invalid, "volume '%s' has no storage class, so it cannot be expanded", name)
	case w.Hidden[ClassOf(claim)]:
		return nil
	case class == nil:
		return Errorf(Invalid, "storage class '%s' does not exist, so volume '%s' cannot be expanded", ClassOf(claim), name)
	case class.AllowVolumeExpansion == nil || !*class.AllowVolumeExpansion:
		return Errorf(Invalid, "storage class '%s' does not allow expansion", class.Name)
	}
	return nil
}

// Delete says what happens to an application's claims when the application is deleted. A claim with
// the annotation to be preserved is preserved. This holds even if a spec that is not applied yet
// says otherwise.
func Delete(w World) Deletion {
	deletion := Deletion{ID: w.App.Name, Status: Deleting, Preserved: []string{}, Deleted: []string{}}
	add := func(claim *corev1.PersistentVolumeClaim, preserve bool) {
		if preserve {
			deletion.Preserved = append(deletion.Preserved, claim.Name)
		} else {
			deletion.Deleted = append(deletion.Deleted, claim.Name)
		}
	}
	for _, v := range w.App.Spec.Volumes {
		if claim, ours := w.claim(v.Name); ours {
			add(claim, v.PreserveOnDelete || preserved(claim))
		}
	}
	for _, claim := range w.unmounted() {
		add(claim, w.outlives(claim))
	}
	return deletion
}
