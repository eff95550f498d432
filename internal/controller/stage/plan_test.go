package stage

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/steppod"
)

// said is a plan in words, without its status writes.
func said(p Plan) string {
	var parts []string
	for _, a := range p.Actions {
		switch a := a.(type) {
		case WriteStatus:
			parts = append(parts, "write")
		case action.StartPod:
			parts = append(parts, "start "+a.Pod.Name)
		case ConfirmSole:
			parts = append(parts, "confirm")
		case action.DiscardPods:
			for i := range a.Pods {
				parts = append(parts, "discard "+a.Pods[i].Name)
			}
		case LetGo:
			parts = append(parts, "let go "+strings.Join(a.Finalizers, " "))
		case action.Delete:
			if word := "end " + a.Object.GetName(); a.Grace != nil {
				parts = append(parts, strings.Replace(word, "end", "hurry", 1))
			} else {
				parts = append(parts, word+map[bool]string{true: " if unchanged"}[a.Unchanged])
			}
		case action.Emit:
			switch a.About.(type) {
			case *corev1.Pod:
				parts = append(parts, "tell "+a.Reason)
			case *tarnv1.PavStage:
				parts = append(parts, "post "+a.Reason)
			}
		default:
			parts = append(parts, strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", a), "stage.")))
		}
	}
	return strings.Join(parts, ", ")
}

func written(p Plan) *tarnv1.PavStagePodStatus {
	for _, a := range p.Actions {
		if w, ok := a.(WriteStatus); ok {
			return &w.Status
		}
	}
	return nil
}

type planCase struct {
	name string
	view View
	// want is the plan in words, see said.
	want string
	// wantStatus is the written status; nil for no write.
	wantStatus *tarnv1.PavStagePodStatus
	// wantNote is the text of the Event.
	wantNote string
	// wantLook is when to reconcile, counted from noon; 0 means never.
	wantLook time.Duration
}

func (c planCase) run(t *testing.T) {
	p := plan(c.view, noon)
	if got := said(p); got != c.want {
		t.Errorf("got %q, want %q", got, c.want)
	}
	if diff := cmp.Diff(c.wantStatus, written(p)); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	note := ""
	for _, a := range p.Actions {
		if told, ok := a.(action.Emit); ok && told.Reason != steppod.EventPodWaiting {
			note = told.Note
		}
	}
	if note != c.wantNote {
		t.Errorf("got note %q, want %q", note, c.wantNote)
	}
	switch {
	case c.wantLook == 0 && !p.LookAt.IsZero():
		t.Errorf("looks again at %v, want never", p.LookAt)
	case c.wantLook != 0 && !p.LookAt.Equal(noon.Add(c.wantLook)):
		t.Errorf("looks again at %v, want %v", p.LookAt, noon.Add(c.wantLook))
	}
}

func TestPlanOfAStageThatIsWanted(t *testing.T) {
	none := tarnv1.PavStagePodStatus{}
	failed := func(message string) *tarnv1.PavStagePodStatus {
		return &tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodFailed, Message: message}
	}
	since := func(d time.Duration, changes ...func(*tarnv1.PavStagePodStatus)) tarnv1.PavStagePodStatus {
		s := of(tarnv1.StagePodRunning, "")
		s.StartTime = &metav1.Time{Time: noon.Add(-d)}
		for _, change := range changes {
			change(&s)
		}
		return s
	}
	const late = "staging pod ns/" + staging + " has not made the volume available within 10m0s; to allow more time, raise volumeStaging.deadlineSeconds"
	for _, c := range []planCase{
		{name: "a stage that is gone asks for nothing", view: View{}},
		{
			name: "the intent is written before the pod is made", view: view(aStage(none), prepared(staging)),
			want: "write, confirm, start " + staging, wantStatus: ref(starting()),
		},
		{
			name: "while that of another node may end unused, it waits", view: view(aStage(none), func(v *View) { v.Awaited = "waiting for PavStage s" }),
			want: "write", wantStatus: &tarnv1.PavStagePodStatus{Message: "waiting for PavStage s"}, wantLook: aheadLook,
		},
		{
			name: "begun ahead for a pod that is gone, it ends", view: view(aStage(starting()), func(v *View) { v.Forsaken = true }),
			want: "end " + stageName + " if unchanged",
		},
		{
			name: "what was begun ahead elsewhere and has sent no pod ends before one is sent here",
			view: view(aStage(none), prepared(staging), func(v *View) { v.Unsent = []tarnv1.PavStage{*begunAhead(time.Second)} }),
			want: "end " + stageName + " if unchanged, write, confirm, start " + staging, wantStatus: ref(starting()),
		},
		{name: "begun ahead it sends no pod before the node agent has answered", view: view(begunAhead(time.Second), prepared(staging))},
		{
			name: "begun ahead it sends its pod then", view: view(begunAhead(time.Second, answered), prepared(staging)),
			want: "write, confirm, start " + staging, wantStatus: ref(starting()),
		},
		{
			name: "begun ahead for what is gone, it ends without a word", view: view(begunAhead(time.Second, answered), missing("the claim is gone")),
			want: "end " + stageName + " if unchanged",
		},
		{
			name: "what its staging takes no notice of is told", view: view(aStage(none), prepared(staging), func(v *View) { v.Prepared.Warning = "no notice" }),
			want: "write, confirm, start " + staging + ", post MountOptionsUnread", wantStatus: ref(starting()), wantNote: "no notice",
		},
		{
			name: "a section that cannot be evaluated fails it, and no unstaging is due", view: view(aStage(none), unfit),
			want: "write, post StagingFailed", wantStatus: failed("line 1: no"), wantNote: "line 1: no",
		},
		{
			name: "a pod that is refused fails it, and unstaging is due", view: view(aStage(starting()), refused),
			want: "write",
			wantStatus: &tarnv1.PavStagePodStatus{
				Phase: tarnv1.StagePodFailed, Namespace: "ns", Name: staging, Staged: true, Attempt: 1, StartTime: &metav1.Time{Time: noon}, Message: "the API server said no",
			},
		},
		{
			name: "a provisioner nobody has judged is waited for", view: view(aStage(none), by(provisioner(""))),
			want: "write", wantStatus: &tarnv1.PavStagePodStatus{Message: `waiting until PavProvisioner "slow" has been checked`},
		},
		{
			name: "a volume written by hand needs Static", view: view(aStage(none), by(dynamicOnly())),
			want: "write, post StagingFailed", wantStatus: failed(`PersistentVolume "" was written by hand, and PavProvisioner "slow" does not have Static in spec.provisioningModes; add it`),
			wantNote: `PersistentVolume "" was written by hand, and PavProvisioner "slow" does not have Static in spec.provisioningModes; add it`,
		},
		{
			name: "a volume made for a claim does not need Static", view: view(aStage(none), by(dynamicOnly()), madeForAClaim, prepared(staging)),
			want: "write, confirm, start " + staging, wantStatus: ref(starting()),
		},
		{
			name: "a provisioner that is not accepted begins nothing", view: view(aStage(none), by(provisioner(metav1.ConditionFalse))),
			want: "write, post StagingFailed", wantStatus: failed(`PavProvisioner "slow" is not accepted (Because): of this; correct it`),
			wantNote: `PavProvisioner "slow" is not accepted (Because): of this; correct it`,
		},
		{
			name: "a provisioner that is being deleted begins nothing", view: view(aStage(none), by(condemned())),
			want:       "write, post StagingFailed",
			wantStatus: failed(`PavProvisioner "slow" is being deleted and stages no more volumes; create it again once it is gone`),
			wantNote:   `PavProvisioner "slow" is being deleted and stages no more volumes; create it again once it is gone`,
		},
		{
			name: "without its claim nothing begins", view: view(aStage(none), missing("the claim is gone")), want: "write, post StagingFailed",
			wantStatus: failed("the claim is gone; a volume can be staged only while its PavProvisioner, PersistentVolume and claim exist"),
			wantNote:   "the claim is gone; a volume can be staged only while its PavProvisioner, PersistentVolume and claim exist",
		},
		{
			name: "a pod that waits says for what",
			view: view(aStage(starting()), pod(aPod(staging, corev1.PodPending, func(p *corev1.Pod) {
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{
					Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"},
				}}}
			}))),
			want: "write, post " + steppod.EventPodWaiting, wantStatus: ref(of(tarnv1.StagePodStarting, "container c: ErrImagePull: no such image")), wantLook: 10 * time.Minute,
		},
		{
			name: "a pod that runs is mirrored", view: view(aStage(starting()), pod(aPod(staging, corev1.PodRunning))),
			want: "write", wantStatus: ref(of(tarnv1.StagePodRunning, "")), wantLook: 10 * time.Minute,
		},
		{
			name: "what is mirrored already is not written", view: view(aStage(of(tarnv1.StagePodRunning, "")), pod(aPod(staging, corev1.PodRunning))),
			wantLook: 10 * time.Minute,
		},
		{
			name: "a pod that does not make the volume available fails in the end", view: view(aStage(since(10*time.Minute)), pod(aPod(staging, corev1.PodRunning))),
			want: "write", wantStatus: ref(since(10*time.Minute, func(s *tarnv1.PavStagePodStatus) {
				s.Phase, s.UID, s.Message = tarnv1.StagePodFailed, "uid-of-pod", late
			})),
		},
		{
			name: "a pod that ended well is mirrored", view: view(aStage(of(tarnv1.StagePodRunning, "")), pod(aPod(staging, corev1.PodSucceeded))),
			want: "write", wantStatus: ref(of(tarnv1.StagePodSucceeded, "")),
		},
		{
			name: "a pod that failed is mirrored with its words", view: view(aStage(of(tarnv1.StagePodRunning, "")), pod(aPod(staging, corev1.PodFailed, because("evicted")))),
			want: "write", wantStatus: ref(of(tarnv1.StagePodFailed, "evicted")),
		},
		{
			name: "a pod of somebody else in the way fails it", view: view(aStage(starting()), pod(aPod(staging, corev1.PodRunning, foreign))),
			want: "write",
			wantStatus: ref(func() tarnv1.PavStagePodStatus {
				s := starting()
				s.Phase, s.Message = tarnv1.StagePodFailed, "pod ns/"+staging+" exists and belongs to something else; delete it to continue"
				return s
			}()),
		},
		{
			name: "a running pod that is being deleted is waited for", view: view(aStage(of(tarnv1.StagePodRunning, "")), pod(aPod(staging, corev1.PodRunning, going))),
			want: "write", wantStatus: ref(of(tarnv1.StagePodRunning, "the staging pod is being deleted; the volume is staged again when it is gone")),
			wantLook: 2 * time.Minute, // to report it if it is not gone by then
		},
		{
			name: "a running pod that vanished fails the stage", view: view(aStage(of(tarnv1.StagePodRunning, "")), prepared(staging)),
			want: "write", wantStatus: ref(of(tarnv1.StagePodFailed, "staging pod ns/"+staging+" disappeared before the volume was staged")),
		},
		{
			name: "a pod that was never made is made without alarm", view: view(aStage(starting()), prepared(staging)),
			want: "write, confirm, start " + staging, wantStatus: ref(starting()),
		},
		{
			name: "a provisioner being deleted keeps the stages it has", view: view(aStage(starting()), prepared(staging), by(condemned())),
			want: "write, confirm, start " + staging, wantStatus: ref(starting()),
		},
		{
			name: "a pod that was never made and cannot be fails the stage", view: view(aStage(starting()), missing("it is gone")),
			want: "write",
			wantStatus: ref(func() tarnv1.PavStagePodStatus {
				s := starting()
				s.Phase, s.Message = tarnv1.StagePodFailed, "the staging pod cannot be started: it is gone"
				return s
			}()),
		},
		{name: "a pod that succeeded and is gone is left alone", view: view(aStage(of(tarnv1.StagePodSucceeded, "")))},
		{name: "a failed stage waits for its end", view: view(aStage(of(tarnv1.StagePodFailed, "no")))},
		{
			name: "its failure is told with what the pod has said", view: view(spoken(aStage(of(tarnv1.StagePodFailed, "exit 1")))),
			want: "write, post StagingFailed", wantStatus: ref(of(tarnv1.StagePodFailed, "no device (exit 1)")), wantNote: "no device (exit 1)",
		},
		{
			name: "and told though it ends already", view: view(ending(spoken(aStage(of(tarnv1.StagePodFailed, "exit 1"))))),
			want: "write, post StagingFailed", wantStatus: ref(of(tarnv1.StagePodFailed, "no device (exit 1)")), wantNote: "no device (exit 1)",
		},
		{name: "and told once", view: view(spoken(aStage(of(tarnv1.StagePodFailed, "no device (exit 1)"))))},
		{
			name: "a stage ends with its node", view: view(aStage(of(tarnv1.StagePodRunning, "")), nodeGone),
			want: "post NodeGone, end " + stageName, wantNote: `node "n1" is gone; the stage ends with it`,
		},
	} {
		t.Run(c.name, c.run)
	}
}

func TestPlanOfAStageThatEnds(t *testing.T) {
	running := of(tarnv1.StagePodRunning, "")
	for _, c := range []planCase{
		{
			name: "its staging pod goes first", view: view(ending(aStage(running)), pod(aPod(staging, corev1.PodRunning))),
			want: "discard " + staging,
		},
		{name: "a pod that is going is waited for", view: view(ending(aStage(running)), pod(aPod(staging, corev1.PodRunning, going)))},
		{name: "when the pod is gone it is stopped", view: view(ending(aStage(running))), want: "write", wantStatus: ref(stopped(true))},
		{
			name: "a pod of somebody else is no hindrance", view: view(ending(aStage(running)), pod(aPod(staging, corev1.PodRunning, foreign))),
			want: "write", wantStatus: ref(stopped(true)),
		},
		{
			name: "one that never began is stopped", view: view(ending(aStage(tarnv1.PavStagePodStatus{}))),
			want: "write", wantStatus: &tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodStopped},
		},
		{name: "the node unmounts before anything is unstaged", view: view(ending(aStage(stopped(true))))},
		{
			name: "without a pod sent there is nothing to unstage", view: view(unmounted(aStage(stopped(false)))),
			want:       "write, let go tarn.dev/stage-pod",
			wantStatus: &tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodUnstaged, Namespace: "ns"},
		},
		{
			name: "without an unstaging pod it is unstaged", view: view(unmounted(aStage(stopped(true))), prepared("")),
			want:       "write, let go tarn.dev/stage-pod",
			wantStatus: &tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodUnstaged, Namespace: "ns", Staged: true},
		},
		{
			name: "the unstaging pod is written down, then made", view: view(unmounted(aStage(stopped(true))), prepared(unstaging)),
			want: "write, start " + unstaging, wantStatus: ref(inUnstaging(1)),
		},
		{
			name: "an unstaging pod that was written down and is not there is made", view: view(unmounted(aStage(inUnstaging(2))), prepared("pav-unstaging-uid-of-stage-2")),
			want: "write, start pav-unstaging-uid-of-stage-2", wantStatus: ref(inUnstaging(2)),
		},
		{
			name: "the unstaging pod is bounded in time", view: view(unmounted(aStage(inUnstaging(1, withUID))), pod(aPod(unstaging, corev1.PodRunning))),
			wantLook: 10*time.Minute + 15*time.Second,
		},
		{
			name: "success is on record before the pod is removed", view: view(unmounted(aStage(inUnstaging(1))), pod(aPod(unstaging, corev1.PodSucceeded))),
			want: "write, discard " + unstaging, wantStatus: ref(inUnstaging(1, unstaged(""))),
		},
		{
			name: "a failure is tried again", view: view(unmounted(aStage(inUnstaging(1))), pod(aPod(unstaging, corev1.PodFailed, because("busy")))),
			want: "write", wantStatus: ref(inUnstaging(1, withUID, again(time.Second, "busy"))), wantLook: time.Second,
		},
		{
			name: "a section that cannot be evaluated is tried again", view: view(unmounted(aStage(stopped(true))), unfit),
			want: "write, post UnstagingFailed", wantStatus: ref(inUnstaging(1, withoutName, again(time.Second, "line 1: no"))),
			wantNote: "line 1: no", wantLook: time.Second,
		},
		{
			name: "an unstaging pod that is refused is tried again", view: view(unmounted(aStage(inUnstaging(1))), refused),
			want: "write, post UnstagingFailed", wantStatus: ref(inUnstaging(1, withoutName, again(time.Second, "the API server said no"))),
			wantNote: "the API server said no", wantLook: time.Second,
		},
		{
			name: "the failed pod is kept until the next attempt", wantLook: time.Minute,
			view: view(unmounted(aStage(inUnstaging(3, again(time.Minute, "busy")))), pod(aPod(unstaging, corev1.PodFailed))),
		},
		{
			name: "it goes before the next attempt", want: "discard " + unstaging,
			view: view(unmounted(aStage(inUnstaging(1, again(0, "busy")))), pod(aPod(unstaging, corev1.PodFailed))),
		},
		{
			name: "a pod of somebody else that failed an attempt is walked around", want: "write",
			view:       view(unmounted(aStage(inUnstaging(1, again(0, "busy")))), pod(aPod(unstaging, corev1.PodFailed, foreign))),
			wantStatus: ref(inUnstaging(1, withoutName, again(0, "busy"))),
		},
		{
			name: "the next attempt has a name of its own", view: view(unmounted(aStage(inUnstaging(1, again(0, "busy")))), prepared("pav-unstaging-uid-of-stage-2")),
			want:       "write, start pav-unstaging-uid-of-stage-2",
			wantStatus: ref(inUnstaging(2, func(s *tarnv1.PavStagePodStatus) { s.Message = "busy" })),
		},
		{
			name: "what is gone for good is skipped, and that is said", view: view(unmounted(aStage(stopped(true))), missing("the claim is gone")),
			want:     "write, post UnstagingSkipped, let go tarn.dev/stage-pod",
			wantNote: "the claim is gone: its unstaging template cannot be evaluated, so it was not unstaged",
			wantStatus: &tarnv1.PavStagePodStatus{
				Phase: tarnv1.StagePodUnstaged, Namespace: "ns", Staged: true, Message: "the claim is gone: its unstaging template cannot be evaluated, so it was not unstaged",
			},
		},
		{
			name: "a running unstaging pod needs nobody else", view: view(unmounted(aStage(inUnstaging(1))), missing("gone"), pod(aPod(unstaging, corev1.PodSucceeded))),
			want: "write, discard " + unstaging, wantStatus: ref(inUnstaging(1, unstaged(""))),
		},
		{
			name: "a node that is gone unmounts nothing and is let go of too", view: view(ending(aStage(stopped(true))), nodeGone),
			want:     "write, post UnstagingSkipped, let go tarn.dev/stage-pod tarn.dev/stage-node",
			wantNote: `node "n1" is gone, so the volume was not unstaged there`,
			wantStatus: &tarnv1.PavStagePodStatus{
				Phase: tarnv1.StagePodUnstaged, Namespace: "ns", Staged: true, Message: `node "n1" is gone, so the volume was not unstaged there`,
			},
		},
		{
			name: "a staging pod on a node that is gone is still waited for", view: view(ending(aStage(running)), nodeGone, pod(aPod(staging, corev1.PodRunning))),
			want: "discard " + staging,
		},
		{
			name: "the finalizer stays until the last pod is gone", view: view(unmounted(aStage(inUnstaging(1, unstaged("")))), pod(aPod(unstaging, corev1.PodSucceeded, going))),
		},
		{name: "then it goes", view: view(unmounted(aStage(inUnstaging(1, unstaged(""))))), want: "let go tarn.dev/stage-pod"},
		{
			name: "a node that went after that is let go of", want: "let go tarn.dev/stage-node",
			view: view(func() *tarnv1.PavStage {
				s := unmounted(aStage(inUnstaging(1, unstaged(""))))
				s.Finalizers = []string{tarnv1.FinalizerStageNode}
				return s
			}(), nodeGone),
		},
	} {
		t.Run(c.name, c.run)
	}
}

func TestPausesGrowToFiveMinutes(t *testing.T) {
	var last time.Duration
	for attempt := int32(1); attempt < 15; attempt++ {
		v := view(unmounted(aStage(inUnstaging(attempt))), pod(aPod(unstaging, corev1.PodFailed)))
		pause := written(plan(v, noon)).NextAttemptTime.Sub(noon)
		if pause < last || pause > lastRetry*6/5+time.Second {
			t.Errorf("attempt %d is followed by %v, the one before by %v", attempt, pause, last)
		}
		last = pause
	}
	if last < lastRetry*4/5 {
		t.Errorf("after many attempts the pause is %v, want about %v", last, lastRetry)
	}
}

func TestDueNamesThePodThatIsNext(t *testing.T) {
	for _, c := range []struct {
		name        string
		view        View
		wantStep    tarnv1.Step
		wantAttempt int32
	}{
		{"a stage that begins", view(aStage(tarnv1.PavStagePodStatus{}), madeForAClaim), tarnv1.StepStaging, 1},
		{"one of a volume written by hand", view(aStage(tarnv1.PavStagePodStatus{})), tarnv1.StepValidation, 1},
		{"one whose validation pod is there", view(aStage(validating()), pod(aPod(validation, corev1.PodRunning))), "", 0},
		{"one whose validation pod has ended well", view(aStage(validating()), pod(aPod(validation, corev1.PodSucceeded))), tarnv1.StepStaging, 1},
		{"one whose validation pod vanished", view(aStage(validating())), tarnv1.StepValidation, 1},
		{"one whose provisioner is not judged", view(aStage(tarnv1.PavStagePodStatus{}), by(provisioner(""))), "", 0},
		{"one whose pod was never made", view(aStage(starting())), tarnv1.StepStaging, 1},
		{"one whose pod vanished", view(aStage(of(tarnv1.StagePodRunning, ""))), "", 0},
		{"one whose pod is there", view(aStage(starting()), pod(aPod(staging, ""))), "", 0},
		{"one whose node is gone", view(aStage(starting()), nodeGone), "", 0},
		{"one that waits for its node", view(ending(aStage(stopped(true)))), "", 0},
		{"one that is unmounted", view(unmounted(aStage(stopped(true)))), tarnv1.StepUnstaging, 1},
		{"one that was never staged", view(unmounted(aStage(stopped(false)))), "", 0},
		{"one whose unstaging pod vanished", view(unmounted(aStage(inUnstaging(4)))), tarnv1.StepUnstaging, 4},
		{"one that waits after a failure", view(unmounted(aStage(inUnstaging(4, again(time.Second, ""))))), "", 0},
		{"one that has waited", view(unmounted(aStage(inUnstaging(4, again(0, ""))))), tarnv1.StepUnstaging, 5},
		{"one that has waited and whose failed pod is there", view(unmounted(aStage(inUnstaging(4, again(0, "")))), pod(aPod(unstaging, ""))), "", 0},
		{"one that is done", view(unmounted(aStage(inUnstaging(4, unstaged(""))))), "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if step, attempt := due(c.view, noon); step != c.wantStep || attempt != c.wantAttempt {
				t.Errorf("got %q, %d, want %q, %d", step, attempt, c.wantStep, c.wantAttempt)
			}
		})
	}
}
