package explain

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// hostPath is the provisioner inside Tarn's own controller, whose volumes are directories.
const hostPath = "tarn.dev/host-path"

// ofHostPath says whether that provisioner creates, or has created, a claim's volume.
func ofHostPath(c *claimView) bool { return provisionerOf(c.Claim, c.Class) == hostPath }

// byHostPath is about a claim for which the provisioner inside Tarn's controller was called. It has
// not reported an error.
func (s *story) byHostPath(c *claimView, o Object) {
	since := writtenAt(c.Claim)
	switch {
	case slices.Contains(c.Claim.Finalizers, tarnv1.FinalizerInProcess): // it marks a claim that it has begun
		link := s.add(Link{Object: o, State: "at work", Next: "when the directory is created, which takes longer on a slow disk"})
		if e := newest(c.Events, "Provisioning"); e != nil {
			link.Since, link.Message = moment(LastSeen(e)), e.Message
		}
		s.atWork("its volume", "is being made by "+o.Name, "is being made by "+o.Name, since)
	case s.young(since):
		s.add(Link{Object: o, State: "called", Next: "within moments"})
		s.controllerSilent("provisioner "+o.Name+" has to make its volume", since)
	default:
		s.add(Link{Object: o, State: "silent", Message: "it is part of tarn controller and works only if that runs with --host-path-root", Next: "when tarn controller runs with --host-path-root"})
		s.blame("provisioner %s has not started", o.Name)
		s.controllerSilent("", since)
	}
}

// lostFolder is about a claim whose volume, a directory, was removed by force. The directory stays
// on its node when the PersistentVolume is deleted.
func (s *story) lostFolder(c *claimView, link *Link) {
	name, size := c.Claim.Spec.VolumeName, volume.Request(c.Claim)
	link.Message = fmt.Sprintf("%s made it as a directory, and its data may still be in ROOT/%s on the node of tarn controller, "+
		"where ROOT is its --host-path-root (in an embedded cluster /var/lib/tarn-cluster/NAME/host-path)"+
		"; if it is, create PersistentVolume %s with local.path ROOT/%s, nodeAffinity to that node by label %s, annotations %s: %s and %s: the node's name, "+
		"capacity %s, accessModes %s, class %s, and claimRef of namespace %s, name %s and uid %s; if it is not, create it again from a backup",
		hostPath, name, name, name, corev1.LabelHostname, volume.AnnProvisionedBy, hostPath, tarnv1.AnnotationNode,
		size.String(), volume.AccessOf(c.Claim.Spec.AccessModes), volume.ClassOf(c.Claim), c.Object.Namespace, c.Object.Name, c.Claim.UID)
	if s.giveUp(c, link); link.Command != "" {
		link.offer += "; use it only if the data is gone or not needed: an existing directory stays, but no claim or volume records it"
	}
}
