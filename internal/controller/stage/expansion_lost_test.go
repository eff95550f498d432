package stage

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

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
	seen, stage := w.snapshot(), w.stage()
	stage.Finalizers = nil
	w.must(w.store.Update(context.Background(), stage))
	w.must(w.store.Delete(context.Background(), stage))
	w.r.client = &listed{cached{Client: w.r.client, snapshot: seen}}
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
