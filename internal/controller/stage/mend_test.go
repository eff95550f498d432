package stage

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
)

const second = "pav-staging-uid-of-stage-2"

// lost is a stage whose volume is lost for the first time.
func lost(s *tarnv1.PavStage, change ...func(*tarnv1.StageLoss)) *tarnv1.PavStage {
	l := &tarnv1.StageLoss{Number: 1, Attempt: 1, Reason: tarnv1.ReasonServerDied, Message: "its server ended", Time: metav1.Time{Time: noon}}
	for _, c := range change {
		c(l)
	}
	s.Status.Node.Phase, s.Status.Node.Loss = tarnv1.StageLost, l
	return s
}

func cleared(n int32) func(*tarnv1.StageLoss) { return func(l *tarnv1.StageLoss) { l.Cleared = n } }
func unmended(n int32) func(*tarnv1.StageLoss) {
	return func(l *tarnv1.StageLoss) { l.Failed = n }
}

// used is the status of a staging pod whose consumers were told of the loss.
func used(phase tarnv1.StagePodPhase, change ...func(*tarnv1.PavStagePodStatus)) tarnv1.PavStagePodStatus {
	s := of(phase, "")
	s.LossTold = 1
	for _, c := range change {
		c(&s)
	}
	return s
}

func unseen(s *tarnv1.PavStagePodStatus) { s.UID = "" }
func noPod(s *tarnv1.PavStagePodStatus)  { s.Name, s.UID = "", "" }
func attempt(n int32) func(*tarnv1.PavStagePodStatus) {
	return func(s *tarnv1.PavStagePodStatus) { s.Attempt = n }
}
func restarted(n int32) func(*tarnv1.PavStagePodStatus) {
	return func(s *tarnv1.PavStagePodStatus) { s.Restarts = n }
}
func recovery(r tarnv1.StageRecovery) func(*tarnv1.PavStagePodStatus) {
	return func(s *tarnv1.PavStagePodStatus) { s.Recovery = r }
}

// begun sets how long ago the staging pod was started.
func begun(d time.Duration) func(*tarnv1.PavStagePodStatus) {
	return func(s *tarnv1.PavStagePodStatus) { s.StartTime = &metav1.Time{Time: noon.Add(-d)} }
}

// pressure sets the disk pressure of the node, and since when.
func pressure(is corev1.ConditionStatus, since time.Duration) func(*View) {
	return func(v *View) {
		v.Node = &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Time{Time: noon.Add(time.Hour)}},
			{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Time{Time: noon.Add(-time.Hour)}},
			{Type: corev1.NodeDiskPressure, Status: is, LastTransitionTime: metav1.Time{Time: noon.Add(-since)}},
		}}}
	}
}

func TestOnlyTheEndOfAPressureBringsStagesBack(t *testing.T) {
	node := func(is corev1.ConditionStatus, since time.Duration) *corev1.Node {
		v := &View{}
		pressure(is, since)(v)
		return v.Node
	}
	on, off := corev1.ConditionTrue, corev1.ConditionFalse
	for name, c := range map[string]struct {
		old, now *corev1.Node
		want     bool
	}{
		"its end":          {node(on, time.Minute), node(off, 0), true},
		"one not seen":     {node(off, time.Minute), node(off, 0), true},
		"its beginning":    {node(off, time.Minute), node(on, 0), false},
		"a heartbeat":      {node(off, time.Minute), node(off, time.Minute), false},
		"a new node's":     {&corev1.Node{}, &corev1.Node{}, false},
		"one that goes on": {node(on, time.Minute), node(on, time.Minute), false},
	} {
		if got := relieved().Update(event.UpdateEvent{ObjectOld: c.old, ObjectNew: c.now}); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

func TestPlanOfAStageWhoseVolumeIsLost(t *testing.T) {
	staged := func(s *tarnv1.PavStage) *tarnv1.PavStage {
		s.Status.Node.Phase = tarnv1.StageStaged
		return s
	}
	for name, c := range map[string]struct {
		view View
		want string
		// wantLook is counted from noon; 0 means never.
		wantLook time.Duration
	}{
		"the staging pod that runs is removed": {
			view: view(lost(aStage(used(tarnv1.StagePodRunning))), pod(aPod(staging, corev1.PodRunning))), want: "hurry " + staging,
		},
		"one that takes its time is hurried": {
			view: view(lost(aStage(used(tarnv1.StagePodRunning))), pod(aPod(staging, corev1.PodRunning, going))), want: "hurry " + staging,
		},
		"one that is hurried is waited for": {
			view: view(lost(aStage(used(tarnv1.StagePodRunning))), pod(aPod(staging, corev1.PodRunning, going, func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = ref(int64(1)) }))),
		},
		"that it is gone is written":  {view: view(lost(aStage(used(tarnv1.StagePodRunning)))), want: "write"},
		"the node has to clear first": {view: view(lost(aStage(used(tarnv1.StagePodGone, noPod))), prepared(second))},
		"one that was written down and never seen is made": {
			view: view(lost(aStage(used(tarnv1.StagePodStarting, unseen, attempt(2), restarted(1))), cleared(1)), prepared(second)), want: "write, start " + second,
		},
		"one that was seen, and is gone, is an attempt": {
			view: view(lost(aStage(used(tarnv1.StagePodStarting, attempt(2), restarted(1))), cleared(1)), prepared(second)), want: "write",
		},
		"the next one starts at once": {view: view(lost(aStage(used(tarnv1.StagePodGone, noPod)), cleared(1)), prepared(second)), want: "write, start " + second},
		"what cannot be evaluated is later": {
			view: view(lost(aStage(used(tarnv1.StagePodGone, noPod)), cleared(1)), unfit), want: "write", wantLook: time.Second,
		},
		"the next one is followed": {
			view: view(lost(aStage(used(tarnv1.StagePodStarting, attempt(2))), cleared(1)), pod(aPod(second, corev1.PodRunning))), want: "write, raiseguard",
			wantLook: 10 * time.Minute,
		},
		"one that takes too long fails": {
			view: view(lost(aStage(used(tarnv1.StagePodRunning, attempt(2), begun(10*time.Minute))), cleared(1)), pod(aPod(second, corev1.PodRunning))), want: "write, post StagingFailed",
		},
		"one whose volume is there has all the time": {
			view: view(staged(aStage(used(tarnv1.StagePodRunning, begun(time.Hour)))), pod(aPod(staging, corev1.PodRunning)), func(v *View) { v.Guard = &policyv1.PodDisruptionBudget{} }),
		},
		"so has one that is lost and left": {
			view: view(lost(aStage(used(tarnv1.StagePodRunning, recovery(tarnv1.RecoveryNone), begun(time.Hour)))), pod(aPod(staging, corev1.PodRunning)), func(v *View) { v.Guard = &policyv1.PodDisruptionBudget{} }),
		},
		"its failure is written, and told":    {view: view(lost(aStage(used(tarnv1.StagePodRunning, attempt(2))), cleared(1)), pod(aPod(second, corev1.PodFailed))), want: "write, post StagingFailed"},
		"then the node agent has its word":    {view: view(lost(aStage(used(tarnv1.StagePodFailed, attempt(2))), cleared(1)), pod(aPod(second, corev1.PodFailed)))},
		"that one is gone is told once":       {view: view(staged(aStage(used(tarnv1.StagePodGone, noPod))))},
		"one that vanishes is started again":  {view: view(lost(aStage(used(tarnv1.StagePodRunning, attempt(2))), cleared(1))), want: "write"},
		"one that failed is kept for a while": {view: view(lost(aStage(used(tarnv1.StagePodFailed, attempt(2), restarted(1))), cleared(1), unmended(2)), pod(aPod(second, corev1.PodFailed))), wantLook: time.Second},
		"it waits while its node is under pressure": {
			view:     view(lost(aStage(used(tarnv1.StagePodGone, noPod, restarted(4), begun(time.Second))), cleared(1)), prepared(second), pressure(corev1.ConditionTrue, 0)),
			wantLook: 7 * time.Second,
		},
		"not once the pressure is over": {
			view: view(lost(aStage(used(tarnv1.StagePodGone, noPod, restarted(4), begun(time.Second))), cleared(1)), prepared(second), pressure(corev1.ConditionFalse, 0)),
			want: "write, start " + second,
		},
		"which it may wait for no more where it was over before": {
			view:     view(lost(aStage(used(tarnv1.StagePodGone, noPod, restarted(4), begun(time.Second))), cleared(1)), prepared(second), pressure(corev1.ConditionFalse, 2*time.Second)),
			wantLook: 7 * time.Second,
		},
		"one that is kept for reading goes then too": {
			view: view(lost(aStage(used(tarnv1.StagePodFailed, attempt(2), restarted(4))), cleared(1), unmended(2)), pod(aPod(second, corev1.PodFailed)), pressure(corev1.ConditionFalse, 0)),
			want: "hurry " + second,
		},
		"one that lasts is guarded": {view: view(staged(aStage(of(tarnv1.StagePodRunning, ""))), pod(aPod(staging, corev1.PodRunning))), want: "raiseguard"},
		"one that is guarded is left alone": {
			view: view(staged(aStage(of(tarnv1.StagePodRunning, ""))), pod(aPod(staging, corev1.PodRunning)), func(v *View) { v.Guard = &policyv1.PodDisruptionBudget{} }),
		},
		"that one in use is gone is written":  {view: view(staged(aStage(of(tarnv1.StagePodRunning, "")))), want: "write"},
		"its failure is for the node to tell": {view: view(staged(aStage(of(tarnv1.StagePodRunning, ""))), pod(aPod(staging, corev1.PodFailed))), want: "write"},
		"without recovery nothing is done":    {view: view(lost(aStage(used(tarnv1.StagePodFailed, recovery(tarnv1.RecoveryNone))))), want: ""},
		"the end of the stage goes before":    {view: view(ending(lost(aStage(used(tarnv1.StagePodRunning)))), pod(aPod(staging, corev1.PodRunning))), want: "discard " + staging},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan(c.view, noon)
			if got := said(p); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			// A pause is spread by a fifth.
			at := p.LookAt.Sub(noon)
			if p.LookAt.IsZero() != (c.wantLook == 0) || c.wantLook > 0 && (at < c.wantLook*4/5 || at > 2*c.wantLook*6/5) {
				t.Errorf("looks again after %v, want about %v", at, c.wantLook)
			}
		})
	}
}

func TestTheNextStagingPodStartsLaterTheOftenerItFails(t *testing.T) {
	stage := lost(aStage(used(tarnv1.StagePodGone, noPod, attempt(5), restarted(4))), cleared(5))
	v := view(stage, prepared("pav-staging-uid-of-stage-6"))
	if p := plan(v, noon); len(p.Actions) > 0 || p.LookAt.Sub(noon) < 6*time.Second {
		t.Errorf("after four restarts in a row: %q, looks again after %v", said(p), p.LookAt.Sub(noon))
	}
	late := noon.Add(longLife)
	if p := plan(v, late); written(p) == nil || written(p).Attempt != 6 || written(p).Restarts != 0 {
		t.Errorf("after a long life: %q, status %+v", said(p), written(p))
	}
}

func TestAPodIsToldThatAContainerCannotBeStartedAnewWithItsSubPath(t *testing.T) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "uid-1"}}
	v := view(lost(aStage(used(tarnv1.StagePodRunning)), func(l *tarnv1.StageLoss) {
		l.ReboundTime, l.Left = &metav1.Time{Time: noon}, []tarnv1.StageLeft{{PodUID: "uid-1", Container: "db", Message: "it has no subPath c"}}
	}), func(v *View) { v.Consumers = []corev1.Pod{pod} })
	const want = "container db cannot be restarted with its subPath: it has no subPath c; delete and create the pod"
	if a, ok := plan(v, noon).Actions[0].(action.Emit); !ok || a.Reason != ReasonVolumeNotRebound || !strings.HasSuffix(a.Note, want) {
		t.Errorf("got %+v, want %q", a, want)
	}
}

func TestTheUsersOfALostVolumeAreToldOnce(t *testing.T) {
	consumer := func(change ...func(*corev1.Pod)) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "uid-1"}}
		for _, c := range change {
			c(&p)
		}
		return p
	}
	owned := func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{Controller: ref(true)}} }
	rebound := func(l *tarnv1.StageLoss) { l.ReboundTime = &metav1.Time{Time: noon} }
	left := func(l *tarnv1.StageLoss) {
		l.Left = []tarnv1.StageLeft{{PodUID: "uid-1", Path: "/data", Message: "of this"}}
	}
	one := func(p corev1.Pod) func(*View) { return func(v *View) { v.Consumers = []corev1.Pod{p} } }
	untold := of(tarnv1.StagePodRunning, "")
	told := used(tarnv1.StagePodRunning)
	restart := used(tarnv1.StagePodRunning, recovery(tarnv1.RecoveryRestartConsumers))
	for name, c := range map[string]struct {
		view View
		want string
	}{
		"of the loss":                        {view(lost(aStage(untold)), one(consumer())), "post VolumeLost, tell VolumeLost, write"},
		"of its end":                         {view(lost(aStage(told), rebound), one(consumer())), "tell VolumeRebound, write"},
		"of both where it was short":         {view(lost(aStage(untold), rebound), one(consumer())), "post VolumeLost, tell VolumeLost, tell VolumeRebound, write"},
		"of what could not be bound":         {view(lost(aStage(told), rebound, left), one(consumer())), "tell VolumeNotRebound, write"},
		"those to be evicted as they are":    {view(lost(aStage(restart), rebound), one(consumer(owned))), "write"},
		"but not if nobody makes them again": {view(lost(aStage(restart), rebound), one(consumer())), "tell VolumeNotRebound, write"},
		"and not when the stage ends anyway": {view(ending(lost(aStage(untold))), one(consumer())), "write"},
		"though nothing else is done":        {view(lost(aStage(of(tarnv1.StagePodFailed, "")))), "post VolumeLost, write"},
	} {
		if got := said(plan(c.view, noon)); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
