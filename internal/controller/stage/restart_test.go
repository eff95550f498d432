package stage

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
)

// target is where the kubelet wants the volume of a pod.
func target(pod types.UID) string {
	return "/var/lib/kubelet/pods/" + string(pod) + "/volumes/kubernetes.io~csi/pv/mount"
}

// user is a pod that uses the volume, and that has a controller that would replace it.
func user(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := consumer("app", "data", "n1")
	p.Name, p.UID = name, types.UID("uid-of-"+name)
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "owner", Controller: ref(true)}}
	for _, c := range change {
		c(p)
	}
	return p
}

// eviction is an eviction of that pod that was rejected this often and is due after a while. It
// is due at once if it was never rejected.
func eviction(name string, refusals int32, message string, after time.Duration) tarnv1.StageEviction {
	e := tarnv1.StageEviction{PodUID: types.UID("uid-of-" + name), Namespace: "app", Name: name, Refusals: refusals, Message: message}
	if refusals > 0 {
		e.NextAttemptTime = &metav1.Time{Time: noon.Add(after)}
	}
	return e
}

// regained is a stage whose volume was lost and is available again, with evictions that are not
// done. Its targets are those of the pods a, b and c.
func regained(evictions ...tarnv1.StageEviction) *tarnv1.PavStage {
	s := lost(aStage(used(tarnv1.StagePodRunning, recovery(tarnv1.RecoveryRestartConsumers))))
	s.Status.Node.Phase, s.Status.Node.Loss.ReboundTime = tarnv1.StageStaged, &metav1.Time{Time: noon}
	s.Status.Node.Targets = []string{target("uid-of-a"), target("uid-of-b"), target("uid-of-c")}
	s.Status.Pod.ReboundTold, s.Status.Pod.Evictions = 1, evictions
	return s
}

// forbids is the API server's answer if a disruption budget forbids an eviction.
func forbids(budget string) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Message: "The disruption budget " + budget + " needs 1 healthy pods and has 1 currently"}}
	return err
}

const (
	answer      = "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget stay needs 1 healthy pods and has 1 currently"
	refusedNote = "volume pv was lost and is staged again, but this pod cannot be evicted yet: " + answer + "; eviction is retried; or delete the pod yourself"
)

func TestWhoIsEvictedAfterALoss(t *testing.T) {
	started := func(after time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.StartTime = &metav1.Time{Time: noon.Add(after)} }
	}
	alone := func(p *corev1.Pod) { p.OwnerReferences = nil }
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	for name, c := range map[string]struct {
		recovery tarnv1.StageRecovery
		known    []tarnv1.StageEviction
		pod      *corev1.Pod
		want     []tarnv1.StageEviction
	}{
		"a pod that is made again":             {pod: user("a", started(-time.Hour)), want: []tarnv1.StageEviction{eviction("a", 0, "", 0)}},
		"not one that nobody makes again":      {pod: user("a", alone)},
		"nor one that goes":                    {pod: user("a", going)},
		"nor one that has ended":               {pod: user("a", ended)},
		"nor one that began with the volume":   {pod: user("a", started(time.Second))},
		"nor where the volume is bound anew":   {recovery: tarnv1.RecoveryRebind, known: []tarnv1.StageEviction{eviction("a", 2, answer, 0)}, pod: user("a")},
		"one that was refused before goes on":  {known: []tarnv1.StageEviction{eviction("a", 2, answer, time.Minute)}, pod: user("a"), want: []tarnv1.StageEviction{eviction("a", 2, answer, time.Minute)}},
		"one that has gone since is forgotten": {known: []tarnv1.StageEviction{eviction("b", 2, answer, 0)}, pod: user("a"), want: []tarnv1.StageEviction{eviction("a", 0, "", 0)}},
	} {
		t.Run(name, func(t *testing.T) {
			s := regained(c.known...)
			s.Status.Pod.ReboundTold = 0
			if c.recovery != "" {
				s.Status.Pod.Recovery = c.recovery
			}
			status := written(plan(view(s, func(v *View) { v.Consumers = []corev1.Pod{*c.pod} }), noon))
			if status == nil || status.ReboundTold != 1 {
				t.Fatalf("the status is %+v, want that the end of loss 1 was told", status)
			}
			if diff := cmp.Diff(c.want, status.Evictions); diff != "" {
				t.Errorf("evictions (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatBecomesOfAnEviction(t *testing.T) {
	for name, c := range map[string]struct {
		was    tarnv1.StageEviction
		pod    *corev1.Pod // nil: not read, or gone
		answer error
		want   *tarnv1.StageEviction // nil: done
		// tells is "Reason note" of the Event.
		tells string
	}{
		"it is agreed to":                 {was: eviction("a", 0, "", 0), pod: user("a"), tells: "RestartedForVolume volume pv was lost and is staged again; this pod is evicted so that its successor sees it"},
		"somebody else has seen to it":    {was: eviction("a", 1, answer, 0), pod: user("a", going), tells: "RestartedForVolume volume pv was lost and is staged again; this pod is evicted so that its successor sees it"},
		"the pod is gone":                 {was: eviction("a", 1, answer, 0)},
		"its volume was taken from it":    {was: eviction("d", 1, answer, time.Minute)},
		"it is not its time":              {was: eviction("a", 1, answer, time.Minute), want: ref(eviction("a", 1, answer, time.Minute))},
		"it is refused":                   {was: eviction("a", 0, "", 0), pod: user("a"), answer: forbids("stay"), want: ref(eviction("a", 1, answer, time.Second)), tells: "RestartRefused " + refusedNote},
		"that is told once":               {was: eviction("a", 1, answer, 0), pod: user("a"), answer: forbids("stay"), want: ref(eviction("a", 2, answer, 2*time.Second))},
		"but not as that of another":      {was: eviction("a", 1, "no", 0), pod: user("a"), answer: forbids("stay"), want: ref(eviction("a", 2, answer, 2*time.Second)), tells: "RestartRefused " + refusedNote},
		"pauses are short to the end":     {was: eviction("a", 60, answer, 0), pod: user("a"), answer: forbids("stay"), want: ref(eviction("a", 61, answer, lastEviction))},
		"an error without a status is so": {was: eviction("a", 1, "broken", 0), pod: user("a"), answer: errors.New("broken"), want: ref(eviction("a", 2, "broken", 2*time.Second))},
	} {
		t.Run(name, func(t *testing.T) {
			e := RestartView{Stage: regained(c.was), Pods: map[types.UID]*corev1.Pod{}, Answers: map[types.UID]error{}}
			if c.pod != nil {
				e.Pods[c.pod.UID], e.Answers[c.pod.UID] = c.pod, c.answer
			}
			p := planRestart(e, noon)
			left := e.Stage.Status.Pod.Evictions
			if status := written(p); status != nil {
				left = status.Evictions
			}
			if (c.want != nil) != (len(left) == 1) {
				t.Fatalf("what is left is %+v, want %+v", left, c.want)
			}
			if c.want != nil {
				pause, plain := left[0].NextAttemptTime.Sub(noon), c.want.NextAttemptTime.Sub(noon)
				if slack := plain/5 + time.Second/2; pause < plain-slack || pause > plain+slack {
					t.Errorf("it is tried again after %s, want about %s", pause, plain)
				}
				if !p.LookAt.Equal(left[0].NextAttemptTime.Time) {
					t.Errorf("the stage is looked at at %s, want at %s", p.LookAt, left[0].NextAttemptTime)
				}
				left[0].NextAttemptTime = c.want.NextAttemptTime
				if diff := cmp.Diff(*c.want, left[0]); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
			if got := tellings(p); got != c.tells {
				t.Errorf("tells %q, want %q", got, c.tells)
			}
		})
	}
}

func tellings(p Plan) string {
	var all []string
	for _, a := range p.Actions {
		if told, ok := a.(action.Emit); ok {
			all = append(all, told.Reason+" "+told.Note)
		}
	}
	return strings.Join(all, "; ")
}

func TestWhenPodsAreEvicted(t *testing.T) {
	one := eviction("a", 0, "", 0)
	for name, c := range map[string]struct {
		stage *tarnv1.PavStage
		want  bool
	}{
		"while the volume is there":             {regained(one), true},
		"not where nobody is to be":             {regained(), false},
		"not while it is lost once more":        {lost(regained(one)), false},
		"not before they were told of a loss":   {untoldOfRebound(regained(one)), false},
		"not when the stage ends":               {ending(regained(one)), false},
		"not of a stage that is gone by itself": {nil, false},
	} {
		if got := evicts(c.stage); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

func untoldOfRebound(s *tarnv1.PavStage) *tarnv1.PavStage {
	s.Status.Pod.ReboundTold = 0
	return s
}

// budgets makes the world's API server reject the evictions that forbid names, and delete the
// other evicted pods.
func (w *world) budgets(forbid func(pod string) error) {
	w.r.client = interceptor.NewClient(w.r.client.(client.WithWatch), interceptor.Funcs{
		SubResourceCreate: func(ctx context.Context, _ client.Client, sub string, o, _ client.Object, _ ...client.SubResourceCreateOption) error {
			if sub != "eviction" {
				w.t.Errorf("subresource %s is created, want an eviction", sub)
			}
			if err := forbid(o.GetName()); err != nil {
				return err
			}
			return w.store.Delete(ctx, o)
		},
	})
}

func TestOnePodThatMayNotBeEvictedKeepsNothingElse(t *testing.T) {
	s := regained()
	s.Status.Pod.ReboundTold = 0
	w := newWorld(t, s, user("a"), user("b"), user("c"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, aPod(staging, corev1.PodRunning))
	asked := make(chan string, 100)
	forbidden := true
	w.budgets(func(pod string) error {
		asked <- pod
		if pod == "a" && forbidden {
			return forbids("stay")
		}
		return nil
	})
	left := func() []tarnv1.StageEviction { return w.stage().Status.Pod.Evictions }

	w.look() // tells the pods and evicts them
	if got := left(); len(got) != 1 || got[0].Name != "a" || got[0].Message != answer {
		t.Fatalf("after the first look these are to be evicted: %+v; want a, and why not", got)
	}
	for _, gone := range []string{"b", "c"} {
		if err := w.store.Get(t.Context(), client.ObjectKey{Namespace: "app", Name: gone}, &corev1.Pod{}); !apierrors.IsNotFound(err) {
			t.Errorf("reading pod %s says %v, want that it is gone", gone, err)
		}
	}
	if n := len(asked); n != 3 {
		t.Errorf("%d evictions were asked for, want 3", n)
	}

	// An eviction that is not due is not tried, and the staging pod is still followed.
	staged := &corev1.Pod{}
	w.must(w.store.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: staging}, staged))
	staged.Status.Phase = corev1.PodFailed
	w.must(w.store.Status().Update(t.Context(), staged))
	at := w.clock.Now()
	w.clock.SetTime(left()[0].NextAttemptTime.Add(-time.Millisecond))
	w.look()
	if got := w.stage().Status.Pod.Phase; got != tarnv1.StagePodFailed || len(asked) != 3 {
		t.Errorf("the staging pod has failed and is said to be %s, %d evictions were asked for; want Failed, and 3", got, len(asked))
	}

	// A new controller knows only what the stage says, and reports nothing twice.
	w.clock.SetTime(at.Add(time.Minute))
	w.look()
	if got := left(); len(got) != 1 || got[0].Refusals != 2 {
		t.Errorf("after a second refusal: %+v, want two refusals of a", got)
	}
	forbidden = false
	w.clock.SetTime(at.Add(2 * time.Minute))
	w.look()
	if got := left(); len(got) != 0 {
		t.Errorf("these are still to be evicted: %+v", got)
	}
	told := map[string]int{}
	for len(w.events.Events) > 0 {
		kind, _, _ := strings.Cut(strings.SplitN(<-w.events.Events, " ", 2)[1], " ")
		told[kind]++
	}
	if told[ReasonNotRestarted] != 1 || told[ReasonRestarted] != 3 {
		t.Errorf("Events by reason: %v, want one %s and three %s", told, ReasonNotRestarted, ReasonRestarted)
	}
}
