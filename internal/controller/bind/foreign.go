package bind

import (
	corev1 "k8s.io/api/core/v1"
)

// recycleFailed is the status.reason of a volume that Tarn's recycling set to Failed. Recycling
// sets it back to Released when the volume is not to be recycled after all.
const recycleFailed = "VolumeFailedRecycle"

// foreignWrite is a change of phase that only binders make. If this binder did not make it, another
// binder is running.
type foreignWrite struct {
	what, name, phase, version string
	// volume is the volume that this binder's worker would have locked during the write.
	volume string
}

// claimWrite returns the write that set a claim to Bound between had and now, and false if there
// was none.
func claimWrite(had, now *corev1.PersistentVolumeClaim) (foreignWrite, bool) {
	if had == nil || had.UID != now.UID || had.Status.Phase == now.Status.Phase || now.Status.Phase != corev1.ClaimBound || !newer(had, now) {
		return foreignWrite{}, false
	}
	return foreignWrite{what: "claim", name: keyOf(now).String(), phase: string(now.Status.Phase), version: now.ResourceVersion, volume: now.Spec.VolumeName}, true
}

// volumeWrite returns the write that set a volume's phase between had and now, and false if there
// was none.
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

// noticeForeign handles a phase change seen on a watch. While a worker has locked the volume, the change may be
// the worker's own, whose answer has not arrived yet.
func (c *cache) noticeForeign(w foreignWrite, found bool) {
	switch h := c.locks[w.volume]; {
	case !found, c.uncertainVolumes[w.volume]:
	case h != nil:
		h.foreign = append(h.foreign, w)
	default:
		c.listener.foreign(w)
	}
}

// noticeOwn marks a write seen while a volume was locked as this binder's own.
func (c *cache) noticeOwn(volume, version string) {
	h := c.locks[volume]
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
