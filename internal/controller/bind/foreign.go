package bind

import (
	corev1 "k8s.io/api/core/v1"
)

// recycleFailed is that of a volume which Tarn's recycling has called Failed. It
// calls it Released again when it is not to be recycled after all.
const recycleFailed = "VolumeFailedRecycle"

// foreignWrite is a change of phase that only binders make. One that we did not make
// tells of another binder, as nobody else has reason to write those phases.
type foreignWrite struct {
	what, name, phase, version string
	// volume is the one that our own worker would hold while writing this.
	volume string
}

// claimWrite gives the write by which a claim was called Bound, if had became now by
// one.
func claimWrite(had, now *corev1.PersistentVolumeClaim) (foreignWrite, bool) {
	if had == nil || had.UID != now.UID || had.Status.Phase == now.Status.Phase || now.Status.Phase != corev1.ClaimBound || !newer(had, now) {
		return foreignWrite{}, false
	}
	return foreignWrite{what: "claim", name: keyOf(now).String(), phase: string(now.Status.Phase), version: now.ResourceVersion, volume: now.Spec.VolumeName}, true
}

// volumeWrite gives the write by which a volume came to its phase.
func volumeWrite(had, now *corev1.PersistentVolume) (foreignWrite, bool) {
	if had == nil || had.UID != now.UID || had.Status.Phase == now.Status.Phase || !newer(had, now) {
		return foreignWrite{}, false
	}
	if had.Status.Phase == corev1.VolumeFailed && had.Status.Reason == recycleFailed && now.Status.Phase == corev1.VolumeReleased {
		return foreignWrite{}, false
	}
	switch now.Status.Phase {
	case corev1.VolumeAvailable, corev1.VolumeBound, corev1.VolumeReleased:
		return foreignWrite{what: "volume", name: now.Name, phase: string(now.Status.Phase), version: now.ResourceVersion, volume: now.Name}, true
	}
	return foreignWrite{}, false
}

// notice takes note of a write seen on a watch. While a worker holds the volume it may
// be the worker's own, the answer to which is still on its way.
func (b *books) notice(w foreignWrite, found bool) {
	switch h := b.held[w.volume]; {
	case !found, b.doubtful[w.volume]:
	case h != nil:
		h.foreign = append(h.foreign, w)
	default:
		b.listener.foreign(w)
	}
}

// own says that a write seen while a volume was held was our own.
func (b *books) own(volume, version string) {
	h := b.held[volume]
	if h == nil {
		return
	}
	for i := range h.foreign {
		if h.foreign[i].version == version {
			h.foreign = append(h.foreign[:i], h.foreign[i+1:]...)
			return
		}
	}
}
