//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// Not parallel: meanwhile no other case can make progress. The controller records a step and makes
// its pod right after that. With the controller stopped and the pod deleted, the state in between
// lasts long enough to ask.
func TestExplainSaysWhichPodOfAStepIsNotMade(t *testing.T) {
	shelf := t.TempDir() // until the last pod of the case is gone
	s := begin(t, "explain-unmade")
	s.needsThisMachine()
	waits := func(claim, then string) fields { // the claim's pod waits until the shelf has a file
		text := "[ {{ pvc.metadata.name }} != " + claim + " ] || until [ -e /host/go ]; do sleep 1; done\n" + then
		return script{text: text, hostDir: shelf}.section(nil)
	}
	expansion := waits("growing", "true")
	expansion["nodePodTemplate"] = waits("follows", "true")["podTemplate"]
	s.create(s.provisioner(fields{
		"volumeValidation": waits("checked", "true"), "volumeCreation": asRequested, "volumeDeletion": waits("going", "true"),
		"volumeExpansion": expansion, "volumeStaging": waits("staged", "mkdir -p /pav/volume"), "volumeUnstaging": waits("leaves", "true"),
	}))
	s.lonely()
	class := ofClass(s.classWith("", s.name, func(class *storagev1.StorageClass) { class.AllowVolumeExpansion = new(true) }))
	going, growing, staged := s.bound(s.claimWith("going", class)), s.bound(s.claimWith("growing", class)), s.bound(s.claimWith("staged", class))
	checked := s.claimWith("checked", class)
	follows, leaves := s.onTheNode(class)
	s.delete(going)
	s.ask(growing, "8Mi")
	pod := s.consumer("user", staged.Name, stays)
	hand := s.another("-hand", fields{"volumeValidation": script{text: "until [ -e /host/go ]; do sleep 1; done", hostDir: shelf}.section(nil), "volumeStaging": greeting})
	byHand := s.consumer("by-hand", s.handWritten("hand", "shelf-7", func(vol *corev1.PersistentVolume) { vol.Spec.CSI.Driver = hand }).Name, stays)

	again, regoing, undone := s.failsOnce(shelf)
	all := []unmade{
		{tarn.StepValidation, checked, 1, silence{kind: "claim", name: s.name + "/" + checked.Name, want: []string{"its claim is being validated"}}},
		{tarn.StepValidation, byHand, 0, silence{kind: "pod", name: s.name + "/" + byHand.Name, want: []string{"it is being validated first"}}},
		{tarn.StepCreation, again, 2, silence{kind: "claim", name: s.name + "/" + again.Name, want: []string{"attempt 1 failed: ", "; now its volume is being made, attempt 2"}}},
		{tarn.StepDeletion, undone, 1, silence{kind: "claim", name: s.name + "/" + undone.Name, want: []string{"attempt 1 failed: ", "; now Tarn is removing what an attempt may have left, attempt 1"}}},
		{tarn.StepDeletion, going, 1, silence{kind: "volume", name: going.Spec.VolumeName, want: []string{"its storage is being destroyed, attempt 1"}}},
		{tarn.StepDeletion, regoing, 2, silence{kind: "volume", name: regoing.Spec.VolumeName, want: []string{"its storage could not be removed: ", "; now attempt 2 is under way"}}},
		{tarn.StepExpansion, growing, 1, silence{kind: "claim", name: s.name + "/" + growing.Name, want: []string{"it is to be expanded from 2Mi to 8Mi"}}},
		{tarn.StepNodeExpansion, nil, 0, silence{kind: "claim", name: s.name + "/" + follows.Name, want: []string{"it is to be expanded from 2Mi to 8Mi"}}},
		{tarn.StepUnstaging, nil, 0, silence{kind: "pod", name: s.name + "/" + leaves.Name, want: []string{"is Terminating: volume ", " is being unstaged on node "}}},
		{tarn.StepStaging, nil, 0, silence{kind: "pod", name: s.name + "/" + pod.Name, want: []string{"its staging pod has not created /pav/volume yet"}}},
	}
	for _, c := range all {
		s.await("a "+string(c.step)+" pod to run for "+c.name, func() (bool, string) {
			pods := c.pods(s)
			return len(pods) == 1, fmt.Sprint(names(pods))
		})
	}
	s.explainsClaim("growing", "is Bound: the expansion pod tarn-volumes/pav-expansion-", "has been running for")
	goOn := s.stops(controller)
	t.Run("each by itself", func(t *testing.T) { // an answer takes a second look, so all run in parallel
		for _, c := range all {
			t.Run(fmt.Sprintf("%s, asked of a %s", c.step, c.kind), func(t *testing.T) {
				t.Parallel()
				c.goesMissing(s.part(t))
			})
		}
	})
	put(t, filepath.Join(shelf, "go"))
	goOn()
	s.ready(pod)
	s.gone(leaves)
	s.resizedTo(follows, "8Mi")
	s.ready(byHand)
	s.bound(checked)
	s.bound(again)
	s.bound(undone)
	for _, claim := range []*corev1.PersistentVolumeClaim{going, regoing} {
		s.gone(&corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)})
	}
	s.explainsClaim("growing", "is Bound")
}

// unmade is a step whose pod was deleted, and the wanted answer. It names the object, and the
// attempt where a step has several pods.
type unmade struct {
	step    tarn.Step
	of      client.Object // the claim, or the pod of a handwritten volume
	attempt int
	silence
}

// pods are the running pods of a step, of either provisioner.
func (u unmade) pods(s *scenario) []corev1.Pod {
	s.t.Helper()
	if _, byHand := u.of.(*corev1.Pod); byHand {
		return (&scenario{t: s.t, ctx: s.ctx, name: s.name + "-hand"}).stepPods(u.step)
	}
	once := &scenario{t: s.t, ctx: s.ctx, name: s.name + "-once"}
	return slices.DeleteFunc(append(s.stepPods(u.step), once.stepPods(u.step)...), func(pod corev1.Pod) bool {
		return pod.Status.Phase != corev1.PodRunning || u.of != nil && !strings.HasSuffix(pod.Name, fmt.Sprintf("%s-%d", u.of.GetUID(), u.attempt))
	})
}

// goesMissing deletes the pod. It asks about the waiting object until the answer says that the pod
// is missing, and ends with the lease of the controller that would make it.
func (u unmade) goesMissing(s *scenario) {
	s.t.Helper()
	missing := u.pods(s)[0]
	if err := suite.live.Delete(s.ctx, &missing, client.GracePeriodSeconds(0)); err != nil {
		s.t.Fatal(err)
	}
	what := fmt.Sprintf("the verdict to have %q, pod %s to be missing, and the chain to end with the lease", u.want, missing.Name)
	s.explainsThat(os.Getenv("KUBECONFIG"), u.kind, u.name, what, func(e explanation) bool {
		shown := slices.ContainsFunc(e.Links, func(l link) bool {
			return l.Object.Kind == "Pod" && l.Object.Name == missing.Name && l.State == "missing"
		})
		return containsAll(e.Verdict, u.want) && shown && e.last().Object.Kind == "Lease"
	})
}

// onTheNode gives a claim whose volume has grown and whose node must follow. It also gives a pod
// that is being deleted and whose node must unstage its volume.
func (s *scenario) onTheNode(class func(*corev1.PersistentVolumeClaim)) (follows *corev1.PersistentVolumeClaim, leaves *corev1.Pod) {
	s.t.Helper()
	follows = s.bound(s.claimWith("follows", class))
	leaves = s.consumer("leaves", s.bound(s.claimWith("leaves", class)).Name, stays)
	s.ask(follows, "8Mi")
	s.told(follows, "FileSystemResizeRequired")
	s.consumer("follows", follows.Name, stays) // it does not start before
	s.ready(leaves)
	s.delete(leaves)
	return follows, leaves
}

// failsOnce gives three claims, each of which continues when the shelf has a file. One volume is
// made at the second attempt, one is deleted at the second attempt, and the first attempt of the
// third is undone.
func (s *scenario) failsOnce(shelf string) (made, removed, undone *corev1.PersistentVolumeClaim) {
	s.t.Helper()
	only := func(claim, does string) string {
		return "[ {{ pvc.metadata.name }} != " + claim + " ] || " + does + "\n"
	}
	fails := func(claim string) string { return only(claim, "! mkdir /host/"+claim+" || exit 3") }
	waits := func(claim string) string { return only(claim, "until [ -e /host/go ]; do sleep 1; done") }
	class := ofClass(s.another("-once", fields{
		"volumeCreation": script{text: fails("again") + waits("again") + fails("undone"), hostDir: shelf}.section(asRequested),
		"volumeDeletion": script{text: fails("regoing") + waits("regoing") + waits("undone"), hostDir: shelf}.section(nil),
		"volumeStaging":  greeting,
	}))
	removed = s.bound(s.claimWith("regoing", class))
	s.delete(removed)
	return s.claimWith("again", class), removed, s.claimWith("undone", class)
}

// lonely asks about a claim in a cluster without volumes, because other parts of the case have
// deleted theirs.
func (s *scenario) lonely() {
	s.t.Helper()
	s.await("the volumes of earlier cases to be gone", func() (bool, string) {
		volumes := &corev1.PersistentVolumeList{}
		err := suite.live.List(s.ctx, volumes)
		return err == nil && len(volumes.Items) == 0, fmt.Sprintf("there are %d (%v)", len(volumes.Items), err)
	})
	claim := s.claimWith("lonely", ofClass(""))
	e := s.explainsClaim(claim.Name, "is Pending: ")
	if last := e.Links[len(e.Links)-1]; last.Message != "there is no PersistentVolume" {
		s.t.Errorf("the chain of a claim in a cluster without volumes ends with %+v", last)
	}
	for _, c := range []struct {
		reason, told string
		edit         func(*corev1.PersistentVolume)
	}{
		{"Taken", fmt.Sprintf("belongs to claim %s/to-come; nor would it fit: volume %q has class %q, the claim asks for \"\"", s.name, s.name+"-taken", s.name+"-by-hand"), func(vol *corev1.PersistentVolume) {
			vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: s.name, Name: "to-come"}
		}},
		{"BeingDeleted", "is being deleted", func(*corev1.PersistentVolume) {}},
	} { // these rank behind all volumes of other cases
		vol := s.byHand(strings.ToLower(c.reason), c.edit)
		if c.reason == "BeingDeleted" {
			s.hold(vol)
			s.delete(vol)
		}
		e := s.explainsClaim(claim.Name, "is Pending: ")
		if last := e.last(); last.Reason != c.reason || last.Message != fmt.Sprintf("came nearest: volume %q %s", vol.Name, c.told) || len(e.commands()) > 0 {
			s.t.Errorf("of a volume that %s it says %+v", c.told, e)
		}
	}
	s.remove(claim)
}
