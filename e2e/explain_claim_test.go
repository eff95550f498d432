//go:build e2e

package e2e

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

func TestExplainSaysWhatAClaimWithoutVolumeLacks(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-lacks")
	s.moody()
	t.Run("no class and no default", func(t *testing.T) {
		sub := &scenario{t: t, ctx: s.ctx, name: s.name}
		claim := sub.claimWith("classless", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.StorageClassName = nil })
		if claim.Spec.StorageClassName != nil {
			t.Skipf("this cluster has a default class, %s", *claim.Spec.StorageClassName)
		}
		if e := sub.explainsClaim("classless", "is Pending: it names no class, there is no default class, and no free volume fits"); !strings.Contains(e.command(), "patch pvc classless") {
			t.Errorf("the command is %q", e.command())
		}
	})
	t.Run("a class that does not exist, and the command mends it", func(t *testing.T) {
		sub := &scenario{t: t, ctx: s.ctx, name: s.name}
		claim := sub.claimWith("misspelt", ofClass(s.name+"x"))
		e := sub.explainsClaim("misspelt", "StorageClass \""+s.name+"x\" does not exist")
		sub.does(e.command())
		claim.UID = ""
		sub.bound(claim)
		sub.explainsClaim("misspelt", "is Bound: volume pvc-", "class "+s.name, "PavProvisioner "+s.name)
	})
	t.Run("no-provisioner, and the nearest volume is too small", func(t *testing.T) {
		sub := &scenario{t: t, ctx: s.ctx, name: s.name}
		class := sub.classWith("-manual", "kubernetes.io/no-provisioner")
		vol := &corev1.PersistentVolume{ObjectMeta: named(s.name + "-small"), Spec: corev1.PersistentVolumeSpec{
			Capacity: size("1Mi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, StorageClassName: class,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp/" + s.name}},
		}}
		sub.create(vol)
		t.Cleanup(func() { sub.deleteIfThere(vol) })
		sub.claimWith("manual", ofClass(class))
		e := sub.explainsClaim("manual", "its class "+class+" makes no volumes, and no free one fits")
		if last := e.Links[len(e.Links)-1]; last.Object.Name != vol.Name || !strings.Contains(last.Message, "has 1Mi, the claim asks for 2Mi") {
			t.Errorf("the nearest volume is %+v", last)
		}
		sub.does(e.command())
		sub.explainsClaim("manual", "is Bound: volume "+vol.Name)
		sub.remove(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "manual"}})
		if e := sub.explains("volume", vol.Name, "is Released", "policy Retain keeps the volume"); !strings.Contains(e.command(), "/spec/claimRef") {
			t.Errorf("the command is %q", e.command())
		} else {
			sub.since(e, "PersistentVolume", vol.Name, *read(sub, vol).Status.LastPhaseTransitionTime)
			sub.does(e.command())
		}
		sub.explains("volume", vol.Name, "is Available: free for any claim that it fits")
	})
	t.Run("a pod to wait for, then one that cannot be placed", func(t *testing.T) {
		sub := &scenario{t: t, ctx: s.ctx, name: s.name}
		sub.claimWith("later", ofClass(sub.classWith("-late", s.name, late)))
		sub.explainsClaim("later", "its class waits for a pod that uses it, and there is none")
		pod := sub.consumer("unplaced", "later", stays, nowhere)
		sub.explainsClaim("later", "pod "+s.name+"/unplaced, which uses it, is not scheduled: ", "node affinity/selector")
		sub.explains("pod", s.name+"/unplaced", "is not scheduled: the scheduler finds no node for it")
		sub.remove(pod)
	})
	t.Run("a provisioner that is nowhere, and the command mends the class", func(t *testing.T) {
		sub := &scenario{t: t, ctx: s.ctx, name: s.name}
		class := sub.classWith("-typo", s.name+"x")
		claim := sub.claimWith("orphan", ofClass(class))
		e := sub.explainsClaim("orphan", `there is no PavProvisioner "`+s.name+`x"`)
		sub.does(e.command())
		var mended storagev1.StorageClass
		if err := suite.live.Get(s.ctx, client.ObjectKey{Name: class}, &mended); err != nil || mended.Provisioner != s.name {
			t.Errorf("the class has provisioner %q (%v), want %q", mended.Provisioner, err, s.name)
		}
		sub.remove(claim)
	})
	t.Run("an external driver that is not registered", func(t *testing.T) {
		sub := &scenario{t: t, ctx: s.ctx, name: s.name}
		sub.claimWith("external", ofClass(sub.classWith("-csi", "csi.example.org")))
		sub.explainsClaim("external", "provisioner csi.example.org has not responded, and it is not registered")
	})
}

func TestExplainFollowsTheMakingOfAVolume(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-making")
	s.moody()
	for _, name := range []string{"measured", "refused", "fails", "slow", "unplaced", "imageless", "mountless", "crashes"} {
		s.claim(name)
	}
	for _, c := range []struct {
		claim string
		want  []string
		// wantLog is a line of the pod's log, wantNext the text on the next attempt.
		wantLog, wantNext, wantCommand string
	}{
		{"measured", []string{"the validation pod tarn-volumes/pav-validation-", "has been running for"}, "measuring", "it times out in ", ""},
		{"refused", []string{"PavProvisioner " + s.name + " rejects it, attempt ", "shelf 7 is full"}, "looking at shelf 7", "attempt ", "kubectl delete pavvolume pvc-"},
		{"fails", []string{"its volume could not be made, attempt ", "disk on fire"}, "", "attempt ", "kubectl delete pavvolume pvc-"},
		{"slow", []string{"the creation pod tarn-volumes/pav-creation-", "has been running for"}, "making it", "it times out in ", ""},
		{"unplaced", []string{"the creation pod", "is not scheduled: "}, "", "it times out in ", "kubectl edit pavprovisioner"},
		{"imageless", []string{"the creation pod", "cannot pull its image: "}, "", "it times out in ", "kubectl edit pavprovisioner"},
		{"mountless", []string{"the creation pod", "does not start: ", "/e2e-no-such-folder"}, "", "when its containers start", ""},
		{"crashes", []string{"the creation pod", "keeps crashing: "}, "", "it times out in ", "kubectl edit pavprovisioner"},
	} {
		t.Run(c.claim, func(t *testing.T) {
			sub := &scenario{t: t, ctx: s.ctx, name: s.name}
			e := sub.explainsWith(c.wantLog, "claim", s.name+"/"+c.claim, c.want...)
			if last := e.Links[len(e.Links)-1]; last.Object.Kind != "Pod" || c.claim != "unplaced" && last.Node == "" {
				t.Errorf("the chain ends with %+v, want a pod on a node", last)
			}
			next := ""
			for _, l := range e.Links {
				next += l.Next + "\n"
			}
			if !strings.Contains(next, c.wantNext) || !strings.Contains(e.command(), c.wantCommand) {
				t.Errorf("next %q, want %q; command %q, want %q", next, c.wantNext, e.command(), c.wantCommand)
			}
		})
	}
	t.Run("people read the same in the order they need it", func(t *testing.T) {
		sub := &scenario{t: t, ctx: s.ctx, name: s.name}
		form := regexp.MustCompile(`(?s)^claim ` + s.name + `/refused is Pending: PavProvisioner ` + s.name + ` rejects it, attempt \d+: [^\n]*shelf 7 is full
next: attempt \d+ in \w+, at [0-9:]+Z; at once if the PavProvisioner is changed

- claim ` + s.name + `/refused: Pending, since .*
- PavVolume pvc-.*
    next: attempt \d+ in .*
- pod tarn-volumes/pav-validation-[^\n]* failed on node .*
    /pav/error: shelf 7 is full
    \| looking at shelf 7

to fix it:
  kubectl delete pavvolume pvc-[^\n]+
$`)
		sub.printsThat(form.String(), form.MatchString, "claim", s.name+"/refused")
	})
	t.Run("the command begins the next attempt at once", func(t *testing.T) {
		sub := &scenario{t: t, ctx: s.ctx, name: s.name}
		e := sub.explainsClaim("refused", "rejects it, attempt ")
		sub.explains("volume", e.Links[1].Object.Name, "PavProvisioner "+s.name+" rejects it, attempt ", "shelf 7 is full")
		pod := sub.consumer("web", "refused", stays)
		sub.explains("pod", s.name+"/web", "is not scheduled: claim "+s.name+"/refused: PavProvisioner "+s.name+" rejects it, attempt ")
		sub.remove(pod)
		record := &tarn.PavVolume{ObjectMeta: named(e.Links[1].Object.Name)}
		if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(record), record); err != nil {
			t.Fatal(err)
		}
		sub.does(e.command())
		old := record.UID
		sub.await("another record", func() (bool, string) {
			err := sub.get(record)
			return err == nil && record.UID != old && record.Status.Attempts > 0, "it is the old one"
		})
	})
	s.abandon()
}

// abandon deletes the case's claims, and then the pods that make their volumes. Otherwise the case
// would wait until those are given up.
func (s *scenario) abandon() {
	s.t.Helper()
	var claims corev1.PersistentVolumeClaimList
	if err := suite.live.List(s.ctx, &claims, client.InNamespace(s.name)); err != nil {
		s.t.Fatal(err)
	}
	for _, claim := range items(&claims) {
		s.remove(claim)
	}
	for _, pod := range append(s.stepPods(tarn.StepValidation), s.stepPods(tarn.StepCreation)...) {
		s.deleteIfThere(&pod)
	}
}

func TestExplainSaysHowALostClaimComesBack(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-lost")
	s.moody()
	claim := s.bound(s.claim("data"))
	volume := &corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)}
	s.delete(volume)
	unhold := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := suite.live.Patch(s.ctx, volume, unhold); err != nil {
		t.Fatal(err)
	}
	e := s.explainsClaim("data", "is Lost: its volume "+volume.Name+" was deleted while the claim was bound to it")
	s.explains("volume", volume.Name, "it was removed by force, and its storage still exists")
	pod := s.consumer("web", "data", stays)
	s.explains("pod", s.name+"/web", "is not scheduled: claim "+s.name+"/data: its volume "+volume.Name+" was deleted while the claim was bound to it")
	s.remove(pod)
	s.does(e.command())
	s.explainsClaim("data", "is Bound: volume "+volume.Name)
	s.remove(claim)
	s.gone(volume)
}

func TestExplainSaysWhatKeepsAClaimThatIsToGo(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-ending")
	s.moody()
	claim := s.claimWith("data", func(claim *corev1.PersistentVolumeClaim) { claim.Finalizers = []string{"example.org/audit"} })
	t.Cleanup(func() { // a failing case would leave it for ever
		_ = suite.live.Patch(s.ctx, claim, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
	})
	s.bound(claim)
	s.ready(s.consumer("web", "data", stays))
	s.delete(claim)
	healthy := s.explains("pod", s.name+"/web", "is running: claim "+s.name+"/data is being deleted, and waits for this pod: it is deleted when the pod is gone")
	if healthy.command() != "" {
		t.Errorf("a pod that is in good health is to be ended by %q", healthy.command())
	}
	e := s.explainsClaim("data", "is Terminating: it is used by pod "+s.name+"/web")
	if e.command() != "kubectl -n "+s.name+" delete pod web" {
		t.Errorf("the command is %q, and a pod uses the claim", e.command())
	}
	s.consumer("second", "data", stays)
	s.explains("pod", s.name+"/second", "claim "+s.name+"/data is being deleted, so no pod that uses it can start")
	for _, l := range e.Links {
		if l.Object.Kind == "Pod" && l.Command != "" {
			s.does(l.Command)
		}
	}
	e = s.explainsClaim("data", "finalizer example.org/audit keeps it; it belongs to the owner of the name example.org")
	s.does(e.command())
	s.gone(claim)
	t.Run("a finalizer that is known", func(t *testing.T) {
		sub := s.part(t)
		claim := sub.claimWith("cloned", func(claim *corev1.PersistentVolumeClaim) {
			claim.Finalizers = []string{"provisioner.storage.kubernetes.io/cloning-protection"}
		})
		t.Cleanup(func() { sub.unhold(claim) })
		sub.delete(claim)
		if e := sub.explainsClaim("cloned", "keeps it; it belongs to the CSI provisioner, until no clone of the claim is being made"); e.command() != "" {
			t.Errorf("the command is %q, which would take it from its owner", e.command())
		}
	})
	t.Run("what would make its pods again, and the commands end that", func(t *testing.T) {
		sub := s.part(t)
		claim := sub.bound(sub.claim("owned"))
		pod := sub.consumer("template", claim.Name, stays)
		sub.ready(pod)
		template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "owned"}}, Spec: *pod.Spec.DeepCopy()}
		sub.remove(pod)
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "owned"}, Spec: batchv1.JobSpec{Template: *template.DeepCopy()}}
		job.Spec.Template.Labels = nil
		template.Spec.RestartPolicy = corev1.RestartPolicyAlways
		web := &appsv1.Deployment{ObjectMeta: job.ObjectMeta, Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template}}
		sub.create(job)
		sub.create(web)
		sub.explainsClaim("owned", "is Bound: ", "used by pod owned-", ", owned-")
		sub.delete(claim)
		e := sub.explainsClaim("owned", "is Terminating: it is used by 2 pods")
		for _, want := range []string{"kubectl -n " + s.name + " scale deployment owned --replicas=0", "kubectl -n " + s.name + ` patch job owned -p '{"spec":{"suspend":true}}'`} {
			if !slices.ContainsFunc(e.commands(), func(command string) bool { return command == want }) {
				t.Errorf("the commands are %q, want %q among them", e.commands(), want)
			}
			sub.does(want)
		}
		sub.gone(claim)
	})
}
