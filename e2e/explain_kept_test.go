//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// last is the last link of the chain, without side remarks and what was not read.
func (e explanation) last() link {
	for _, l := range slices.Backward(e.Links) {
		if !l.Aside && l.State != "not read" {
			return l
		}
	}
	return link{}
}

// formerly makes a volume belong to a deleted claim of the case, so that a binder releases it.
func (s *scenario) formerly(claim string) func(*corev1.PersistentVolume) {
	return func(vol *corev1.PersistentVolume) {
		vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		vol.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: s.name, Name: claim, UID: "00000000-0000-0000-0000-000000000000"}
	}
}

// driven gives a volume a CSI driver that does not exist.
func driven(vol *corev1.PersistentVolume) {
	vol.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.org", VolumeHandle: vol.Name}}
}

// stuckOn makes a pod that uses a claim, has a node, and never starts there. It names a missing
// ConfigMap, so the kubelet starts no container.
func (s *scenario) stuckOn(name, claim string, edits ...func(*corev1.Pod)) *corev1.Pod {
	s.t.Helper()
	lacks := func(pod *corev1.Pod) {
		pod.Spec.NodeName = s.aNode().Name
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "lacks", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}},
		}})
		c := &pod.Spec.Containers[0] // the kubelet does not wait for a volume that no container mounts
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "lacks", MountPath: "/lacks"})
	}
	return s.consumer(name, claim, "true", append([]func(*corev1.Pod){lacks}, edits...)...)
}

// stageKept leaves a stage for a volume to be deleted. A foreign finalizer keeps the stage.
func (s *scenario) stageKept(vol *corev1.PersistentVolume) *tarn.PavStage {
	s.t.Helper()
	stage := &tarn.PavStage{ObjectMeta: named(vol.Name), Spec: tarn.PavStageSpec{
		Provisioner: tarn.ProvisionerReference{Name: s.name, UID: types.UID(s.name)}, VolumeName: vol.Name, VolumeUID: vol.UID, NodeName: s.name + "-nowhere",
	}}
	stage.Finalizers = []string{"example.org/audit"}
	s.create(stage)
	s.t.Cleanup(func() {
		s.deleteIfThere(stage)
		s.unhold(stage)
	})
	s.delete(stage)
	return stage
}

// The volume of a deleted claim is not offered while a consumer may still use it.
func TestExplainOffersNoVolumeThatSomebodyMayHave(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-lingering")
	s.stuckOn("user", "used")
	noded, used := s.byHand("noded", s.formerly("noded"), driven), s.byHand("used", s.formerly("used"))
	unseen, free := s.byHand("unseen", s.formerly("unseen"), driven), s.byHand("free", s.formerly("free"))
	s.stageKept(noded)
	all := reader{s, os.Getenv("KUBECONFIG")}
	noStages, noPods := s.asReader("no-stages", "pavstages"), s.asReader("no-pods", "pods")
	for _, c := range []struct {
		by          reader
		was         string
		vol         *corev1.PersistentVolume
		until, next string
		offers      bool
	}{
		{all, "noded", noded, ", which a node still uses", "when no node uses it, and an administrator decides", false},
		{all, "used", used, ", which pod " + s.name + "/user may still use", "when pod " + s.name + "/user is gone, and an administrator decides", false},
		{noStages, "unseen", unseen, ", and explain cannot tell whether a node still uses it", "when no node uses it, which explain cannot tell, and an administrator decides", false},
		{noPods, "free", free, ", and explain cannot tell whether a pod still uses it", "when no pod uses it, which explain cannot tell, and an administrator decides", false},
		{all, "free", free, " until an administrator decides", "when an administrator decides: the command frees it for any claim, with its data", true},
	} {
		e := c.by.explains("volume", c.vol.Name, "is Released: claim "+s.name+"/"+c.was+" is gone, and policy Retain keeps the volume and its data"+c.until)
		if !strings.HasPrefix(e.last().Next, c.next) || (e.command() != "") != c.offers {
			t.Errorf("%s: want it to go on %q, and a command: %t; got %+v", c.vol.Name, c.next, c.offers, e)
		}
	}
	s.keptFromClaims(noded, used)
}

// keptFromClaims has claims wait for volumes that must not be given to them.
func (s *scenario) keptFromClaims(noded, used *corev1.PersistentVolume) {
	s.t.Helper()
	again := s.byHand("again", s.formerly("again"))
	now := s.naming("again", again.Name)
	thrown := s.byHand("thrown", s.formerly("thrown"), func(vol *corev1.PersistentVolume) {
		vol.Annotations = map[string]string{
			tarn.AnnotationReclaimPolicy: string(corev1.PersistentVolumeReclaimRetain), tarn.AnnotationHeldFor: "1h",
			tarn.AnnotationTrashedUntil: time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
		}
	})
	s.t.Cleanup(func() { // a volume in the trash may not be deleted
		if err := suite.live.Patch(s.ctx, thrown, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":null,"labels":null}}`))); err != nil {
			s.t.Error(err)
		}
	})
	abroad := s.byHand("abroad", s.formerly("abroad"), func(vol *corev1.PersistentVolume) { vol.Spec.ClaimRef.Namespace = "default" })
	class := s.classWith("-kept", "kubernetes.io/no-provisioner")
	near := s.byHand("near", s.formerly("used"), func(vol *corev1.PersistentVolume) { vol.Spec.StorageClassName = class })
	for _, c := range []struct{ name, class, vol, told string }{
		{"after-noded", "", noded.Name, ", which is gone; it holds data, which a node still uses"},
		{"after-used", "", used.Name, ", which is gone; it holds data, which pod " + s.name + "/user may still use"},
		{"after-again", "", again.Name, ", and the claim that has this name now has another UID (" + string(now.UID) + "); the existing claim " + s.name + "/again names it"},
		{"after-thrown", "", thrown.Name, ", which is gone; it is in the trash, and tarn undelete volume " + thrown.Name + " gives it back to its former claim"},
		{"after-abroad", "", abroad.Name, ", which is gone; its data belongs to namespace default, and explain does not give it to namespace " + s.name},
		{"nearest", class, near.Name, "; it was of claim " + s.name + "/used and is kept with its data; it holds data, which pod " + s.name + "/user may still use"},
	} {
		verdict := "is Pending: it names volume " + c.vol + ", which belongs to another claim"
		if c.class != "" {
			verdict = "is Pending: its class " + class + " makes no volumes, and no free one fits"
			s.claimWith(c.name, ofClass(class))
		} else {
			s.naming(c.name, c.vol)
		}
		e := s.explainsClaim(c.name, verdict)
		if last := e.last(); last.Object.Name != c.vol || !strings.HasSuffix(last.Message, c.told) || len(e.commands()) > 0 {
			s.t.Errorf("claim %s: want %q told of volume %s, and no command; got %+v", c.name, c.told, c.vol, e)
		}
	}
}

// unfit checks the answers for released volumes that name claims which they do not fit.
func (s *scenario) unfit(t *testing.T) {
	sub := s.part(t)
	for name, c := range map[string]struct {
		ask func(*corev1.PersistentVolumeClaim)
		why string
	}{
		"mode": {func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}, "has volumeMode Filesystem, the claim asks for Block"},
		"size": {func(claim *corev1.PersistentVolumeClaim) { claim.Spec.Resources.Requests = size("3Mi") }, "has 2Mi, the claim asks for 3Mi"},
		"access": {func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		}, "has access modes RWX, the claim asks for RWO"},
	} {
		vol := sub.byHand("unfit-"+name, s.formerly("before"))
		sub.explains("volume", vol.Name, "is Released: claim "+s.name+"/before is gone, and policy Retain keeps the volume")
		claim := sub.claimWith("unfit-"+name, ofClass(s.name+"-by-hand"), c.ask)
		give := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"claimRef":{"name":%q,"uid":%q}}}`, claim.Name, claim.UID))
		if err := suite.live.Patch(s.ctx, vol, give); err != nil {
			t.Fatal(err)
		}
		e := sub.explains("volume", vol.Name, "is Released: it was given to claim "+s.name+"/unfit-"+name+", which it does not fit: ", c.why)
		if last := e.last(); len(e.commands()) > 0 || last.Next != "when the claim is created again so that the volume fits; tarn explain claim "+s.name+"/unfit-"+name+" shows how it then gets the volume" {
			t.Errorf("the commands are %q, want none that would free what was given away; the chain ends with %+v", e.commands(), last)
		}
		sub.remove(claim)
		sub.explains("volume", vol.Name, "is Released: claim "+s.name+"/unfit-"+name+" is gone, and policy Retain keeps the volume")
	}
}

// notGivenBack checks the answers for claims whose volumes name a deleted claim: one of another
// namespace, or one that a pod was started with.
func (s *scenario) notGivenBack(t *testing.T) {
	sub := s.part(t)
	pod := sub.stuckOn("holds", "held-by")
	for _, c := range []struct{ name, namespace, of, told string }{
		{"taken-abroad", "default", "abroad", "its data belongs to namespace default, and explain does not give it to namespace " + s.name},
		{"taken-used", s.name, "held-by", "it holds data, which pod " + s.name + "/holds may still use"},
	} {
		vol := sub.byHand(c.name)
		claim := sub.bound(sub.naming(c.name, vol.Name))
		take := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"claimRef":{"namespace":%q,"name":%q,"uid":"no-such-claim"}}}`, c.namespace, c.of))
		if err := suite.live.Patch(s.ctx, vol, take); err != nil {
			t.Fatal(err)
		}
		e := sub.explainsClaim(c.name, "is Lost: its volume "+vol.Name+" names another claim, "+c.namespace+"/"+c.of)
		if last := e.last(); !strings.HasSuffix(last.Message, c.told) || len(e.commands()) > 0 {
			t.Errorf("claim %s: want %q told of volume %s, and no command; got %+v", c.name, c.told, vol.Name, e)
		}
		sub.remove(claim)
	}
	sub.remove(pod)
}

// unmade checks the answer for a volume whose storage was never made, so no provisioner deletes it.
// The command removes the volume once no pod can use it.
func (s *scenario) unmade(t *testing.T) {
	sub := s.part(t)
	vol := sub.byHand("static", driven, func(vol *corev1.PersistentVolume) {
		vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		vol.Spec.CSI.Driver = s.name
	})
	sub.remove(sub.bound(sub.naming("static", vol.Name)))
	nobody := "is Released: claim " + s.name + "/static is gone, and no provisioner made its storage, so none destroys it"
	user := sub.stuckOn("static", "static")
	e := sub.explains("volume", vol.Name, nobody)
	if !strings.HasSuffix(e.last().Message, "it holds data, which pod "+s.name+"/static may still use") || len(e.commands()) > 0 {
		t.Errorf("want no command while a pod may use it, and that told; got %+v", e)
	}
	sub.remove(user)
	sub.does(sub.explains("volume", vol.Name, nobody).command())
	sub.gone(vol)
}
