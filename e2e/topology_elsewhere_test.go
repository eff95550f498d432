//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// lives keeps a ghost Ready, as its kubelet would, until dies is called or the case ends.
func (s *scenario) lives(ghost *corev1.Node) (dies func()) {
	ctx, stop := context.WithCancel(s.ctx)
	ended := make(chan struct{})
	dies = func() { stop(); <-ended }
	s.t.Cleanup(dies)
	go func() {
		defer close(ended)
		again := time.NewTicker(heartbeat)
		defer again.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-again.C:
			}
			body := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339))
			patch := client.RawPatch("application/strategic-merge-patch+json", []byte(body))
			if err := suite.live.Status().Patch(ctx, &corev1.Node{ObjectMeta: named(ghost.Name)}, patch); err != nil && ctx.Err() == nil {
				s.t.Logf("node %s could not say that it lives: %v", ghost.Name, err)
			}
		}
	}()
	return dies
}

// plays ends a step's pod on a ghost, as its kubelet and its node agent would.
func (s *scenario) plays(pod *corev1.Pod, result tarn.PodResult) {
	s.t.Helper()
	text, err := json.Marshal(result)
	if err != nil {
		s.t.Fatal(err)
	}
	old, now := pod.DeepCopy(), metav1.Now()
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, tarn.AnnotationResult, string(text))
	end := &corev1.ContainerStateTerminated{StartedAt: now, FinishedAt: now}
	pod.Status.Phase = corev1.PodSucceeded
	if !*result.Succeeded {
		pod.Status.Phase, end.ExitCode = corev1.PodFailed, 1
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{Terminated: end}}}
	if err := suite.live.Status().Patch(s.ctx, pod, client.MergeFrom(old)); client.IgnoreNotFound(err) != nil {
		s.t.Fatal(err)
	}
}

// playsOn waits for a condition. Meanwhile it lets every creation pod on a ghost fail with an
// error, and its deletion pod succeed. It gives the numbers of both.
func (s *scenario) playsOn(ghost *corev1.Node, problem, what string, check func() (bool, string)) map[tarn.Step]int {
	s.t.Helper()
	played := map[tarn.Step]int{}
	s.await(what, func() (bool, string) {
		for step, result := range map[tarn.Step]tarn.PodResult{
			tarn.StepCreation: {Succeeded: ptr.To(false), ExitCodes: map[string]int32{"main": 1}, Error: problem},
			tarn.StepDeletion: {Succeeded: ptr.To(true)},
		} {
			for _, pod := range s.stepPods(step) {
				if pod.Spec.NodeName == ghost.Name && pod.Status.Phase == corev1.PodPending {
					s.plays(&pod, result)
					played[step]++
				}
			}
		}
		return check()
	})
	return played
}

// anywhere lets the pod of a section run on every node, even a full one.
func anywhere(section fields) fields {
	podSpec(section)["tolerations"] = []any{fields{"operator": "Exists"}}
	return section
}

// likes makes a pod prefer a ghost, if the scheduler accepts it.
func (s *scenario) likes(ghost *corev1.Node) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Tolerations = []corev1.Toleration{{Key: s.name, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{ghost.Name},
			}}},
		}}}}
	}
}

// aVolumeOfOneNodeIsMadeOnAnother when the disk of the node that the pod prefers turns out to be
// full. Volume and pod then move to the other node. The full node has no kubelet; the case writes
// its status.
func aVolumeOfOneNodeIsMadeOnAnother(t *testing.T) {
	shelf := t.TempDir()
	s := begin(t, "elsewhere")
	other := s.aNode()
	full := s.ghost()
	s.lives(full)
	s.tied(fields{
		"volumeCreation": anywhere(notesNode(shelf, "created", "", asRequested)),
		"volumeDeletion": anywhere(notesNode(shelf, "deleted", "", nil)),
		"volumeStaging":  greeting,
	}, waitsForPods)
	claim := s.claim("data")
	choices := s.choices(claim)
	pod := s.consumer("reader", claim.Name, "grep -x hello /data/greeting; trap exit TERM; sleep 1d & wait", s.likes(full))
	var first corev1.Pod
	s.await("a creation pod on the node that is liked best", func() (bool, string) {
		pods := s.stepPods(tarn.StepCreation)
		if len(pods) == 0 {
			return false, "there is none"
		}
		first = pods[0]
		return first.Spec.NodeName == full.Name, fmt.Sprintf("it is on %q", first.Spec.NodeName)
	})

	// Its kubelet reports a full disk, so the scheduler excludes the node. Then the creation fails.
	s.said(full, func() {
		full.Status.Conditions = append(full.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue, Reason: "KubeletHasDiskPressure", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		})
	})
	s.nodeBecomes(full.Name, "tainted as full", func(n *corev1.Node) bool {
		return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeDiskPressure })
	})
	problem := "no room on " + full.Name
	played := s.playsOn(full, problem, "the claim to be Bound", func() (bool, string) {
		err := s.get(claim)
		return err == nil && claim.Status.Phase == corev1.ClaimBound, fmt.Sprintf("it is %s (%v), the scheduler has chosen %q", claim.Status.Phase, err, choices())
	})
	s.told(claim, "ProvisioningFailed", problem)
	s.ready(pod)
	if err := s.get(pod); err != nil || pod.Spec.NodeName != other.Name {
		t.Errorf("the pod runs on %q (%v), want %q", pod.Spec.NodeName, err, other.Name)
	}
	s.tiedTo(claim, other)
	if where := s.onShelf(shelf, "created"); where != other.Name {
		t.Errorf("created on node %q, want %q", where, other.Name)
	}
	if played[tarn.StepCreation] == 0 || played[tarn.StepDeletion] == 0 {
		t.Errorf("on node %s there were %v, want a creation that fails, and a deletion that undoes it", full.Name, played)
	}
	s.await("all choices to be known", func() (bool, string) {
		got := choices()
		return got[len(got)-1] == other.Name, strings.Join(got, ", ")
	})
	got := choices()
	at := slices.Index(got, other.Name)
	if at < 3 || got[1] != full.Name || got[at-1] != "" || slices.Contains(got[at:], full.Name) {
		t.Errorf("the scheduler's choices were %q, want %q, then none, and then %q", got, full.Name, other.Name)
	}
	s.remove(pod)
	s.remove(claim)
	s.gone(&corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)})
	if where := s.onShelf(shelf, "deleted"); where != other.Name {
		t.Errorf("deleted on node %q, want %q", where, other.Name)
	}
}

// theVolumesOfANodeThatIsDeleted are two. The volume that is being made is made on another node.
// The used volume is not deleted silently, but waits for a decision.
func theVolumesOfANodeThatIsDeleted(t *testing.T) {
	s := begin(t, "node-deleted")
	other, doomed := s.aNode(), s.ghost()
	dies := s.lives(doomed)
	s.tied(fields{
		"volumeCreation": anywhere(script{text: "true"}.section(asRequested)), "volumeDeletion": anywhere(script{text: "true"}.section(nil)), "volumeStaging": greeting,
	}, waitsForPods)
	there := func() (pod corev1.Pod) {
		s.await("a creation pod on the node that is liked best", func() (bool, string) {
			pods := s.stepPods(tarn.StepCreation)
			if len(pods) != 1 {
				return false, fmt.Sprintf("there are %d", len(pods))
			}
			pod = pods[0]
			return pod.Spec.NodeName == doomed.Name, fmt.Sprintf("it is on %q", pod.Spec.NodeName)
		})
		return pod
	}
	made := s.claim("made")
	first := s.consumer("first", made.Name, "true", s.likes(doomed))
	creation := there()
	s.plays(&creation, tarn.PodResult{Succeeded: ptr.To(true)})
	made = s.bound(made)
	s.tiedTo(made, doomed)
	s.gone(&creation)
	s.await("the first pod on that node, too", func() (bool, string) {
		err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(first), first)
		return err == nil && first.Spec.NodeName == doomed.Name, fmt.Sprintf("it is on %q (%v)", first.Spec.NodeName, err)
	})
	moved := s.claim("moved")
	second := s.consumer("second", moved.Name, "grep -x hello /data/greeting", s.likes(doomed))
	creation = there()

	// The pod garbage collector ends the pods of the node and deletes them at once. A finalizer
	// holds this one, so that the controller sees how it ended.
	s.hold(&creation)
	dies()
	s.delete(doomed)
	s.step = soon + givenUp
	s.told(moved, "ProvisioningFailed", "node no longer exists")
	s.unhold(&creation)
	moved = s.bound(moved)
	s.tiedTo(moved, other)
	s.succeeded(second)

	s.gone(first) // deleted with its node
	s.remove(made)
	vol := &corev1.PersistentVolume{ObjectMeta: named(made.Spec.VolumeName)}
	e := s.explains("volume", vol.Name, fmt.Sprintf("node %q, which holds its storage, is gone", doomed.Name))
	s.does(e.command())
	s.gone(vol)
	s.remove(second)
	s.remove(moved)
}
