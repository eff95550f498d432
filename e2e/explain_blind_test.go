//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"
)

// Objects that the caller may not read do not count as missing. The answer uses what is known
// without them, and lists what was not read.
func TestExplainConcludesNothingFromWhatItsCallerMayNotRead(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-blind")
	lost := s.naming("lost", s.byHand("lost").Name)
	lost = s.bound(lost)
	vol := s.volumeOf(lost)
	s.delete(vol)
	s.unhold(vol)
	s.explainsClaim("lost", "is Lost: its volume "+vol.Name+" was deleted while the claim was bound to it")
	s.naming("named", s.name+"-nothing")
	s.claimWith("late", ofClass(s.classWith("-late", "kubernetes.io/no-provisioner", late)))
	s.claimWith("orphan", ofClass(s.classWith("-orphan", s.name+"x")))
	kept := s.bound(s.naming("kept", s.byHand("kept").Name))
	pod := s.consumer("user", "kept", stays)
	s.ready(pod)
	s.delete(s.volumeOf(kept))
	s.delete(kept)

	freed := s.bound(s.naming("freed", s.byHand("freed").Name))
	s.remove(freed)
	s.explains("volume", freed.Spec.VolumeName, "is Released: ")

	s.explainsClaim("late", "is Pending: its class waits for a pod that uses it, and there is none")
	noVolumes := s.asReader("no-volumes", "persistentvolumes", "events")
	noPods := s.asReader("no-pods", "pods")
	noProvisioners := s.asReader("no-provisioners", "pavprovisioners")
	noClaims := s.asReader("no-claims", "persistentvolumeclaims", "events")
	noEvents := s.asReader("no-events", "events")
	noClasses := s.asReader("no-classes", "storageclasses")
	const untold = "explain cannot tell what it waits for without the objects that it could not read"
	for _, c := range []struct {
		by         reader
		kind, name string
		want       string // how the verdict ends
		unread     string
	}{
		{noVolumes, "claim", "lost", "is Lost: its volume " + vol.Name + " is gone or not owned any more", "cannot read volume " + vol.Name + ": needs permission to get persistentvolumes"},
		{noVolumes, "claim", "named", "is Pending: " + untold, "cannot read volume " + s.name + "-nothing: needs permission to get persistentvolumes"},
		{noPods, "claim", "late", "is Pending: its class waits for a pod that uses it", "cannot read each Pod in namespace " + s.name + ": needs permission to list pods"},
		{noPods, "claim", "kept", "is Terminating: finalizer kubernetes.io/pvc-protection keeps it; it belongs to Kubernetes' protection, until no pod uses the claim", "cannot read each Pod in namespace " + s.name + ": needs permission to list pods"},
		{noProvisioners, "claim", "orphan", "is Pending: its provisioner " + s.name + "x has not started", "cannot read PavProvisioner " + s.name + "x: needs permission to get pavprovisioners.pav.albertofaria.github.io"},
		{noClaims, "volume", s.name + "-kept", "is Terminating: finalizer kubernetes.io/pv-protection keeps it; it belongs to Kubernetes' protection, until no claim is bound to the volume", "cannot read claim " + s.name + "/kept: needs permission to get persistentvolumeclaims"},
		{noClaims, "pod", "user", "is running: " + untold, "cannot read claim " + s.name + "/kept: needs permission to get persistentvolumeclaims"},
		{noClasses, "volume", freed.Spec.VolumeName, "is Released: claim " + s.name + "/freed is gone, and policy Retain keeps the volume and its data", "cannot read StorageClass " + s.name + "-by-hand: needs permission to get storageclasses.storage.k8s.io"},
		{noClaims, "volume", freed.Spec.VolumeName, "is Released: its phase shows that claim " + s.name + "/freed is gone, and policy Retain keeps the volume and its data until an administrator decides", "cannot read claim " + s.name + "/freed: needs permission to get persistentvolumeclaims"},
		{noEvents, "pod", "user", "", "cannot read each Event in namespace " + s.name + ": needs permission to list events"},
	} {
		name := c.name
		if c.kind != "volume" {
			name = s.name + "/" + name
		}
		e := c.by.explains(c.kind, name, c.want)
		if !strings.HasSuffix(e.Verdict, c.want) {
			t.Errorf("%s %s: the verdict %q does not end with %q", c.kind, name, e.Verdict, c.want)
		}
		if !slices.ContainsFunc(e.Links, func(l link) bool { return l.State == "not read" && l.Message == c.unread }) {
			t.Errorf("%s %s: that it %s is not among %+v", c.kind, name, c.unread, e.Links)
		}
	}
	s.remove(pod)
	s.gone(kept)
}
