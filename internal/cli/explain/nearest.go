package explain

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"tarn.dev/tarn/internal/volume"
)

// nearest reports the volume that came nearest to the claim, and why it did not fit.
func (s *story) nearest(c *claimView, next string) {
	selector, err := volume.Selector(c.Claim)
	if err != nil || s.view.unknown(Volume, "", "") {
		return
	}
	best, why := c.nearestVolume()
	if best == nil {
		s.links[len(s.links)-1].Next = next
		s.add(Link{Object: Object{Volume, "", "(none)"}, State: "missing", Message: "there is no PersistentVolume", Next: next})
		return
	}
	link := s.add(Link{Object: Object{Volume, "", best.Name}, State: string(best.Status.Phase), Since: phaseSince(best), Reason: string(why),
		Message: "came nearest: " + volume.Explain(why, best, c.Claim), Next: next})
	wrong := misnamed(best, c.Claim)
	switch {
	case volume.BoundTo(best, c.Claim):
		link.Message = "it is reserved for the claim, which it does not fit: " + volume.Explain(why, best, c.Claim)
		if next != "" {
			link.Next += ", or the claim is created again so that this one fits"
		}
	case wrong != "" && why == volume.MisfitTaken:
		link.Message = fmt.Sprintf("came nearest: volume %q %s", best.Name, wrong)
	case wrong != "":
		link.Message += "; it " + wrong
	}
	if why == volume.MisfitTaken {
		link.wouldFit(volume.Meets(best, c.Claim, selector), best, c.Claim)
	}
	switch {
	case why == volume.MisfitPhase && best.Spec.ClaimRef != nil:
		if wrong != "" {
			link.Message += ", and it is kept with its data"
		} else {
			link.Message += fmt.Sprintf("; it was of claim %s/%s and is kept with its data", best.Spec.ClaimRef.Namespace, best.Spec.ClaimRef.Name)
		}
		if v := c.Nearest; v != nil && v.Name == best.Name {
			s.handOver(link, c, v, c.Class)
		}
	case why == volume.MisfitCapacity && fitsButForSize(best, c.Claim):
		s.anew(c, link, "merge", fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, volume.Capacity(best).String()), "with the volume's size")
	}
}

// wouldFit says whether another claim's volume would otherwise fit this claim. If not, it adds the
// reason to the link.
func (l *Link) wouldFit(m volume.Misfit, vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	if m != volume.Fits {
		l.Message += "; nor would it fit: " + volume.Explain(m, vol, claim)
	}
	return m == volume.Fits
}

// misnamed says why a volume that names a claim is not reserved for it all the same. It is empty
// for a volume that is reserved for it, or that names another claim.
func misnamed(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) string {
	ref := vol.Spec.ClaimRef
	switch {
	case ref == nil || ref.Name != claim.Name || volume.BoundTo(vol, claim):
		return ""
	case ref.Namespace == "":
		return fmt.Sprintf("names claim %s without a namespace, as its spec.claimRef.namespace is missing", ref.Name)
	case ref.Namespace == claim.Namespace:
		return fmt.Sprintf("names claim %s/%s by UID %s, and this claim has another UID (%s)", ref.Namespace, ref.Name, ref.UID, claim.UID)
	}
	return ""
}

// meant ranks how clearly a volume was meant for a claim: reserved for it, or kept and naming it
// wrongly, or neither.
func meant(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) int {
	switch {
	case volume.BoundTo(vol, claim):
		return 2
	case misnamed(vol, claim) != "" && vol.DeletionTimestamp == nil && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain:
		return 1
	}
	return 0
}

// nearestVolume returns the volume that came nearest to a claim, and why it does not fit; nil for
// none. A volume that was meant for the claim comes before all others, whatever its class.
func (c *claimView) nearestVolume() (*corev1.PersistentVolume, volume.Misfit) {
	selector, err := volume.Selector(c.Claim)
	if err != nil {
		return nil, volume.Fits
	}
	var best *corev1.PersistentVolume
	var why volume.Misfit
	most := 0
	for i := range c.Candidates {
		vol := &c.Candidates[i]
		m, own := c.misfit(vol, selector), meant(vol, c.Claim)
		if volume.BoundTo(vol, c.Claim) && m == volume.Fits {
			return vol, m
		}
		if best == nil || own > most || own == most && (m.Nearer(why) || m == why && closer(vol, best, c.Claim, selector, why)) {
			best, why, most = vol, m, own
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
	if m != volume.MisfitTaken || !kept(vol) {
		return m
	}
	// A released volume with its data counts as if it were free.
	switch wants := volume.Meets(vol, c.Claim, selector); wants {
	case volume.Fits:
		return volume.MisfitPhase
	case volume.MisfitSelector:
		return wants
	}
	return m
}

// kept says whether a volume is released and still has its data.
func kept(vol *corev1.PersistentVolume) bool {
	return vol.Status.Phase == corev1.VolumeReleased && vol.DeletionTimestamp == nil && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain
}

// fitsButForSize says whether a volume would fit a claim that asked for no more than the volume's
// size.
func fitsButForSize(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	size := volume.Capacity(vol)
	selector, err := volume.Selector(claim)
	if size == nil || err != nil {
		return false
	}
	smaller := claim.DeepCopy()
	smaller.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: *size}
	if ref := vol.Spec.ClaimRef; ref != nil && ref.UID == "" && volume.Reserved(vol, smaller) == volume.Fits { // reserved by name, so for a new claim of that name too
		return true
	}
	return volume.Match(vol, smaller, selector) == volume.Fits
}

// closer says whether volume a is nearer than b if both fail for the same reason. Of other claims'
// volumes it is the one that would come nearest if it were free. Of volumes that are too small it
// is the largest. Otherwise it is the first by name.
func closer(a, b *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, selector labels.Selector, why volume.Misfit) bool {
	if why == volume.MisfitTaken {
		m, n := volume.Meets(a, claim, selector), volume.Meets(b, claim, selector)
		if m != n {
			return m.Nearer(n)
		}
		why = m
	}
	x, y := volume.Capacity(a), volume.Capacity(b)
	if why == volume.MisfitCapacity && x != nil && y != nil && x.Cmp(*y) != 0 {
		return x.Cmp(*y) > 0
	}
	return strings.Compare(a.Name, b.Name) < 0
}

// nearestFor reports the volume that came nearest to a claim whose pod waits for the scheduler, if
// no provisioner creates its volumes. It offers a command only if the scheduler lacks a volume.
func (s *story) nearestFor(c *claimView, t trouble) {
	if c.Class.Provisioner != noProvisioner {
		return
	}
	s.nearest(c, "")
	if !strings.Contains(t.Message, "persistent volume") {
		s.links[len(s.links)-1].Command = ""
	}
}
