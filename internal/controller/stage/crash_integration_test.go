//go:build integration

package stage

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod/steppodtest"
	"tarn.dev/tarn/internal/testkit"
)

// loss is a life of a stage whose staging pod dies in use.
type loss struct {
	testkit.Span
	recovery tarnv1.StageRecovery
	// deleted means that the staging pod is deleted; otherwise it fails.
	deleted bool
}

var losses = []loss{
	{Span: testkit.Span{Name: "fails"}, recovery: tarnv1.RecoveryRebind},
	// Four writes lead up to the use of the volume. The next ones record that its pod is gone
	// and that all consumers were told.
	{Span: testkit.Span{Name: "deleted", From: 5, To: 7}, recovery: tarnv1.RecoveryRebind, deleted: true},
	// The twelfth write records which pods are evicted. Then come three evictions, one of them
	// rejected, and the writes about them.
	{Span: testkit.Span{Name: "evicts", From: 12, To: 18}, recovery: tarnv1.RecoveryRestartConsumers},
}

func TestALostVolumeIsMendedOnceWhereverTheControllerIsKilled(t *testing.T) {
	var spans []testkit.Span
	for _, l := range losses {
		spans = append(spans, l.Span)
	}
	testkit.AtTheirWrites(t, spans, func(t *testing.T, server *rest.Config, span int, name string) (testkit.Life, *rest.Config) {
		l := losses[span]
		u := newInUse(t, server, "loss-"+name, l.recovery)
		return &lostInUse{inUse: u, loss: l}, u.Config
	})
}

// lostInUse is the life of a loss.
type lostInUse struct {
	*inUse
	loss loss
}

// Run implements testkit.Life.
func (u *lostInUse) Run(c *rest.Config) (stop func()) { return u.run(c) }

// Live implements testkit.Life, and writes what a node agent would write.
func (u *lostInUse) Live() {
	u.T.Helper()
	kept, free, alone := u.runs("kept"), u.runs("free"), u.runs("alone", func(p *corev1.Pod) { p.OwnerReferences = nil })
	budget := u.budget(kept, true)
	u.becomes(tarnv1.StagePodRunning, 1)
	u.asAgent(u.stage, func(n *tarnv1.PavStageNodeStatus) {
		n.Phase, n.Targets = tarnv1.StageStaged, []string{target(kept.UID), target(free.UID), target(alone.UID)}
	})
	u.until(func() string { return u.budgets(1) })
	u.dies(u.loss.deleted)
	u.asAgent(u.stage, func(n *tarnv1.PavStageNodeStatus) {
		n.Phase = tarnv1.StageLost
		n.Loss = &tarnv1.StageLoss{Number: 1, Attempt: 1, Reason: tarnv1.ReasonPodEnded, Time: metav1.Now()}
	})
	u.becomes(tarnv1.StagePodGone, 1)
	u.asAgent(u.stage, func(n *tarnv1.PavStageNodeStatus) { n.Loss.Cleared = 1 })
	u.becomes(tarnv1.StagePodRunning, 2)
	u.asAgent(u.stage, func(n *tarnv1.PavStageNodeStatus) {
		now := metav1.Now()
		n.Phase, n.Loss.ReboundTime = tarnv1.StageStaged, &now
	})
	want := map[string]int{}
	if u.loss.recovery == tarnv1.RecoveryRestartConsumers {
		want[free.Name], want[kept.Name] = 1, 1
		u.evicted(free)
		u.refused(u.stage, map[string]string{kept.Name: budget.Name})
		u.Must(u.Client.Delete(u.Ctx, budget))
		u.evicted(kept)
	}
	u.until(u.over)
	u.counts(want)
	for _, p := range []*corev1.Pod{kept, free, alone} {
		u.Must(client.IgnoreNotFound(u.Client.Delete(u.Ctx, p, client.GracePeriodSeconds(0))))
	}
	u.lives(u.stage, nil)
}

// Check implements testkit.Life.
func (u *lostInUse) Check() {
	u.T.Helper()
	u.check(2, 1)
	if wrong := u.budgets(0); wrong != "" {
		u.T.Error(wrong)
	}
}

// inUse is a server with a stage that is in use.
type inUse struct {
	*server
	stage *tarnv1.PavStage

	mu sync.Mutex
	// agreed counts by pod the evictions that the API server has accepted.
	agreed map[string]int
}

func newInUse(t *testing.T, config *rest.Config, name string, recovery tarnv1.StageRecovery) *inUse {
	t.Helper()
	u := &inUse{agreed: map[string]int{}}
	u.server = newServerOn(t, config, name, func(p *corev1.Pod) steppodtest.End {
		return steppodtest.End{Stays: p.Labels[tarnv1.LabelStep] == string(tarnv1.StepStaging)}
	})
	u.Config = rest.CopyConfig(config)
	u.Config.Wrap(u.counting)
	u.stage = u.server.stage()
	u.recovers(recovery)
	u.Play(u.endPods)
	return u
}

// counting counts the evictions that the API server accepts, even if the requester is killed
// before the answer. Evictions run side by side, so one may be in flight when another kills the
// process.
func (u *inUse) counting(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		path, is := strings.CutSuffix(r.URL.Path, "/eviction")
		if is {
			r = r.WithContext(context.WithoutCancel(r.Context()))
		}
		response, err := next.RoundTrip(r)
		if is && err == nil && response.StatusCode < http.StatusMultipleChoices {
			u.mu.Lock()
			defer u.mu.Unlock()
			u.agreed[path[strings.LastIndex(path, "/")+1:]]++
		}
		return response, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// endPods removes deleted pods, as a kubelet does once it has stopped them.
func (u *inUse) endPods() error {
	pods := &corev1.PodList{}
	err := u.Mirror.List(u.Ctx, pods, client.InNamespace("default"))
	for i := range pods.Items {
		if p := &pods.Items[i]; strings.Contains(p.Name+p.Labels[tarnv1.LabelProvisioner], u.name) {
			u.Stop(p)
		}
	}
	return err
}

func (u *inUse) look() {
	u.T.Helper()
	u.Must(u.Client.Get(u.Ctx, client.ObjectKeyFromObject(u.stage), u.stage))
}

// becomes waits for a phase of the staging pod of an attempt.
func (u *inUse) becomes(phase tarnv1.StagePodPhase, attempt int32) {
	u.T.Helper()
	u.until(func() string {
		u.look()
		if pod := u.stage.Status.Pod; pod.Phase != phase || pod.Attempt != attempt || somethingToTell(u.stage) {
			return fmt.Sprintf("the staging pod is to be %s in attempt %d: %+v", phase, attempt, pod)
		}
		return ""
	})
}

// dies ends the staging pod, and waits until the controller has recorded it.
func (u *inUse) dies(deleted bool) {
	u.T.Helper()
	pod := &corev1.Pod{}
	u.Must(u.Client.Get(u.Ctx, client.ObjectKey{Namespace: u.stage.Status.Pod.Namespace, Name: u.stage.Status.Pod.Name}, pod))
	if deleted {
		u.Must(u.Client.Delete(u.Ctx, pod))
		u.becomes(tarnv1.StagePodGone, 1)
		return
	}
	pod.Status.Phase = corev1.PodFailed
	for i := range pod.Status.ContainerStatuses {
		pod.Status.ContainerStatuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, FinishedAt: metav1.Now()}}
	}
	u.Must(u.Client.Status().Update(u.Ctx, pod))
	u.becomes(tarnv1.StagePodFailed, 1)
}

// over says what remains to do about the loss; empty if nothing does.
func (u *inUse) over() string {
	u.look()
	if pod := u.stage.Status.Pod; pod.ReboundTold != 1 || len(pod.Evictions) > 0 {
		return fmt.Sprintf("the loss is not over: %+v", pod)
	}
	return ""
}

// counts expects that the stage survived one loss with one more staging pod, and that each pod
// was evicted this often.
func (u *inUse) counts(wantEvicted map[string]int) {
	u.T.Helper()
	if pod := u.stage.Status.Pod; pod.Phase != tarnv1.StagePodRunning || pod.Attempt != 2 || pod.Restarts != 1 || pod.LossTold != 1 || pod.ReboundTold != 1 {
		u.T.Errorf("after the loss the stage says %+v, want the second attempt to run, one restart, and loss 1 told", pod)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !maps.Equal(u.agreed, wantEvicted) {
		u.T.Errorf("evicted were %v, want %v", u.agreed, wantEvicted)
	}
}

// budgets counts the disruption budgets that keep the stage's pods.
func (u *inUse) budgets(want int) string {
	budgets := &policyv1.PodDisruptionBudgetList{}
	u.Must(u.Client.List(u.Ctx, budgets, client.MatchingLabels{tarnv1.LabelStage: string(u.stage.UID)}))
	if len(budgets.Items) != want {
		return fmt.Sprintf("%d disruption budgets keep the staging pod, want %d", len(budgets.Items), want)
	}
	return ""
}
