//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// misfits are the ways in which a claim does not fit a free volume. Each has the answer's text
// after the name of the volume.
var misfits = []struct {
	name, reason, told string
	edit               func(*corev1.PersistentVolumeClaim)
}{
	{"block", "VolumeMode", "has volumeMode Filesystem, the claim asks for Block", func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	}},
	{"fast", "AttributesClass", `has volumeAttributesClassName "", the claim asks for "fast"`, func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.VolumeAttributesClassName = ptr.To("fast")
	}},
	{"alone", "AccessModes", "has access modes RWX, the claim asks for RWO", func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}},
}

func TestExplainSaysHowAVolumeDoesNotFit(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-misfits")
	class := s.classWith("-by-hand", "kubernetes.io/no-provisioner") // other cases have no volumes of this class
	other := s.classWith("-other", "kubernetes.io/no-provisioner")
	free := s.byHand("free")
	freed := s.byHand("freed", s.formerly("gone"))
	going := s.byHand("going")
	s.hold(going)
	s.delete(going)
	for _, c := range misfits {
		s.claimWith("for-"+c.name, ofClass(class), c.edit)
		s.nearestIs("for-"+c.name, class, c.reason, fmt.Sprintf("came nearest: volume %q %s", free.Name, c.told))
		s.misfitsNamed(c.name, free, c.reason, fmt.Sprintf("volume %q %s", free.Name, c.told), c.edit)
	}
	s.claimWith("for-label", ofClass(class), func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"shelf": "seven"}}
	})
	s.nearestIs("for-label", class, "Selector", fmt.Sprintf("came nearest: the labels of volume %q do not match the claim's selector", free.Name))
	s.claimWith("for-class", ofClass(other))
	e := s.nearestIs("for-class", other, "Class", "") // the volume may belong to any case
	if want := fmt.Sprintf(", the claim asks for %q", other); !strings.HasSuffix(e.last().Message, want) {
		t.Errorf("the chain ends with %+v, want %q told", e.last(), want)
	}
	s.misfitsNamed("class", free, "Class", fmt.Sprintf("volume %q has class %q, the claim asks for %q", free.Name, class, other), ofClass(other))
	s.misfitsNamed("going", going, "BeingDeleted", fmt.Sprintf("volume %q is being deleted", going.Name), func(*corev1.PersistentVolumeClaim) {})

	s.claimWith("nor-fits", ofClass(class), misfits[0].edit, func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = freed.Name })
	e = s.explainsClaim("nor-fits", "is Pending: it names volume "+freed.Name+", which belongs to another claim")
	if want := fmt.Sprintf(", which is gone; nor would it fit: volume %q %s", freed.Name, misfits[0].told); !strings.HasSuffix(e.last().Message, want) || len(e.commands()) > 0 {
		t.Errorf("want %q told, and no command; got %+v", want, e)
	}
}

// nearestIs wants the answer for a claim, whose class makes no volumes, to name the nearest volume
// and the misfit. No command repairs that.
func (s *scenario) nearestIs(claim, class, reason, told string) explanation {
	s.t.Helper()
	e := s.explainsClaim(claim, "is Pending: its class "+class+" makes no volumes, and no free one fits")
	if last := e.last(); last.Object.Kind != "PersistentVolume" || last.Reason != reason || told != "" && last.Message != told ||
		last.Next != "when a free PersistentVolume of class "+class+" fits" || len(e.commands()) > 0 {
		s.t.Errorf("claim %s: want %s, %q, and no command; got %+v", claim, reason, told, e)
	}
	return e
}

// misfitsNamed wants the answer for a claim that names a volume to say why the volume does not fit.
func (s *scenario) misfitsNamed(name string, vol *corev1.PersistentVolume, reason, told string, edit func(*corev1.PersistentVolumeClaim)) {
	s.t.Helper()
	s.claimWith("names-"+name, ofClass(vol.Spec.StorageClassName), edit, func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = vol.Name })
	e := s.explainsClaim("names-"+name, "is Pending: it names a volume that does not fit: "+told)
	if last := e.last(); last.Object.Name != vol.Name || last.Reason != reason || last.Next != "when the volume fits the claim" || len(e.commands()) > 0 {
		s.t.Errorf("claim names-%s: want %s of volume %s, and no command; got %+v", name, reason, vol.Name, e)
	}
}

func TestExplainSaysWhichPodKeepsAClaimFromItsVolume(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-held-back")
	t.Run("one that scheduling gates hold back", func(t *testing.T) {
		sub := s.part(t)
		sub.claimWith("later", ofClass(sub.classWith("-late", s.name, late)))
		sub.consumer("gated", "later", "true", func(pod *corev1.Pod) {
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.org/checked"}}
		})
		e := sub.explainsClaim("later", "is Pending: pod "+s.name+"/gated, which uses it, is held back by scheduling gates")
		if last := e.last(); last.Object.Name != "gated" || last.Next != "when its scheduling gates are removed" || len(e.commands()) > 0 {
			t.Errorf("the chain ends with %+v, the commands are %q", last, e.commands())
		}
		e = sub.explains("pod", s.name+"/gated", "is not scheduled: it is held back by scheduling gates")
		if first := e.Links[0]; first.Object.Name != "gated" || first.Next != "when its scheduling gates are removed" {
			t.Errorf("the chain begins with %+v", first)
		}
	})
	t.Run("one that finds no volume, and the command asks for what the nearest has", func(t *testing.T) { s.part(t).findsNoVolume() })
	t.Run("one that names it and has a node, so that it cannot be made anew", func(t *testing.T) {
		sub := s.part(t)
		class := sub.classWith("", s.name)
		sub.claimWith("misspelt", ofClass(class+"x"))
		pod := sub.stuckOn("early", "misspelt")
		const told = "pod early uses it and has a node: until that pod is gone, the claim cannot be created again with class "
		e := sub.explainsClaim("misspelt", `is Pending: StorageClass "`+class+`x" does not exist`)
		if last := e.last(); last.Message != told+class || len(e.commands()) > 0 {
			t.Errorf("the chain ends with %+v, the commands are %q", last, e.commands())
		}
		sub.remove(pod)
		e = sub.explainsClaim("misspelt", `is Pending: StorageClass "`+class+`x" does not exist`)
		if !strings.Contains(e.last().Message, "the command creates the claim again with class "+class) || len(e.commands()) != 1 {
			t.Errorf("without the pod the chain ends with %+v", e.last())
		}
	})
}

// findsNoVolume has a pod wait for a claim larger than the only volume of its class. The class
// makes no volumes, and chooses one when the pod is placed.
func (s *scenario) findsNoVolume() {
	s.t.Helper()
	class := s.classWith("-chosen", "kubernetes.io/no-provisioner", late)
	vol := s.byHand("chosen", func(vol *corev1.PersistentVolume) { vol.Spec.StorageClassName, vol.Spec.Capacity = class, size("1Mi") })
	claim := s.claimWith("chosen", ofClass(class))
	last := func(e explanation) string {
		s.t.Helper()
		if l := e.last(); l.Object.Name != vol.Name || !strings.HasPrefix(l.Message, fmt.Sprintf("came nearest: volume %q has 1Mi, the claim asks for 2Mi", vol.Name)) {
			s.t.Errorf("the nearest volume is %+v", l)
		}
		return e.last().Command
	}
	command := last(s.explainsClaim("chosen", "is Pending: its class waits for a pod that uses it, and there is none"))
	pod := s.consumer("elsewhere", "chosen", stays, nowhere)
	if other := last(s.explainsClaim("chosen", "is Pending: pod "+s.name+"/elsewhere, which uses it, is not scheduled: ", "node affinity/selector")); other != "" {
		s.t.Errorf("a pod that no node is for is to be helped by %q", other)
	}
	s.remove(pod)
	pod = s.consumer("chooses", "chosen", stays)
	const lacks = "didn't find available persistent volumes to bind"
	for _, e := range []explanation{
		s.explainsClaim("chosen", "is Pending: pod "+s.name+"/chooses, which uses it, is not scheduled: ", lacks),
		s.explains("pod", s.name+"/chooses", "is not scheduled: the scheduler finds no node for it: ", lacks),
	} {
		if other := last(e); other != command {
			s.t.Errorf("the command is %q, and without a pod %q", other, command)
		}
	}
	s.does(command)
	s.ready(pod)
	claim.UID = ""
	if has := s.bound(claim).Spec.VolumeName; has != vol.Name {
		s.t.Errorf("the claim has volume %s, want %s", has, vol.Name)
	}
	s.remove(pod)
	s.remove(claim)
}
