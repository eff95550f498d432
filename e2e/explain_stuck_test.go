//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// stepPod waits for a provisioner's pod of a step, other than the pod before.
func (s *scenario) stepPod(provisioner string, step tarn.Step, before *corev1.Pod) *corev1.Pod {
	s.t.Helper()
	of := &scenario{t: s.t, ctx: s.ctx, name: provisioner}
	var found *corev1.Pod
	s.await(fmt.Sprintf("a %s pod of %s", step, provisioner), func() (bool, string) {
		pods := of.stepPods(step)
		for i := range pods {
			if before == nil || pods[i].UID != before.UID {
				found = &pods[i]
			}
		}
		return found != nil, fmt.Sprintf("there are %q", names(pods))
	})
	return found
}

func TestExplainSaysWhatKeepsAPodOfAStepBeforeItBegins(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-before")
	edited := func(suffix string, edit func(section fields)) string {
		creation := script{text: "true"}.section(asRequested)
		edit(creation)
		return s.another(suffix, fields{"volumeCreation": creation, "volumeStaging": greeting})
	}
	gated := edited("-gated", func(section fields) {
		podSpec(section)["schedulingGates"] = []any{fields{"name": "example.org/approval"}}
	})
	unset := edited("-unset", func(section fields) { // every namespace has this ConfigMap
		container(section)["env"] = []any{fields{"name": "SHELF", "valueFrom": fields{"configMapKeyRef": fields{"name": "kube-root-ca.crt", "key": "shelf"}}}}
	})
	held, keyless := s.claimWith("held", ofClass(gated)), s.claimWith("keyless", ofClass(unset))
	mends := func(t *testing.T, provisioner string, claim *corev1.PersistentVolumeClaim, texts ...string) {
		sub := s.part(t)
		e := sub.explainsClaim(claim.Name, append([]string{"is Pending: the creation pod tarn-volumes/pav-creation-"}, texts...)...)
		edit, remake, found := strings.Cut(e.command(), " && ")
		if last := e.last(); edit != "kubectl edit pavprovisioner "+provisioner || !found || !strings.HasPrefix(last.Next, "it times out in ") {
			t.Errorf("the command is %q, and the chain ends with %+v", e.command(), last)
		}
		mended := script{text: "true"}.section(nil)
		podSpec(mended)["schedulingGates"] = nil
		sub.respecify(provisioner, fields{"volumeCreation": mended})
		sub.does(remake)
		sub.bound(claim)
		sub.remove(claim)
	}
	t.Run("a setting that is not there", func(t *testing.T) {
		mends(t, unset, keyless, " container main waits (CreateContainerConfigError): couldn't find key shelf in ConfigMap default/kube-root-ca.crt")
	})
	t.Run("somebody's finalizer, and the command takes that off", func(t *testing.T) {
		sub := s.part(t)
		first := sub.stepPod(gated, tarn.StepCreation, nil)
		sub.hold(first)
		sub.delete(first)
		e := sub.explainsClaim(held.Name, "is Pending: the creation pod default/"+first.Name+" is being deleted: finalizer example.org/audit keeps it; it belongs to the owner of the name example.org")
		if commands := e.commands(); len(commands) != 1 || e.last().Next != "when its owner removes it" {
			t.Errorf("the commands are %q, and the chain ends with %+v", commands, e.last())
		}
		sub.does(e.command())
		sub.stepPod(gated, tarn.StepCreation, first) // it replaces the first
	})
	t.Run("scheduling gates", func(t *testing.T) {
		mends(t, gated, held, " is held back by scheduling gates")
	})
}

func TestExplainSaysThatASandboxCannotBeMade(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-sandbox")
	runtime := func(handler string) *nodev1.RuntimeClass {
		return &nodev1.RuntimeClass{ObjectMeta: named(s.name), Handler: handler}
	}
	s.create(runtime("e2e-no-such-handler"))
	t.Cleanup(func() { s.deleteIfThere(runtime("")) })
	creation := script{text: "true"}.section(asRequested)
	podSpec(creation)["runtimeClassName"] = s.name
	boxed := s.another("-boxed", fields{"volumeCreation": creation, "volumeStaging": greeting})
	made := s.claimWith("made", ofClass(boxed))
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	s.bound(s.claim("fine"))
	pod := s.consumer("user", "fine", stays, func(pod *corev1.Pod) { pod.Spec.RuntimeClassName = &s.name })

	e := s.explainsClaim("made", "is Pending: the creation pod tarn-volumes/pav-creation-", " does not start: Failed to create pod sandbox: ", "e2e-no-such-handler")
	if last := e.last(); last.Reason != "FailedCreatePodSandBox" || len(e.commands()) > 0 {
		t.Errorf("the commands are %q, and the chain ends with %+v", e.commands(), last)
	}
	e = s.explains("pod", s.name+"/user", "is starting: its containers have not started on node ", "; the kubelet's last message: Failed to create pod sandbox: ", "e2e-no-such-handler")
	if first := e.Links[0]; !strings.HasPrefix(first.Next, "when the kubelet retries; last tried ") || len(e.commands()) > 0 {
		t.Errorf("the commands are %q, and the chain begins with %+v", e.commands(), first)
	}
	s.remove(runtime("")) // its handler cannot be changed
	s.create(runtime("runc"))
	s.bound(made)
	s.ready(pod)
}

func TestExplainSaysThatAPodIsToGoFromANodeThatIsGone(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-node-gone")
	node := s.deafNode(s.name)
	s.create(s.provisioner(fields{"volumeCreation": onTheDeaf(node, asRequested), "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.claim("data")
	creation := s.stepPod(s.name, tarn.StepCreation, nil)
	s.await("a node for it", func() (bool, string) { return read(s, creation).Spec.NodeName == node.Name, creation.Spec.NodeName })
	s.delete(creation)
	if err := suite.live.Delete(s.ctx, node, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	e := s.explainsClaim("data", "is Pending: the creation pod default/"+creation.Name+" is being deleted, but its node "+node.Name+" no longer exists")
	if last := e.last(); last.Object.Kind != "Node" || last.State != "missing" || !strings.HasPrefix(last.Next, "when Kubernetes deletes the pod, about a minute after its node") {
		t.Errorf("the chain ends with %+v", last)
	}
	// Otherwise Kubernetes would, as the answer says, and may have done so already.
	if err := suite.live.Delete(s.ctx, creation, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	s.explainsClaim("data", "is Pending: the creation pod default/"+s.stepPod(s.name, tarn.StepCreation, creation).Name+" is not scheduled: ")
	s.remove(claim)
}

func TestExplainSaysThatACreationWhoseTimeWasUpGoesOn(t *testing.T) {
	t.Parallel()
	shelf := t.TempDir() // until the last pod of the case is gone
	s := begin(t, "explain-deaf")
	s.needsThisMachine()
	creation := script{text: "trap '' TERM; until [ -e /host/go ]; do sleep 0.2; done", hostDir: shelf}.section(asRequested)
	podSpec(creation)["activeDeadlineSeconds"] = int64(10) // the attempt fails after that
	podSpec(creation)["terminationGracePeriodSeconds"] = int64(600)
	s.create(s.provisioner(fields{"volumeCreation": creation, "volumeDeletion": script{text: "true"}.section(nil), "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.claim("data")
	goOn := func() { put(t, filepath.Join(shelf, "go")) }
	t.Cleanup(goOn)
	pod := s.stepPod(s.name, tarn.StepCreation, nil)
	not := "Tarn cannot yet remove what an attempt may have left: pod default/" + pod.Name + " has not ended yet"
	late := "attempt 1 failed: pod default/" + pod.Name + " has not ended within 10s; now " + not
	s.explainsClaim("data", "is Pending: "+late)
	s.explainsThat(os.Getenv("KUBECONFIG"), "volume", "pvc-"+string(claim.UID), "it to be Undoing, and the chain to end with the pod", func(e explanation) bool {
		last := e.last()
		return strings.Contains(e.Verdict, "is Undoing: "+late) && last.Object.Name == pod.Name && last.State == "being deleted" &&
			strings.HasPrefix(last.Message, "it had until ") && last.Next == "when the pod is gone" && len(e.commands()) == 0
	})
	goOn()
	s.gone(pod)
	s.bound(claim)
}

func TestExplainSaysHowAVolumeByHandOfAProvisionerGrows(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-grown")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	class := s.classWith("-grows", s.name, func(class *storagev1.StorageClass) { class.AllowVolumeExpansion = new(true) })
	claim := s.grows("data", class, s.name, "")
	e := s.explainsClaim("data", "is Bound: it is to be expanded from 2Mi to 8Mi: PersistentVolume "+claim.Spec.VolumeName+" was not created by Tarn, so PavProvisioner ", "set its spec.capacity")
	if last := e.last(); last.State != "ControllerResizeInfeasible" || !strings.HasPrefix(last.Next, "never by itself: Tarn did not make it") || len(e.commands()) > 0 {
		t.Errorf("the commands are %q, and the chain ends with %+v", e.commands(), last)
	}
	vol := &corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)}
	if err := suite.live.Patch(s.ctx, vol, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"capacity":{"storage":"8Mi"}}}`))); err != nil { // as the answer says
		t.Fatal(err)
	}
	s.explainsClaim("data", "is Bound: volume "+vol.Name+", 8Mi, ")
}
