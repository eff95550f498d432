package explain

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"tarn.dev/tarn/internal/volume"
)

// nearest tells which volume came nearest to the claim, and why it did not fit.
func (s *story) nearest(c *claimView, next string) {
	if _, err := volume.Selector(c.Claim); err != nil || s.view.unknown(Volume, "", "") {
		return
	}
	best, why := c.nearestVolume()
	came := "came nearest: "
	if best != nil && volume.BoundTo(best, c.Claim) {
		came = "it is reserved for the claim, which cannot have it: "
	}
	if best == nil {
		s.links[len(s.links)-1].Next = next
		s.add(Link{Object: Object{Volume, "", "(none)"}, State: "missing", Message: "there is no PersistentVolume at all", Next: next})
		return
	}
	link := s.add(Link{Object: Object{Volume, "", best.Name}, State: string(best.Status.Phase), Since: phaseSince(best), Reason: string(why),
		Message: came + volume.Explain(why, best, c.Claim), Next: next})
	switch {
	case why == volume.MisfitPhase && best.Spec.ClaimRef != nil:
		link.Message += fmt.Sprintf("; it was of claim %s/%s and is kept with its data", best.Spec.ClaimRef.Namespace, best.Spec.ClaimRef.Name)
		if v := c.Nearest; v != nil && v.Name == best.Name {
			s.handOver(link, c, v, c.Class)
		}
	case why == volume.MisfitCapacity && fitsButForSize(best, c.Claim):
		s.anew(c, link, "merge", fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, volume.Capacity(best).String()), "with what the volume has")
	}
}

// nearestVolume gives the volume that came nearest to a claim, and why it does not fit; nil
// for none. One that is reserved for the claim comes before all others, of whatever class.
func (c *claimView) nearestVolume() (*corev1.PersistentVolume, volume.Misfit) {
	selector, err := volume.Selector(c.Claim)
	if err != nil {
		return nil, volume.Fits
	}
	var best *corev1.PersistentVolume
	var why volume.Misfit
	reserved := false
	for i := range c.Candidates {
		vol := &c.Candidates[i]
		m, own := c.misfit(vol, selector), volume.BoundTo(vol, c.Claim)
		if own && m == volume.Fits {
			return vol, m
		}
		if best == nil || own && !reserved || own == reserved && (m.Nearer(why) || m == why && closer(vol, best, why)) {
			best, why, reserved = vol, m, own
		}
	}
	return best, why
}

// misfit says why a claim cannot have a volume.
func (c *claimView) misfit(vol *corev1.PersistentVolume, selector labels.Selector) volume.Misfit {
	if volume.BoundTo(vol, c.Claim) {
		return volume.Reserved(vol, c.Claim)
	}
	m := volume.Match(vol, c.Claim, selector)
	if m != volume.MisfitTaken || !kept(vol) || volume.Suits(vol, c.Claim) != volume.Fits {
		return m
	}
	// It counts for what it would be if it were free.
	if !selector.Matches(labels.Set(vol.Labels)) {
		return volume.MisfitSelector
	}
	return volume.MisfitPhase
}

// kept says that a volume was released and is there with its data.
func kept(vol *corev1.PersistentVolume) bool {
	return vol.Status.Phase == corev1.VolumeReleased && vol.DeletionTimestamp == nil && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain
}

// fitsButForSize says that a volume would be chosen for a claim that asks for no more than it has.
func fitsButForSize(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	size := volume.Capacity(vol)
	selector, err := volume.Selector(claim)
	if size == nil || err != nil {
		return false
	}
	smaller := claim.DeepCopy()
	smaller.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: *size}
	if ref := vol.Spec.ClaimRef; ref != nil && ref.UID == "" && volume.Reserved(vol, smaller) == volume.Fits { // by name, so for the next claim of it too
		return true
	}
	return volume.Match(vol, smaller, selector) == volume.Fits
}

// closer says which of two volumes that fail for the same reason is told of: of those
// too small the largest, else the first by name.
func closer(a, b *corev1.PersistentVolume, why volume.Misfit) bool {
	x, y := volume.Capacity(a), volume.Capacity(b)
	if why == volume.MisfitCapacity && x != nil && y != nil && x.Cmp(*y) != 0 {
		return x.Cmp(*y) > 0
	}
	return strings.Compare(a.Name, b.Name) < 0
}
