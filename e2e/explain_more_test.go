//go:build e2e

package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

func TestExplainSaysWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-underway")
	s.needsThisMachine()
	gate := t.TempDir()
	open := func(name string) {
		if err := os.WriteFile(gate+"/"+name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { open("unstage"); open("delete"); open("create") })
	retries := s.another("-retries", fields{"volumeStaging": greeting, "volumeCreation": script{hostDir: gate, text: "if [ -e /host/failed ]; then until [ -e /host/create ]; do sleep 0.1; done\n" +
		"else touch /host/failed; echo disk on fire > /pav/error; exit 1; fi"}.section(asRequested)})
	retried := s.claimWith("retried", ofClass(retries))
	s.create(s.provisioner(fields{
		"volumeCreation": asRequested, "volumeStaging": greeting,
		"volumeUnstaging": script{hostDir: gate, text: "until [ -e /host/unstage ]; do sleep 0.1; done"}.section(nil),
		"volumeDeletion": script{hostDir: gate, text: "if [ -e /host/tried ]; then until [ -e /host/delete ]; do sleep 0.1; done\n" +
			"else touch /host/tried; echo still busy > /pav/error; exit 1; fi"}.section(nil),
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	pod := s.consumer("web", claim.Name, stays)
	s.ready(pod)
	vol := &corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)}
	s.delete(vol)
	e := s.explains("volume", vol.Name, "is Terminating: claim "+s.name+"/data uses it, which is used by pod web")
	if len(e.commands()) > 0 {
		t.Errorf("a claim that a pod uses is to be ended by %q", e.commands())
	}
	keep := "its data is deleted too, by policy Delete; to keep it, first: kubectl patch pv " + vol.Name + ` -p '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'`
	if !slices.ContainsFunc(e.Links, func(l link) bool {
		return l.Object.Name == claim.Name && strings.HasSuffix(l.Message, "when those are gone and the claim is deleted, "+keep)
	}) {
		t.Errorf("it is not told that %s: %+v", keep, e.Links)
	}
	s.explains("pod", s.name+"/web", "is running: claim "+s.name+"/data: its volume "+vol.Name+" is being deleted, and still exists only because claim "+s.name+"/data has it")
	s.delete(pod)
	s.explains("pod", s.name+"/web", "is Terminating: volume "+vol.Name+" is being unstaged on node ")
	open("unstage")
	s.gone(pod)
	s.remove(claim)
	s.explains("volume", vol.Name, "is Terminating: its storage could not be removed: ", "still busy", "; now the deletion pod tarn-volumes/pav-deletion-", "has been running for")
	open("delete")
	s.gone(vol)
	s.explainsClaim("retried", "is Pending: attempt 1 failed: ", "disk on fire", "; now the creation pod tarn-volumes/pav-creation-", "has been running for")
	open("create")
	s.bound(retried)
	s.remove(retried)
}

func TestExplainSaysWhatElseKeepsAClaim(t *testing.T) {
	t.Parallel()
	s := beginServed(t, "explain-kept")
	t.Run("the pod that it was made for", func(t *testing.T) {
		sub := s.part(t)
		pod := sub.consumer("owner", "", stays, func(pod *corev1.Pod) {
			pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
				Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &s.name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: size("1Mi")}},
			}}}
		})
		sub.ready(pod)
		sub.delete(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "owner-data"}})
		sub.does(sub.explainsClaim("owner-data", "is Terminating: it is used by pod "+s.name+"/owner").command())
		sub.gone(pod)
	})
	t.Run("a pod that has ended, until it is gone", func(t *testing.T) {
		sub := s.part(t)
		claim := sub.bound(sub.claim("read"))
		pod := sub.consumer("ended", claim.Name, "cat /data/greeting")
		sub.succeeded(pod)
		sub.delete(claim)
		e := sub.explainsClaim("read", "is Terminating: it is used by pod "+s.name+"/ended")
		if last := e.Links[len(e.Links)-1]; last.State != string(corev1.PodSucceeded) || last.Next != "when the pod is gone" {
			t.Errorf("the chain ends with %+v", last)
		}
		sub.since(e, "PersistentVolumeClaim", claim.Name, *read(sub, claim).DeletionTimestamp)
		sub.since(e, "Pod", pod.Name, read(sub, pod).Status.ContainerStatuses[0].State.Terminated.FinishedAt)
		sub.does(e.command())
		sub.gone(claim)
	})
	t.Run("two pods, of which one is on its way", func(t *testing.T) {
		sub := s.part(t)
		claim := sub.bound(sub.claim("shared"))
		long := int64(600)
		stubborn := sub.consumer("stubborn", claim.Name, "trap '' TERM; until [ -e /data/go ]; do sleep 0.1; done", func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = &long })
		other := sub.consumer("other", claim.Name, "trap exit TERM; sleep 5000 & wait")
		sub.ready(stubborn)
		sub.ready(other)
		sub.delete(claim)
		sub.delete(stubborn)
		e := sub.explainsClaim("shared", "is Terminating: it is used by 2 pods "+s.name+"/other, "+s.name+"/stubborn; "+s.name+"/stubborn is being deleted: its containers have not ended")
		if want := []string{"kubectl -n " + s.name + " delete pod other"}; !slices.Equal(e.commands(), want) {
			t.Errorf("the commands are %q, want %q", e.commands(), want)
		}
		sub.explains("pod", s.name+"/stubborn", "is Terminating: its containers have not ended")
		sub.kubectl("-n", s.name, "exec", "other", "--", "touch", "/data/go")
		sub.gone(stubborn)
		sub.does(e.command())
		sub.gone(claim)
	})
	t.Run("a pod that has its volume, and not yet all else", func(t *testing.T) {
		sub := s.part(t)
		claim := sub.bound(sub.claim("early"))
		pod := sub.stuckOn("begins", claim.Name)
		sub.stageOf("given to the pod", func(g *tarn.PavStage) bool {
			return slices.ContainsFunc(g.Status.Node.Targets, func(target string) bool { return tarn.PodOfTarget(target) == pod.UID })
		})
		sub.delete(claim)
		e := sub.explains("pod", s.name+"/begins", "is starting: the kubelet on node ", "cannot mount its volumes: ", `configmap "none" not found`)
		if i := slices.IndexFunc(e.Links, func(l link) bool { return l.Object.Name == claim.Name && l.Aside }); i < 0 || e.Links[i].State != "Terminating" || len(e.commands()) > 0 {
			t.Errorf("that its claim is to go is not told aside, without a command: %+v", e.Links)
		}
		sub.remove(pod)
		sub.gone(claim)
	})
	t.Run("finalizers of whoever it be", func(t *testing.T) {
		sub := s.part(t)
		claim := sub.claimWith("held", func(claim *corev1.PersistentVolumeClaim) {
			claim.Finalizers = []string{"external-attacher/csi.example.org", "tarn.dev/some", "kubernetes"}
		})
		t.Cleanup(func() { sub.unhold(claim) })
		sub.delete(claim)
		e := sub.explainsClaim("held", "is Terminating: ")
		for finalizer, owner := range map[string]string{
			"external-attacher/csi.example.org": "it belongs to the attacher of CSI driver csi.example.org, until the volume is detached", "tarn.dev/some": "it belongs to Tarn's", "kubernetes": "it belongs to an unknown owner",
		} {
			if i := slices.IndexFunc(e.Links, func(l link) bool { return l.State == "kept by finalizer "+finalizer }); i < 0 || !strings.HasPrefix(e.Links[i].Message, owner) {
				t.Errorf("of finalizer %s it is not said that %s: %+v", finalizer, owner, e.Links)
			}
		}
	})
}

func TestExplainSaysWhoHasToGrowAVolume(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-growth")
	expansion := script{text: "true"}.section(nil)
	expansion["podTemplate"].(fields)["spec"].(fields)["containers"].([]any)[0].(fields)["image"] = "no.example/such:image"
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting, "volumeExpansion": fields{"nodePodTemplate": expansion["podTemplate"]}}))
	class := s.class(corev1.PersistentVolumeReclaimDelete)
	grows := client.RawPatch(types.MergePatchType, []byte(`{"allowVolumeExpansion":true}`))
	if err := suite.live.Patch(s.ctx, class, grows); err != nil {
		t.Fatal(err)
	}
	t.Run("its node, before a pod starts, whose own pod has no image", func(t *testing.T) {
		sub := s.part(t)
		claim := sub.bound(sub.claim("data"))
		sub.ask(claim, "8Mi")
		sub.told(claim, "FileSystemResizeRequired")
		pod := sub.consumer("web", claim.Name, stays) // the kubelet grows the volume before it starts the pod
		follows := []string{"its volume has been expanded, and its file system is to follow on node ", ": the node-expansion pod default/", "cannot pull its image: "}
		ofPod := sub.explains("pod", s.name+"/web", append([]string{"is starting: claim " + s.name + "/data: "}, follows...)...)
		e := sub.explainsClaim("data", append([]string{"is Bound: "}, follows...)...)
		if ofPod.command() != e.command() {
			t.Errorf("of the pod the command is %q, of its claim %q", ofPod.command(), e.command())
		}
		if !strings.HasPrefix(e.command(), "kubectl edit pavprovisioner "+s.name+" && kubectl -n tarn-volumes delete pod ") {
			t.Errorf("the command is %q", e.command())
		}
		expansion["podTemplate"].(fields)["spec"].(fields)["containers"].([]any)[0].(fields)["image"] = "busybox:1.36"
		sub.respecify(s.name, fields{"volumeExpansion": fields{"nodePodTemplate": expansion["podTemplate"]}})
		for _, failing := range sub.stepPods(tarn.StepNodeExpansion) {
			sub.deleteIfThere(&failing)
		}
		sub.resizedTo(claim, "8Mi")
		sub.ready(pod)
		sub.remove(pod)
		sub.remove(claim)
	})
	t.Run("its node, whose pod fails", func(t *testing.T) {
		sub := s.part(t)
		cramped := sub.another("-cramped", fields{"volumeCreation": asRequested, "volumeStaging": greeting, "volumeExpansion": fields{"nodePodTemplate": fails(nil)["podTemplate"]}})
		if err := suite.live.Patch(s.ctx, &storagev1.StorageClass{ObjectMeta: named(cramped)}, grows); err != nil {
			t.Fatal(err)
		}
		claim := sub.bound(sub.claimWith("cramped", ofClass(cramped)))
		sub.ask(claim, "8Mi")
		sub.told(claim, "FileSystemResizeRequired")
		pod := sub.consumer("cramped", claim.Name, stays)
		sub.told(pod, "FailedMount", "while expanding volume", claim.Spec.VolumeName)
		const cannot = "its volume has been expanded, but its file system cannot be on node "
		sub.explains("pod", s.name+"/cramped", "is starting: claim "+s.name+"/cramped: "+cannot, ": container main exited with 1")
		e := sub.explainsClaim("cramped", "is Bound: "+cannot, ": container main exited with 1")
		if want := "kubectl edit pavprovisioner " + cramped; e.command() != want {
			t.Errorf("the command is %q, want %q", e.command(), want)
		}
		sub.remove(pod)
		sub.remove(claim)
	})
	t.Run("its driver's resizer, which has begun", func(t *testing.T) {
		sub := s.part(t)
		other := sub.classWith("-foreign", "csi.example.org", func(class *storagev1.StorageClass) { class.AllowVolumeExpansion = new(true) })
		vol := sub.byHand("foreign", func(vol *corev1.PersistentVolume) {
			vol.Spec.StorageClassName = other
			vol.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.org", VolumeHandle: "by-hand"}}
		})
		claim := sub.bound(sub.claimWith("foreign", func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.StorageClassName, claim.Spec.VolumeName = &other, vol.Name
		}))
		sub.ask(claim, "8Mi")
		begun := client.RawPatch(types.MergePatchType, []byte(`{"status":{"allocatedResources":{"storage":"8Mi"},"allocatedResourceStatuses":{"storage":"ControllerResizeInProgress"}}}`))
		if err := suite.live.Status().Patch(s.ctx, claim, begun); err != nil { // as the resizer does
			t.Fatal(err)
		}
		e := sub.explainsClaim("foreign", "is Bound: it is to be expanded from 2Mi to 8Mi")
		if last := e.Links[len(e.Links)-1]; last.State != "ControllerResizeInProgress" || last.Next != "when the driver's resizer retries; only its log shows when" {
			t.Errorf("the chain ends with %+v", last)
		}
		sub.remove(claim)
	})
}

func TestExplainSaysWhyALostVolumeIsNotStagedAgain(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-mending")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": tmpfs}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	pod := s.consumer("reader", claim.Name, reads)
	s.ready(pod)
	s.respecify(s.name, fields{"volumeStaging": fails(nil)})
	s.losesStaging()
	e := s.explains("pod", s.name+"/reader", "volume "+claim.Spec.VolumeName+" is lost on node ", "was deleted; staging it again failed, attempt ", complaint)
	if !slices.ContainsFunc(e.Links, func(l link) bool { return l.Next == "when its next staging pod has made it available again" }) {
		t.Errorf("when it is there again is not among %+v", e.Links)
	}
	s.respecify(s.name, fields{"volumeStaging": tmpfs})
	s.explains("pod", s.name+"/reader", "is running: on node ")
	s.remove(pod)
}
