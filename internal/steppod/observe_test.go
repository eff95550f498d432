package steppod_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
)

var (
	born    = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	running = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
)

func ended(code int32) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.NewTime(born.Add(time.Second))}}
}

type change func(*corev1.Pod)

// behind schedules the pod and starts it at once, on a node whose clock is behind.
func behind(by time.Duration) change {
	return func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(born)}}
		pod.Status.StartTime = &metav1.Time{Time: born.Add(-by)}
	}
}

func podOf(step tarnv1.Step, changes ...change) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "p", Namespace: "ns", CreationTimestamp: metav1.NewTime(born),
		Labels: map[string]string{tarnv1.LabelStep: string(step)}, Annotations: map[string]string{},
		OwnerReferences: []metav1.OwnerReference{{UID: "owner"}},
	}}
	if step != tarnv1.StepStaging {
		pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](600)
		pod.Spec.Volumes = []corev1.Volume{{Name: "pav", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: tarnv1.ResultsDriver}}}}
	}
	for _, c := range changes {
		c(pod)
	}
	return pod
}

func phase(p corev1.PodPhase) change { return func(pod *corev1.Pod) { pod.Status.Phase = p } }

func container(state corev1.ContainerState) change {
	return func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: state}}
	}
}

func result(r tarnv1.PodResult) change {
	return func(pod *corev1.Pod) {
		data, _ := json.Marshal(r)
		pod.Annotations[tarnv1.AnnotationResult] = string(data)
	}
}

func TestAPodIs(t *testing.T) {
	stuck := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}
	crashing := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 5m0s"}}
	hasCrashed := func(pod *corev1.Pod) { pod.Status.ContainerStatuses[0].LastTerminationState = ended(7) }
	unscheduled := func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes"}}
	}
	onNode := func(pod *corev1.Pod) { pod.Spec.NodeName = "n" }
	kept := func(pod *corev1.Pod) {
		pod.Finalizers, pod.DeletionGracePeriodSeconds = []string{"example.org/audit"}, ptr.To[int64](0)
	}
	goingLater := func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: born.Add(time.Minute)} }
	going := func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: born} }
	late := func(pod *corev1.Pod) {
		pod.Status.Reason, pod.Status.Message = "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
	}
	disrupted := func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists"}}
	}
	evicted := func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: "the node was low on memory"}}
	}
	drained := func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"}}
	}
	printed := func(text string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 127, Message: text}}
	}
	wentWell := result(tarnv1.PodResult{Succeeded: ptr.To(true)})
	const soon, eons = 5 * time.Second, time.Hour
	for _, c := range []struct {
		name        string
		pod         *corev1.Pod
		after       time.Duration
		want        steppod.PodState
		wantReason  string
		wantMessage string
	}{
		{"absent", nil, soon, steppod.PodAbsent, "", ""},
		{"foreign when another owns it", podOf(tarnv1.StepCreation, func(p *corev1.Pod) { p.OwnerReferences[0].UID = "x" }), soon, steppod.PodForeign, steppod.ReasonPodForeign, "delete it"},
		{"starting before a container runs", podOf(tarnv1.StepCreation), soon, steppod.PodStarting, "", ""},
		{"starting, with what the scheduler says", podOf(tarnv1.StepCreation, unscheduled), soon, steppod.PodStarting, "", "not scheduled: 0/1 nodes"},
		{"starting, with what keeps the container", podOf(tarnv1.StepCreation, container(stuck)), soon, steppod.PodStarting, "", "ImagePullBackOff: no such image"},
		{"running", podOf(tarnv1.StepCreation, container(running)), soon, steppod.PodRunning, "", ""},
		{"going when somebody deletes it", podOf(tarnv1.StepCreation, container(running), going), soon, steppod.PodGoing, "", ""},
		{"going when somebody deletes it before it has a node, though it is called failed then", podOf(tarnv1.StepCreation, unscheduled, goingLater, phase(corev1.PodFailed)), soon, steppod.PodGoing, "", ""},
		{"going for long, as its node is silent", podOf(tarnv1.StepCreation, onNode, container(running), goingLater), eons, steppod.PodGoing, "", `node "n" does not confirm it`},
		{"going for long, as somebody keeps it", podOf(tarnv1.StepCreation, unscheduled, goingLater, kept, phase(corev1.PodFailed)), eons, steppod.PodGoing, "", "by the controllers that set them: example.org/audit"},
		{"failed when the kubelet refused it, though somebody deletes it then", podOf(tarnv1.StepCreation, onNode, goingLater, phase(corev1.PodFailed), func(p *corev1.Pod) { p.Status.Reason = "OutOfcpu" }), soon, steppod.PodFailed, steppod.ReasonPodFailed, "OutOfcpu"},
		{"failed when its time is up, with the reason", podOf(tarnv1.StepCreation, container(stuck)), eons, steppod.PodFailed, steppod.ReasonPodDeadline, "ImagePullBackOff"},
		{"starting until its time is up, though it finds no node", podOf(tarnv1.StepCreation, unscheduled), 10 * time.Minute, steppod.PodStarting, "", "not scheduled: 0/1 nodes"},
		{"failed when its time is up and it has found no node, with what the scheduler says", podOf(tarnv1.StepCreation, unscheduled), 10*time.Minute + 15*time.Second, steppod.PodFailed, steppod.ReasonPodDeadline, "pod ns/p has not ended within 10m0s: not scheduled: 0/1 nodes"},
		{"running while it crashes and has time left", podOf(tarnv1.StepCreation, container(crashing), hasCrashed), 9 * time.Minute, steppod.PodRunning, "", "CrashLoopBackOff: back-off 5m0s"},
		{"failed when its time is up and it still crashes, with that", podOf(tarnv1.StepCreation, container(crashing), hasCrashed), eons, steppod.PodFailed, steppod.ReasonPodDeadline, "within 10m0s: container c: CrashLoopBackOff: back-off 5m0s"},
		{"going when it ended after its deletion, by a clock that is behind", podOf(tarnv1.StepDeletion, onNode, phase(corev1.PodSucceeded), container(ended(0)), goingLater, behind(5*time.Minute), result(tarnv1.PodResult{})), soon, steppod.PodGoing, "", ""},
		{"succeeded when it ended before its deletion, by the API server's clock", podOf(tarnv1.StepDeletion, onNode, phase(corev1.PodSucceeded), container(ended(0)), goingLater, behind(0), result(tarnv1.PodResult{})), soon, steppod.PodSucceeded, "", ""},
		{"running until its time is up by the API server's clock, though its node's is behind", podOf(tarnv1.StepCreation, container(running), behind(5*time.Minute)), 10 * time.Minute, steppod.PodRunning, "", ""},
		{"settling while its results are not stored, though its node's clock is behind", podOf(tarnv1.StepCreation, phase(corev1.PodSucceeded), container(ended(0)), behind(5*time.Minute), func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Terminated.FinishedAt = metav1.NewTime(born)
		}), 6 * time.Minute, steppod.PodSettling, "", ""},
		{"settling while its results are not stored", podOf(tarnv1.StepCreation, phase(corev1.PodSucceeded), container(ended(0))), soon, steppod.PodSettling, "", ""},
		{"failed when its results never come", podOf(tarnv1.StepCreation, phase(corev1.PodSucceeded), container(ended(0))), eons, steppod.PodFailed, steppod.ReasonResultLost, "node agent"},
		{"succeeded with its results", podOf(tarnv1.StepCreation, phase(corev1.PodSucceeded), container(ended(0)), result(tarnv1.PodResult{})), soon, steppod.PodSucceeded, "", ""},
		{"succeeded by the node agent's word, before the kubelet's", podOf(tarnv1.StepCreation, container(running), result(tarnv1.PodResult{Succeeded: ptr.To(true)})), soon, steppod.PodSucceeded, "", ""},
		{"failed by the kubelet's later word, against the node agent's", podOf(tarnv1.StepCreation, phase(corev1.PodFailed), func(p *corev1.Pod) { p.Status.Reason = "Evicted" }, container(ended(0)), wentWell), soon, steppod.PodFailed, steppod.ReasonPodFailed, "Evicted"},
		{"failed when the kubelet has ended it, though it exited with 0", podOf(tarnv1.StepCreation, phase(corev1.PodSucceeded), evicted, container(ended(0)), result(tarnv1.PodResult{})), soon, steppod.PodFailed, steppod.ReasonPodFailed, "low on memory"},
		{"failed when the kubelet has ended it, against the node agent's word", podOf(tarnv1.StepCreation, phase(corev1.PodSucceeded), evicted, container(ended(0)), wentWell), eons, steppod.PodFailed, steppod.ReasonPodFailed, "low on memory"},
		{"succeeded though somebody has wanted it off its node", podOf(tarnv1.StepCreation, phase(corev1.PodSucceeded), drained, container(ended(0)), wentWell), soon, steppod.PodSucceeded, "", ""},
		{"a staging pod that the kubelet has ended", podOf(tarnv1.StepStaging, phase(corev1.PodSucceeded), evicted, container(ended(0))), soon, steppod.PodFailed, steppod.ReasonPodFailed, "low on memory"},
		{"a deletion has not succeeded by the node agent's word alone", podOf(tarnv1.StepDeletion, container(running), wentWell), soon, steppod.PodRunning, "", ""},
		{"a deletion has when the kubelet says so", podOf(tarnv1.StepDeletion, phase(corev1.PodSucceeded), container(ended(0)), wentWell), soon, steppod.PodSucceeded, "", ""},
		{"a deletion has not when the kubelet has ended it", podOf(tarnv1.StepDeletion, phase(corev1.PodSucceeded), evicted, container(ended(0)), wentWell), soon, steppod.PodFailed, steppod.ReasonPodFailed, "low on memory"},
		{"a deletion has failed by the node agent's word", podOf(tarnv1.StepDeletion, container(running), result(tarnv1.PodResult{Succeeded: ptr.To(false), Error: "no disk", ExitCodes: map[string]int32{"c": 3}})), soon, steppod.PodFailed, steppod.ReasonPodFailed, "no disk"},
		{"a deletion whose node falls silent before the kubelet has said so", podOf(tarnv1.StepDeletion, container(running), wentWell), eons, steppod.PodFailed, steppod.ReasonPodDeadline, "has not ended"},
		{"a recycling has not succeeded by the node agent's word alone", podOf(tarnv1.StepRecycling, container(running), wentWell), soon, steppod.PodRunning, "", ""},
		{"failed by the node agent's word", podOf(tarnv1.StepCreation, container(running), result(tarnv1.PodResult{Succeeded: ptr.To(false), Error: "no disk", ExitCodes: map[string]int32{"c": 3}})), soon, steppod.PodFailed, steppod.ReasonPodFailed, "no disk"},
		{"not failed by the node agent's word alone, as without a text the kubelet knows more", podOf(tarnv1.StepCreation, container(running), result(tarnv1.PodResult{Succeeded: ptr.To(false), ExitCodes: map[string]int32{"c": 3}})), soon, steppod.PodRunning, "", ""},
		{"failed with what it printed last where there is no text", podOf(tarnv1.StepCreation, phase(corev1.PodFailed), container(printed("sh: mkfs: not found\n")), result(tarnv1.PodResult{})), soon, steppod.PodFailed, steppod.ReasonPodFailed, "container c exited with 127: sh: mkfs: not found"},
		{"failed with the last lines of it, without what a terminal would act on", podOf(tarnv1.StepCreation, phase(corev1.PodFailed), container(printed(strings.Repeat("first\n", 5)+strings.Repeat("a\tb\x1b[2J\r\n", 10))), result(tarnv1.PodResult{})), soon, steppod.PodFailed, steppod.ReasonPodFailed, "exited with 127: a b[2J\na b[2J\n"},
		{"failed with the end of a long line", podOf(tarnv1.StepCreation, phase(corev1.PodFailed), container(printed(strings.Repeat("é", 2000)+"the end")), result(tarnv1.PodResult{})), soon, steppod.PodFailed, steppod.ReasonPodFailed, "exited with 127: ..." + strings.Repeat("é", 508) + "the end"},
		{"failed with the text of /pav/error alone", podOf(tarnv1.StepCreation, phase(corev1.PodFailed), container(printed("noise")), result(tarnv1.PodResult{Error: "no room"})), soon, steppod.PodFailed, steppod.ReasonPodFailed, "no room"},
		{"failed with the text of /pav/error", podOf(tarnv1.StepCreation, phase(corev1.PodFailed), container(ended(1)), result(tarnv1.PodResult{Error: "no room"})), soon, steppod.PodFailed, steppod.ReasonPodFailed, "no room"},
		{"failed with the runtime's reason where it tells more", podOf(tarnv1.StepCreation, phase(corev1.PodFailed), container(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}), result(tarnv1.PodResult{})), soon, steppod.PodFailed, steppod.ReasonPodFailed, "container c exited with 137 (OOMKilled)"},
		{"failed with the exit code where there is no text", podOf(tarnv1.StepCreation, phase(corev1.PodFailed), container(ended(7)), result(tarnv1.PodResult{})), soon, steppod.PodFailed, steppod.ReasonPodFailed, "container c exited with 7"},
		{"failed at once when the kubelet refused it", podOf(tarnv1.StepCreation, phase(corev1.PodFailed), func(p *corev1.Pod) { p.Status.Reason = "OutOfcpu" }), soon, steppod.PodFailed, steppod.ReasonPodFailed, "OutOfcpu"},
		{"failed with its node, by which it is told", podOf(tarnv1.StepCreation, phase(corev1.PodFailed), disrupted), soon, steppod.PodFailed, steppod.ReasonPodFailed, "DeletionByPodGC: PodGC: node no longer exists"},
		{"failed when the kubelet ended it at its deadline, with what its container still waits for", podOf(tarnv1.StepCreation, phase(corev1.PodFailed), late, container(stuck)), soon, steppod.PodFailed, steppod.ReasonPodDeadline, "pod ns/p has not ended within 10m0s: container c: ImagePullBackOff: no such image"},
		{"failed when the kubelet ended it at its deadline, with how its container ended", podOf(tarnv1.StepCreation, phase(corev1.PodFailed), late, container(ended(143)), result(tarnv1.PodResult{})), soon, steppod.PodFailed, steppod.ReasonPodDeadline, "within 10m0s: container c exited with 143"},
		{"failed when the kubelet ended it at its deadline, with the text of /pav/error", podOf(tarnv1.StepCreation, phase(corev1.PodFailed), late, container(ended(143)), result(tarnv1.PodResult{Error: "waited for shelf 7"})), soon, steppod.PodFailed, steppod.ReasonPodDeadline, "within 10m0s: waited for shelf 7"},
		{"failed at its deadline by the node agent's word, before the kubelet's", podOf(tarnv1.StepCreation, container(running), result(tarnv1.PodResult{Succeeded: ptr.To(false), Error: "too slow", ExitCodes: map[string]int32{"c": 137}})), 10 * time.Minute, steppod.PodFailed, steppod.ReasonPodDeadline, "within 10m0s: too slow"},
		{"failed at its deadline where the kubelet stays silent, with the node agent's word", podOf(tarnv1.StepCreation, container(running), result(tarnv1.PodResult{Succeeded: ptr.To(false), ExitCodes: map[string]int32{"c": 137}})), eons, steppod.PodFailed, steppod.ReasonPodDeadline, "within 10m0s: container c exited with 137"},
		{"failed for itself, though its time is up by now", podOf(tarnv1.StepCreation, phase(corev1.PodFailed), container(ended(7)), result(tarnv1.PodResult{})), eons, steppod.PodFailed, steppod.ReasonPodFailed, "container c exited with 7"},
		{"a staging pod that was ended at a deadline of its own", podOf(tarnv1.StepStaging, phase(corev1.PodFailed), late, container(stuck), func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](5) }), soon, steppod.PodFailed, steppod.ReasonPodDeadline, "within 5s: container c: ImagePullBackOff"},
		{"failed when the result is not Tarn's", podOf(tarnv1.StepCreation, phase(corev1.PodSucceeded), func(p *corev1.Pod) { p.Annotations[tarnv1.AnnotationResult] = "{" }), soon, steppod.PodFailed, steppod.ReasonResultInvalid, "annotation"},
		{"a staging pod has no results to wait for", podOf(tarnv1.StepStaging, phase(corev1.PodSucceeded), container(ended(0))), soon, steppod.PodSucceeded, "", ""},
		{"a staging pod runs as long as it likes", podOf(tarnv1.StepStaging, container(running)), 100 * eons, steppod.PodRunning, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := steppod.Observe(c.pod, "owner", born.Add(c.after))
			if got.State != c.want || got.Reason != c.wantReason || !strings.Contains(got.Message, c.wantMessage) {
				t.Errorf("Observe = %s %q %q, want %s %q with %q", got.State, got.Reason, got.Message, c.want, c.wantReason, c.wantMessage)
			}
			if got.State == steppod.PodSucceeded && got.Result == nil && c.pod.Labels[tarnv1.LabelStep] != "staging" {
				t.Error("a succeeded pod has no result")
			}
		})
	}
}

func TestAPodHasEndedByEithersWord(t *testing.T) {
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"it runs":                           {podOf(tarnv1.StepDeletion, phase(corev1.PodRunning)), false},
		"a result, but not how it ended":    {podOf(tarnv1.StepDeletion, phase(corev1.PodRunning), result(tarnv1.PodResult{})), false},
		"the kubelet says so":               {podOf(tarnv1.StepDeletion, phase(corev1.PodFailed)), true},
		"the node agent says so, of either": {podOf(tarnv1.StepDeletion, phase(corev1.PodRunning), result(tarnv1.PodResult{Succeeded: ptr.To(true)})), true},
		"its result is not Tarn's":          {podOf(tarnv1.StepDeletion, func(p *corev1.Pod) { p.Annotations[tarnv1.AnnotationResult] = "{" }), false},
	} {
		if got := steppod.Ended(c.pod); got != c.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func TestAPodNeverRanBy(t *testing.T) {
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	unknown := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "ContainerStatusUnknown"}}
	of := func(s corev1.ContainerStatus, changes ...change) *corev1.Pod {
		return podOf(tarnv1.StepCreation, append([]change{phase(corev1.PodFailed), func(p *corev1.Pod) {
			p.Spec.Containers, p.Status.ContainerStatuses = make([]corev1.Container, 1), []corev1.ContainerStatus{s}
		}}, changes...)...)
	}
	disrupted := func(reason string) change {
		return func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason}}
		}
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"the kubelet ended it as it waited":           {of(corev1.ContainerStatus{State: waiting}), true},
		"the kubelet found no container as it ended":  {of(corev1.ContainerStatus{State: unknown}), true},
		"the kubelet evicted it as it waited":         {of(corev1.ContainerStatus{State: waiting}, disrupted(corev1.PodReasonTerminationByKubelet)), true},
		"not while it waits: a container may start":   {of(corev1.ContainerStatus{State: waiting}, phase(corev1.PodPending)), false},
		"not by the word of garbage collection":       {of(corev1.ContainerStatus{State: waiting}, disrupted("DeletionByPodGC")), false},
		"not where no status is there: it is refused": {podOf(tarnv1.StepCreation, phase(corev1.PodFailed), func(p *corev1.Pod) { p.Spec.Containers = make([]corev1.Container, 1) }), false},
		"not when a container was made":               {of(corev1.ContainerStatus{State: waiting, ContainerID: "containerd://1"}), false},
		"not when a container ran":                    {of(corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: metav1.NewTime(born)}}}), false},
		"not when a container was started again":      {of(corev1.ContainerStatus{State: unknown, RestartCount: 1}), false},
		"not when an init container ran": {of(corev1.ContainerStatus{State: waiting}, func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{State: ended(1), ContainerID: "containerd://1"}}
		}), false},
	} {
		if got := steppod.NeverRan(c.pod); got != c.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func TestAPodWhoseContainerNeverRanIsExplainedByWhatItWaitedFor(t *testing.T) {
	unknown := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "The container could not be located when the pod was terminated",
	}}
	creating := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	late := func(pod *corev1.Pod) { pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "DeadlineExceeded" }
	old := func(pod *corev1.Pod) { pod.CreationTimestamp = metav1.NewTime(born.Add(-time.Hour)) }
	const elsewhere = "; its containers were never seen running; its Events may say why: kubectl -n ns describe pod p"
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		want string
		// unseen is added to the message if nothing was seen that the pod waited for.
		unseen string
	}{
		{"what the kubelet has overwritten", podOf(tarnv1.StepCreation, late, container(unknown), result(tarnv1.PodResult{})), "pod ns/p has not ended within 10m0s: no such image", elsewhere},
		{"what nobody has told here", podOf(tarnv1.StepCreation, old), "pod ns/p has not ended within 10m0s: no such image", elsewhere},
		{"what is told to nobody", podOf(tarnv1.StepCreation, old, container(creating)), "pod ns/p has not ended within 10m0s: no such image", elsewhere},
		{"one that runs on a silent node", podOf(tarnv1.StepCreation, old, container(running)), "pod ns/p has not ended within 10m0s: no such image", ""},
		{"not one that says more itself", podOf(tarnv1.StepCreation, late, container(ended(143)), result(tarnv1.PodResult{})), "pod ns/p has not ended within 10m0s: container c exited with 143", ""},
		{"not one that failed for itself", podOf(tarnv1.StepCreation, phase(corev1.PodFailed), container(ended(7)), result(tarnv1.PodResult{})), "container c exited with 7", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := steppod.Observe(c.pod, "owner", born.Add(time.Second))
			if plain := got.After("").After("twice"); plain.Message != got.Message+c.unseen {
				t.Errorf("without a word it is %q, want %q", plain.Message, got.Message+c.unseen)
			}
			if got = got.After("no such image").After("twice"); got.Message != c.want {
				t.Errorf("it is %s %q, want %q", got.State, got.Message, c.want)
			}
		})
	}
}

func TestAStagingPodHasItsTimeUntilTheVolumeIsThere(t *testing.T) {
	inputs := func(data string) change {
		return func(pod *corev1.Pod) { pod.Annotations[tarnv1.AnnotationInputs] = data }
	}
	stuck := container(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 5m0s"}})
	failedBefore := func(text string) change {
		return func(pod *corev1.Pod) {
			pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 7, Message: text, FinishedAt: metav1.NewTime(born)}
		}
	}
	ranTimes := func(n int32) change {
		return func(pod *corev1.Pod) { pod.Status.ContainerStatuses[0].RestartCount = n }
	}
	ownTime := func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](60) }
	const tenMinutes = 10 * time.Minute
	for _, c := range []struct {
		name        string
		pod         *corev1.Pod
		after       time.Duration
		want        steppod.PodState
		wantMessage string
		wantCheck   time.Duration // after its start; 0 for none
	}{
		{"it has ten minutes", podOf(tarnv1.StepStaging, container(running)), tenMinutes - 1, steppod.PodRunning, "", tenMinutes},
		{"and no more", podOf(tarnv1.StepStaging, container(running)), tenMinutes, steppod.PodFailed, "ns/p has not made the volume available within 10m0s", 0},
		{"what kept it is told", podOf(tarnv1.StepStaging, stuck), tenMinutes, steppod.PodFailed, "CrashLoopBackOff: back-off 5m0s", 0},
		{"or what its section says", podOf(tarnv1.StepStaging, container(running), inputs(`{"deadlineSeconds": 3600}`)), tenMinutes, steppod.PodRunning, "", time.Hour},
		{"and then no more", podOf(tarnv1.StepStaging, container(running), inputs(`{"deadlineSeconds": 5}`)), 5 * time.Second, steppod.PodFailed, "within 5s", 0},
		{"one that ended well is not asked", podOf(tarnv1.StepStaging, phase(corev1.PodSucceeded), container(ended(0))), tenMinutes, steppod.PodSucceeded, "", 0},
		{"nor one that failed", podOf(tarnv1.StepStaging, phase(corev1.PodFailed), container(ended(1))), tenMinutes, steppod.PodFailed, "exited with 1", 0},
		{"the first failure ends it, though its container was started again", podOf(tarnv1.StepStaging, container(running), failedBefore("no mount"), ranTimes(1)), time.Minute, steppod.PodFailed, "container c exited with 7: no mount", 0},
		{"as soon as it is seen", podOf(tarnv1.StepStaging, container(ended(3))), time.Minute, steppod.PodFailed, "container c exited with 3", 0},
		{"of two it is told", podOf(tarnv1.StepStaging, container(ended(3)), failedBefore("no mount"), ranTimes(1)), time.Minute, steppod.PodFailed, "exited with 7: no mount", 0},
		{"and that its container had ended well", podOf(tarnv1.StepStaging, container(ended(1)), ranTimes(1)), time.Minute, steppod.PodFailed, "exited with 1; it ran, ended with 0 and was restarted, because the pod's restartPolicy is Always: with Never", 0},
		{"an end with 0 is none", podOf(tarnv1.StepStaging, container(ended(0))), time.Minute, steppod.PodRunning, "", tenMinutes},
		{"the end of its life may come sooner", podOf(tarnv1.StepStaging, container(running), ownTime), time.Second, steppod.PodRunning, "", 75 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := born.Add(c.after)
			got := steppod.Observe(c.pod, "owner", now).BeforeReady(c.pod, ptr.To(metav1.NewTime(born)), now)
			if got.State != c.want || !strings.Contains(got.Message, c.wantMessage) {
				t.Errorf("it is %s %q, want %s with %q", got.State, got.Message, c.want, c.wantMessage)
			}
			if c.wantCheck == 0 && !got.CheckAt.IsZero() || c.wantCheck > 0 && !got.CheckAt.Equal(born.Add(c.wantCheck)) {
				t.Errorf("it is looked at again at %v, want %v after its start", got.CheckAt, c.wantCheck)
			}
			if c.wantMessage != "" && !strings.Contains(c.wantMessage, "exited with") && got.Reason != steppod.ReasonPodDeadline {
				t.Errorf("reason %q", got.Reason)
			}
		})
	}
	pod := podOf(tarnv1.StepStaging, container(running))
	if got := steppod.Observe(pod, "owner", born.Add(time.Hour)).BeforeReady(pod, nil, born.Add(time.Hour)); got.State != steppod.PodRunning {
		t.Errorf("one of whose start nothing is known is %s", got.State)
	}
}

func TestCreationResult(t *testing.T) {
	record := &tarnv1.PavVolume{Spec: tarnv1.PavVolumeSpec{Claim: tarnv1.ClaimReference{UID: "u1"}, RequestedMinCapacity: 100, RequestedMaxCapacity: ptr.To[int64](200)}}
	for _, c := range []struct {
		name         string
		inputs       tarnv1.PodInputs
		result       *tarnv1.PodResult
		wantHandle   string
		wantCapacity int64
		wantError    string
	}{
		{"the fields serve where there is no pod", tarnv1.PodInputs{Handle: "h", Capacity: 150}, nil, "h", 150, ""},
		{"the default handle comes last", tarnv1.PodInputs{Capacity: 150}, nil, "pvc-u1", 150, ""},
		{"the files go before the fields", tarnv1.PodInputs{Handle: "h", Capacity: 150}, &tarnv1.PodResult{Handle: ptr.To("f"), Capacity: ptr.To("160")}, "f", 160, ""},
		{"without any capacity the volume has what was asked for", tarnv1.PodInputs{}, &tarnv1.PodResult{}, "pvc-u1", 100, ""},
		{"an empty handle file", tarnv1.PodInputs{Capacity: 150}, &tarnv1.PodResult{Handle: ptr.To("")}, "", 0, "must not be empty"},
		{"a handle that is too long", tarnv1.PodInputs{Capacity: 150}, &tarnv1.PodResult{Handle: ptr.To(strings.Repeat("x", 129))}, "", 0, "at most 128"},
		{"a handle of two lines", tarnv1.PodInputs{Capacity: 150}, &tarnv1.PodResult{Handle: ptr.To("a\nb")}, "", 0, "control characters"},
		{"a capacity that is no size", tarnv1.PodInputs{}, &tarnv1.PodResult{Capacity: ptr.To("lots")}, "", 0, "/pav/capacity"},
		{"less than requested", tarnv1.PodInputs{Capacity: 99}, nil, "", 0, "requests at least 100"},
		{"more than the limit", tarnv1.PodInputs{Capacity: 201}, nil, "", 0, "limit is 200"},
		{"a file that could not be read", tarnv1.PodInputs{Capacity: 150}, &tarnv1.PodResult{Unreadable: "handle is a symbolic link"}, "", 0, "symbolic link"},
	} {
		t.Run(c.name, func(t *testing.T) {
			handle, bytes, err := steppod.CreationResult(record, c.inputs, c.result)
			if c.wantError != "" {
				if steppod.AsStepError(err) == nil || !strings.Contains(err.Error(), c.wantError) {
					t.Fatalf("error = %v, want a StepError with %q", err, c.wantError)
				}
				return
			}
			if err != nil || handle != c.wantHandle || bytes != c.wantCapacity {
				t.Errorf("= %q, %d, %v, want %q, %d", handle, bytes, err, c.wantHandle, c.wantCapacity)
			}
		})
	}
}

func TestWhatOnlyItsEventsTellKeepsAPodIsObserved(t *testing.T) {
	at := func(reason string, after time.Duration) corev1.Event {
		return corev1.Event{Reason: reason, Message: `secret "keys" not found`, LastTimestamp: metav1.NewTime(born.Add(after))}
	}
	onNode := func(pod *corev1.Pod) { pod.Spec.NodeName = "n" }
	stuck := container(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}})
	for _, c := range []struct {
		name   string
		pod    *corev1.Pod
		after  time.Duration
		events []corev1.Event
		// wantNote must be in the Event that the claim gets, wantAction is its action; empty for
		// none.
		wantNote, wantAction string
		// wantNext is the time of the next check, after the pod's creation.
		wantNext time.Duration
	}{
		{"not at once", podOf(tarnv1.StepCreation, onNode), time.Second, []corev1.Event{at("FailedMount", 0)}, "", "", 5 * time.Second},
		{"after five seconds", podOf(tarnv1.StepCreation, onNode), 5 * time.Second, []corev1.Event{at("FailedMount", 0)}, `pod ns/p waits: FailedMount: secret "keys" not found`, "WaitFailedMount", 25 * time.Second},
		{"nothing yet", podOf(tarnv1.StepCreation, onNode), 5 * time.Second, nil, "", "", 10 * time.Second},
		{"not what has passed", podOf(tarnv1.StepCreation, onNode), 5 * time.Second, []corev1.Event{at("Pulling", 2), at("FailedMount", 1)}, "", "", 10 * time.Second},
		{"its status tells more", podOf(tarnv1.StepCreation, onNode, stuck), 5 * time.Second, []corev1.Event{at("FailedMount", 0)}, "ErrImagePull: no such image", "WaitImagePullBackOff", 0},
		{"not of one that runs", podOf(tarnv1.StepCreation, onNode, container(running)), time.Minute, []corev1.Event{at("FailedMount", 0)}, "", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := born.Add(c.after)
			steps := &steppod.Steps{EventsOf: func(context.Context, client.Object) ([]corev1.Event, error) { return c.events, nil }}
			got, err := steps.Unmounted(t.Context(), c.pod, steppod.Observe(c.pod, "owner", now), now)
			if err != nil {
				t.Fatal(err)
			}
			action, note := got.WaitEvent(c.pod)
			if action != c.wantAction || (note == "") != (c.wantNote == "") || !strings.Contains(note, c.wantNote) {
				t.Errorf("the Event is %s %q, want %s %q", action, note, c.wantAction, c.wantNote)
			}
			if c.wantNext > 0 && !got.CheckAt.Equal(born.Add(c.wantNext)) {
				t.Errorf("it is looked at again at %v, want %v after its creation", got.CheckAt, c.wantNext)
			}
		})
	}
}
