package stage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/steppod"
)

// anExpansion is a staged volume whose node has requested attempt 2, with the status of the
// last attempt.
func anExpansion(have *tarnv1.StageExpansion, pods ...corev1.Pod) ExpansionView {
	stage := aStage(tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodSucceeded, Staged: true, Expansion: have})
	stage.Status.Node = tarnv1.PavStageNodeStatus{Phase: tarnv1.StageStaged, Expansion: &tarnv1.StageExpansionRequest{Attempt: 2, Capacity: 1 << 30}}
	return ExpansionView{View: View{Stage: stage, Prepared: &steppod.Prepared{Pod: growing("new", "")}}, Pods: pods}
}

func growing(name string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, CreationTimestamp: metav1.Time{Time: noon},
			Labels: map[string]string{tarnv1.LabelStep: string(tarnv1.StepNodeExpansion)}, OwnerReferences: []metav1.OwnerReference{{UID: stageUID}},
		},
		Status: corev1.PodStatus{Phase: phase},
	}
}

func TestPlanOfAStageThatGrows(t *testing.T) {
	state := func(attempt int32, phase tarnv1.StageExpansionPhase) *tarnv1.StageExpansion {
		return &tarnv1.StageExpansion{Attempt: attempt, Phase: phase, Namespace: "ns", Name: "new"}
	}
	old, pod := *growing("old", corev1.PodFailed), func(phase corev1.PodPhase) corev1.Pod { return *growing("new", phase) }
	unfit := func(e ExpansionView) ExpansionView {
		e.Unfit = &steppod.StepError{Message: "no such variable"}
		return e
	}
	for _, c := range []struct {
		name string
		view ExpansionView
		want string
	}{
		{"the attempt is written before its pod is made, and the last pod goes", anExpansion(state(1, tarnv1.StageExpansionFailed), old), "#2 Running, start new, discard old"},
		{"a provisioner without a pod for nodes is done at once", func() ExpansionView {
			e := anExpansion(nil)
			e.Prepared = &steppod.Prepared{}
			return e
		}(), "#2 Succeeded"},
		{"a section that cannot be evaluated is a failure", unfit(anExpansion(nil)), "#2 Failed no such variable, NodeExpansionFailed"},
		{"a pod the API server refused is a failure", unfit(anExpansion(state(2, tarnv1.StageExpansionRunning))), "#2 Failed no such variable, NodeExpansionFailed"},
		{"a pod that vanished is made again", anExpansion(state(2, tarnv1.StageExpansionRunning)), "#2 Running, start new"},
		{"a pod that runs is waited for", anExpansion(state(2, tarnv1.StageExpansionRunning), pod(corev1.PodRunning)), ""},
		{"a pod that succeeded is recorded, then removed", anExpansion(state(2, tarnv1.StageExpansionRunning), pod(corev1.PodSucceeded)), "#2 Succeeded, discard new"},
		{"a pod that failed is recorded and kept", anExpansion(state(2, tarnv1.StageExpansionRunning), pod(corev1.PodFailed)),
			"#2 Failed the pod failed and wrote nothing to /pav/error, NodeExpansionFailed"},
		{"a failure waits for the kubelet", anExpansion(state(2, tarnv1.StageExpansionFailed), pod(corev1.PodFailed)), ""},
		{"what a crash has left of a success is removed", anExpansion(state(2, tarnv1.StageExpansionSucceeded), pod(corev1.PodSucceeded)), "discard new"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := worded(planExpansion(c.view, noon)); got != c.want {
				t.Errorf("plan:\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

// takes prepares an empty pod for every requested expansion.
type takes struct{ steps }

func (takes) PrepareNodeExpansion(context.Context, *pavv1.PavProvisioner, steppod.NodeExpansion) (*steppod.Prepared, error) {
	return &steppod.Prepared{}, nil
}

func TestANodeIsGivenNoMoreThanTheVolumeHas(t *testing.T) {
	record := &tarnv1.PavVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	record.Status.Capacity = 1 << 30
	w := newWorld(t, append(subjects(), record)...)
	w.r.steps = takes{w.r.steps}
	ask := func(bytes int64) string {
		stage := w.stage()
		stage.Status.Node = tarnv1.PavStageNodeStatus{Phase: tarnv1.StageStaged, Expansion: &tarnv1.StageExpansionRequest{Attempt: 1, Capacity: bytes}}
		e, err := w.r.gatherExpansion(context.Background(), View{Stage: stage, Node: &corev1.Node{}})
		w.must(err)
		if e.Unfit != nil {
			return e.Unfit.Message
		}
		return ""
	}
	if got := ask(1 << 30); got != "" {
		t.Errorf("what the volume has is refused: %s", got)
	}
	if got, want := ask(1<<30+1), `node "n1" asks that volume "pv" grow to 1073741825, but it has 1Gi`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	vol := &corev1.PersistentVolume{}
	w.must(w.store.Get(context.Background(), client.ObjectKey{Name: "pv"}, vol))
	vol.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	w.must(w.store.Update(context.Background(), vol))
	if got := ask(2 << 30); got != "" {
		t.Errorf("what the volume has by now is refused: %s", got)
	}
	w.must(w.store.Delete(context.Background(), record))
	if got := ask(2 << 30); got != "" {
		t.Errorf("a volume that Tarn has not made is refused what it has: %s", got)
	}
	if got, want := ask(2<<30+1), `node "n1" asks that volume "pv" grow to 2147483649, but it has 2Gi`; got != want {
		t.Errorf("without a record: got %q, want %q", got, want)
	}
}

func TestAStageThatDoesNotGrowIsLeftAlone(t *testing.T) {
	asked := anExpansion(nil).Stage
	if !grows(asked) {
		t.Error("a staged volume whose node asks for it does not grow")
	}
	lost, alone := asked.DeepCopy(), asked.DeepCopy()
	lost.Status.Node.Phase = tarnv1.StageWaiting
	alone.Status.Pod.Phase = tarnv1.StagePodGone
	for name, stage := range map[string]*tarnv1.PavStage{"not asked": aStage(tarnv1.PavStagePodStatus{}), "not staged": lost, "ending": ending(asked), "without its staging pod": alone} {
		if grows(stage) {
			t.Errorf("a stage that is %s grows", name)
		}
	}
}

// growingWorld is a world with a staged volume and its staging pod. Its node has requested an
// expansion that has this status.
func growingWorld(t *testing.T, phase tarnv1.StageExpansionPhase, change ...func(*tarnv1.PavStage)) *world {
	w := newWorld(t, subjects()...)
	w.end = func(*corev1.Pod) corev1.PodPhase { return corev1.PodRunning }
	w.edit(func(p *pavv1.PavProvisioner) {
		p.Spec.VolumeExpansion = &apiextensionsv1.JSON{Raw: []byte(`{"nodePodTemplate": {"metadata": {"namespace": "staging"}, "spec": {"containers": [{"name": "c", "image": "busybox"}]}}}`)}
	})
	vol := &corev1.PersistentVolume{}
	w.must(w.store.Get(context.Background(), client.ObjectKey{Name: "pv"}, vol))
	vol.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	w.must(w.store.Update(context.Background(), vol))
	w.look()
	w.kubelet()
	w.look()
	stage := w.stage()
	stage.Status.Node = tarnv1.PavStageNodeStatus{Phase: tarnv1.StageStaged, Expansion: &tarnv1.StageExpansionRequest{Attempt: 1, Capacity: 1 << 30}}
	if phase != tarnv1.StageExpansionRunning {
		stage.Status.Pod.Expansion = &tarnv1.StageExpansion{Attempt: 1, Phase: phase}
	}
	w.must(w.store.Status().Update(context.Background(), stage))
	w.look() // creates the pod of a running expansion
	for _, c := range change {
		stage = w.stage()
		c(stage)
		w.must(w.store.Status().Update(context.Background(), stage))
	}
	return w
}

func toldOfLoss(s *tarnv1.PavStage) {
	lost(s)
	s.Status.Pod.LossTold = 1
}

// stagesAgain has the node clear the directory after the staging pod is gone. The next staging
// pod then makes the volume available. again is the attempt that the node requests then.
func (w *world) stagesAgain(again int32) {
	w.t.Helper()
	node := func(change func(*tarnv1.PavStageNodeStatus)) {
		stage := w.stage()
		change(&stage.Status.Node)
		w.must(w.store.Status().Update(context.Background(), stage))
	}
	for range 5 {
		w.look()
		w.kubelet()
	}
	if got := w.stage().Status.Pod; got.Phase != tarnv1.StagePodGone || len(w.pods()) > 0 {
		w.t.Fatalf("after the loss the staging pod is %s, but there are %d pods", got.Phase, len(w.pods()))
	}
	node(func(n *tarnv1.PavStageNodeStatus) { n.Loss.Cleared, n.Expansion.Attempt = 1, again })
	for range 3 {
		w.look()
		w.kubelet()
	}
	node(func(n *tarnv1.PavStageNodeStatus) { n.Phase = tarnv1.StageStaged })
	for range 3 {
		w.look()
		w.kubelet()
	}
}

const (
	firstGrowth  = "pav-node-expansion-uid-of-stage-1"
	secondGrowth = "pav-node-expansion-uid-of-stage-2"
)

func TestWhatHasBecomeOfAnExpansionOutlivesALoss(t *testing.T) {
	for _, phase := range []tarnv1.StageExpansionPhase{tarnv1.StageExpansionSucceeded, tarnv1.StageExpansionFailed} {
		t.Run(string(phase), func(t *testing.T) {
			w := growingWorld(t, phase, toldOfLoss)
			w.stagesAgain(1)
			if want := []string{staging, second}; !slices.Equal(w.made, want) {
				t.Errorf("made %q, want %q", w.made, want)
			}
			if e := w.stage().Status.Pod.Expansion; e == nil || e.Attempt != 1 || e.Phase != phase {
				t.Errorf("the expansion is now %+v, want attempt 1 %s", e, phase)
			}
		})
	}
}

func TestAnExpansionThatRunsWhenItsVolumeIsLostIsMadeAnewAfterIt(t *testing.T) {
	w := growingWorld(t, tarnv1.StageExpansionRunning, toldOfLoss)
	w.stagesAgain(2)
	if want := []string{staging, firstGrowth, second, secondGrowth}; !slices.Equal(w.made, want) {
		t.Errorf("made %q, want %q", w.made, want)
	}
}

// The node clears the directory as soon as it reads that the staging pod is gone.
func TestThatTheStagingPodIsGoneIsWrittenAfterTheExpansionPodIs(t *testing.T) {
	gone := func(w *world, name string) {
		for _, p := range w.pods() {
			if p.Name == name {
				p.Finalizers = nil
				w.must(w.store.Update(context.Background(), &p))
				w.must(client.IgnoreNotFound(w.store.Delete(context.Background(), &p)))
			}
		}
	}
	for name, c := range map[string]struct {
		change []func(*tarnv1.PavStage)
		unseen bool
	}{
		"a volume that is lost":                    {change: []func(*tarnv1.PavStage){toldOfLoss}},
		"a staging pod that somebody has deleted":  {},
		"an expansion pod that no cache knows yet": {unseen: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := growingWorld(t, tarnv1.StageExpansionRunning, c.change...)
			gone(w, staging)
			if failing := w.r.client; c.unseen {
				growth := w.pods()[0]
				gone(w, firstGrowth)
				w.r.client = w.snapshot()
				growth.ResourceVersion = ""
				w.must(w.store.Create(context.Background(), &growth))
				w.look()
				w.r.client = failing
			}
			w.look()
			if got, pods := w.stage().Status.Pod, w.pods(); got.Phase == tarnv1.StagePodGone || len(pods) != 1 || pods[0].DeletionTimestamp == nil {
				t.Fatalf("the staging pod is told %s while there are %d pods", got.Phase, len(pods))
			}
			w.kubelet()
			w.look()
			if got := w.stage().Status.Pod; got.Phase != tarnv1.StagePodGone || len(w.pods()) > 0 {
				t.Errorf("the staging pod is told %s, with %d pods", got.Phase, len(w.pods()))
			}
		})
	}
}

// A pod that does not end delays the volume until an administrator steps in.
func TestAnExpansionPodThatDoesNotGoWhenItsVolumeIsLostIsTold(t *testing.T) {
	w := growingWorld(t, tarnv1.StageExpansionRunning, toldOfLoss)
	for _, p := range w.pods() {
		p.Finalizers = append(p.Finalizers, "tarn.dev/test")
		w.must(w.store.Update(context.Background(), &p))
	}
	w.look()
	w.look()
	w.clock.SetTime(w.clock.Now().Add(time.Hour))
	w.look()
	if got := w.stage().Status.Pod; got.Phase == tarnv1.StagePodGone || !strings.Contains(got.Message, "delete pod "+firstGrowth+" --force") {
		t.Errorf("the stage says %q, its staging pod is %s, want the command", got.Message, got.Phase)
	}
	w.kubelet()
	w.look()
	if got := w.stage().Status.Pod; got.Phase != tarnv1.StagePodGone || got.Message != "" {
		t.Errorf("after it has gone the stage says %q, its staging pod is %s", got.Message, got.Phase)
	}
}

// worded gives one word for each action, in order.
func worded(p Plan) string {
	var words []string
	for _, a := range p.Actions {
		switch a := a.(type) {
		case WriteStatus:
			e := a.Status.Expansion
			words = append(words, strings.TrimSpace(fmt.Sprintf("#%d %s %s", e.Attempt, e.Phase, e.Message)))
		default:
			if word := strings.TrimPrefix(said(Plan{Actions: []action.Action{a}}), "post "); word != "" {
				words = append(words, word)
			}
		}
	}
	return strings.Join(words, ", ")
}

// An expansion pod may wait for a server that hangs, and does not end before that.
func TestTheStagingPodOfALostVolumeIsNotKeptByTheExpansionPod(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*tarnv1.PavStage)
		pod    func(*corev1.Pod)
		goes   bool
	}{
		"it has lost the volume":     {goes: true},
		"it is to make it anew":      {change: func(s *tarnv1.PavStage) { s.Status.Pod.Attempt = 2 }},
		"it is somebody else's":      {pod: foreign},
		"the volume is there so far": {change: func(s *tarnv1.PavStage) { s.Status.Node.Phase, s.Status.Node.Loss = tarnv1.StageStaged, nil }},
	} {
		t.Run(name, func(t *testing.T) {
			changes := []func(*tarnv1.PavStage){toldOfLoss}
			if c.change != nil {
				changes = append(changes, c.change)
			}
			w := growingWorld(t, tarnv1.StageExpansionRunning, changes...)
			for _, p := range w.pods() {
				if p.Name == staging && c.pod != nil {
					c.pod(&p)
					w.must(w.store.Update(context.Background(), &p))
				}
			}
			w.look()
			for _, p := range w.pods() {
				if goes := p.DeletionTimestamp != nil; p.Name == staging && goes != c.goes {
					t.Errorf("the staging pod goes: %t, want %t", goes, c.goes)
				}
			}
			if got := w.stage().Status.Pod.Phase; got == tarnv1.StagePodGone || len(w.pods()) != 2 {
				t.Errorf("the staging pod is told %s, with %d pods", got, len(w.pods()))
			}
		})
	}
}

func TestAPodWithNothingMoreToDoIsHurriedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		deleted bool
		grace   *int64
		want    int
	}{
		"it runs":                     {want: 1},
		"it goes":                     {deleted: true, want: 1},
		"it goes, and takes its time": {deleted: true, grace: ref(int64(30)), want: 1},
		"it is hurried":               {deleted: true, grace: ref(int64(hurry))},
		"it is gone by force":         {deleted: true, grace: ref(int64(0))},
	} {
		p := corev1.Pod{}
		if c.deleted {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: noon}, c.grace
		}
		if got := hurryAll([]corev1.Pod{p}); len(got) != c.want {
			t.Errorf("%s: %d deletions, want %d", name, len(got), c.want)
		}
	}
}

func TestTheUsersOfALostVolumeAreToldBeforeItsExpansionPodIsEnded(t *testing.T) {
	w := growingWorld(t, tarnv1.StageExpansionRunning, func(s *tarnv1.PavStage) { lost(s) })
	w.look()
	if got := w.stage().Status.Pod.LossTold; got != 1 {
		t.Errorf("told of loss %d, want 1", got)
	}
	for _, p := range w.pods() {
		if p.DeletionTimestamp != nil {
			t.Errorf("pod %s goes already", p.Name)
		}
	}
}

func TestAStageWhoseNodeIsGoneEndsThoughAnExpansionPodIsLeft(t *testing.T) {
	w := growingWorld(t, tarnv1.StageExpansionRunning, toldOfLoss)
	w.must(w.store.Delete(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
	w.look()
	if stage := w.stage(); stage.DeletionTimestamp == nil {
		t.Errorf("the stage goes on: %+v", stage.Status.Pod)
	}
}

func TestAStageThatHasGoneUnseenIsNoErrorOfItsExpansionPod(t *testing.T) {
	w := growingWorld(t, tarnv1.StageExpansionRunning, toldOfLoss)
	w.look()
	w.look()
	w.clock.SetTime(w.clock.Now().Add(time.Hour)) // otherwise the next reconcile would write that the pod does not end
	w.r.client = w.snapshot()
	stage := w.stage()
	stage.Finalizers = nil
	w.must(w.store.Update(context.Background(), stage))
	w.must(w.store.Delete(context.Background(), stage))
	w.look()
}

func TestWhatIsSaidOfAnExpansionPodIsNotSaidOfTheStagingPodThatIsGone(t *testing.T) {
	const stuck = "pod ns/" + firstGrowth + " is being deleted since noon"
	for message, want := range map[string]string{"container main exited with 1": "container main exited with 1", stuck: ""} {
		says := used(tarnv1.StagePodRunning, func(s *tarnv1.PavStagePodStatus) { s.Message = message })
		if got := written(plan(view(lost(aStage(says))), noon)); got == nil || got.Phase != tarnv1.StagePodGone || got.Message != want {
			t.Errorf("%s: then the stage says %+v, want %q", message, got, want)
		}
		p := plan(view(lost(aStage(says)), pod(aPod(staging, corev1.PodRunning))), noon)
		if got := written(p); message == stuck && (got == nil || got.Message != "") || message != stuck && got != nil {
			t.Errorf("%s: while the staging pod goes the stage says %+v", message, got)
		}
	}
}
