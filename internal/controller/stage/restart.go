package stage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
)

// With recovery RestartConsumers, the pods that use a volume are evicted once it is available
// again. The write that says they were told also lists them in status.pod.evictions. Each stays
// there until it is gone, because a disruption budget may reject its eviction for any length of
// time. Other work on the stage continues meanwhile.

const (
	// lastEviction is the longest pause after a rejected eviction. It is short: no event tells
	// when a budget allows the eviction, and meanwhile the pod is of no use.
	lastEviction = 30 * time.Second
	// evictionAnswer is the timeout of an eviction request. If Kubernetes has not counted a
	// budget yet, the API server answers to retry later. The client does that by itself and
	// blocks its caller.
	evictionAnswer = 5 * time.Second
)

// RestartView is all that a decision about the evictions of a stage depends on.
type RestartView struct {
	Stage *tarnv1.PavStage
	// Pods are the pods whose eviction is due, by UID, as the API server has them. Pods that
	// are gone are missing.
	Pods map[types.UID]*corev1.Pod
	// Answers are the results of their evictions; nil means accepted.
	Answers map[types.UID]error
}

// outlived reports whether a pod has seen the lost volume. A pod started after the volume was
// available again has not.
func outlived(pod *corev1.Pod, lost *tarnv1.StageLoss) bool {
	return pod.Status.StartTime == nil || !pod.Status.StartTime.After(lost.ReboundTime.Time)
}

// evictionsAfter returns the evictions that are due when a loss has ended. An eviction left
// from an earlier loss keeps its count and its pause.
func evictionsAfter(v View) []tarnv1.StageEviction {
	status := v.Stage.Status.Pod
	if status.Recovery != tarnv1.RecoveryRestartConsumers {
		return nil
	}
	var due []tarnv1.StageEviction
	for i := range v.Consumers {
		p := &v.Consumers[i]
		if metav1.GetControllerOf(p) == nil || ends(p) || !outlived(p, v.Stage.Status.Node.Loss) {
			continue
		}
		e := tarnv1.StageEviction{PodUID: p.UID, Namespace: p.Namespace, Name: p.Name}
		if at := slices.IndexFunc(status.Evictions, func(e tarnv1.StageEviction) bool { return e.PodUID == p.UID }); at >= 0 {
			e = status.Evictions[at]
		}
		due = append(due, e)
	}
	return due
}

// evicts reports whether pods of the stage may be evicted now. While the volume is lost once
// more they may not, because their successors would wait for it.
func evicts(stage *tarnv1.PavStage) bool {
	return stage != nil && stage.DeletionTimestamp == nil && len(stage.Status.Pod.Evictions) > 0 &&
		stage.Status.Node.Phase == tarnv1.StageStaged && !somethingToTell(stage)
}

// evictionIsDue reports whether it is time for an eviction.
func evictionIsDue(e tarnv1.StageEviction, now time.Time) bool {
	return e.NextAttemptTime == nil || !now.Before(e.NextAttemptTime.Time)
}

// restart takes the evictions of a stage a step further. It returns when to reconcile if no
// event arrives.
func (r *Reconciler) restart(ctx context.Context, v View, now time.Time) (time.Time, error) {
	if !evicts(v.Stage) {
		return time.Time{}, nil
	}
	e, err := r.gatherRestart(ctx, v.Stage, now)
	if err != nil {
		return time.Time{}, err
	}
	e.Answers = r.evictAll(ctx, e.Pods)
	if ctx.Err() != nil {
		return time.Time{}, ctx.Err() // a timeout is not a rejection by a budget
	}
	p := planRestart(e, now)
	return p.LookAt, r.runner.Do(ctx, p.Actions...)
}

// gatherRestart reads the pods whose eviction is due. They are not Tarn's, so the cache does
// not have them.
func (r *Reconciler) gatherRestart(ctx context.Context, stage *tarnv1.PavStage, now time.Time) (RestartView, error) {
	e := RestartView{Stage: stage, Pods: map[types.UID]*corev1.Pod{}}
	for _, due := range stage.Status.Pod.Evictions {
		if !evictionIsDue(due, now) {
			continue
		}
		pod, err := kube.Get(ctx, r.live, client.ObjectKey{Namespace: due.Namespace, Name: due.Name}, &corev1.Pod{})
		if err != nil {
			return e, fmt.Errorf("reading pod %s/%s, which is to be evicted: %w", due.Namespace, due.Name, err)
		}
		if pod != nil && pod.UID == due.PodUID {
			e.Pods[pod.UID] = pod
		}
	}
	return e, nil
}

// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create

// evictAll requests the eviction of each pod that is not ending already. A failure for one pod
// does not stop the others.
func (r *Reconciler) evictAll(ctx context.Context, pods map[types.UID]*corev1.Pod) map[types.UID]error {
	var (
		mu      sync.Mutex
		wait    sync.WaitGroup
		answers = map[types.UID]error{}
	)
	for uid, pod := range pods {
		if ends(pod) {
			continue
		}
		wait.Go(func() {
			err := r.evict(ctx, pod)
			mu.Lock()
			defer mu.Unlock()
			answers[uid] = err
		})
	}
	wait.Wait()
	return answers
}

// evict evicts a pod. It is no error if the pod is gone.
func (r *Reconciler) evict(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, evictionAnswer)
	defer cancel()
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))},
	}
	err := r.client.SubResource("eviction").Create(ctx, pod, eviction)
	if errors.Is(err, context.DeadlineExceeded) || err != nil && ctx.Err() != nil {
		return fmt.Errorf("the API server does not answer within %s; it may not have counted a disruption budget of the pod yet", evictionAnswer)
	}
	return client.IgnoreNotFound(err)
}

// planRestart records the result of each eviction. It tells each pod that it is evicted, or
// what prevents that, whenever the cause changes.
func planRestart(e RestartView, now time.Time) Plan {
	var p Plan
	status := e.Stage.Status.Pod
	status.Evictions = nil
	for _, was := range e.Stage.Status.Pod.Evictions {
		left, tell := nextEviction(e, was, now)
		p.Actions = append(p.Actions, tell...)
		if left != nil {
			status.Evictions = append(status.Evictions, *left)
			p.LookAt = kube.Sooner(p.LookAt, left.NextAttemptTime.Time)
		}
	}
	p.Actions = append(p.Actions, write(View{Stage: e.Stage}, status)...)
	return p
}

// nextEviction returns the remaining eviction, nil if it is done, and the Events to emit.
func nextEviction(e RestartView, was tarnv1.StageEviction, now time.Time) (*tarnv1.StageEviction, []action.Action) {
	uses := slices.ContainsFunc(e.Stage.Status.Node.Targets, func(t string) bool { return tarnv1.PodOfTarget(t) == was.PodUID })
	switch {
	case !uses:
		return nil, nil
	case !evictionIsDue(was, now):
		return &was, nil
	}
	pod := e.Pods[was.PodUID]
	refusal, asked := e.Answers[was.PodUID]
	if pod == nil || !asked { // it is gone, or ends for another reason
		return nil, nil
	}
	name := e.Stage.Spec.VolumeName
	if refusal == nil {
		return nil, []action.Action{tell(e.Stage, pod, corev1.EventTypeNormal, ReasonRestarted,
			fmt.Sprintf("volume %s was lost and is staged again; this pod is evicted so that its successor sees it", name))}
	}
	next, message := was, kube.Note(answerOf(refusal))
	next.Refusals, next.Message = was.Refusals+1, message
	at := now.Add(kube.Backoff(next.Refusals, firstRetry, lastEviction, string(was.PodUID)))
	next.NextAttemptTime = &metav1.Time{Time: at.Round(time.Second)} // the API keeps whole seconds
	if message == was.Message {
		return &next, nil
	}
	return &next, []action.Action{tell(e.Stage, pod, corev1.EventTypeWarning, ReasonNotRestarted, fmt.Sprintf(
		"volume %s was lost and is staged again, but this pod cannot be evicted yet: %s; eviction is retried; or delete the pod yourself", name, message))}
}

// answerOf returns the text of a rejection with the causes that the API server adds. One of
// them is the name of the disruption budget.
func answerOf(err error) string {
	text := err.Error()
	var status interface{ Status() metav1.Status }
	if !errors.As(err, &status) || status.Status().Details == nil {
		return text
	}
	text = cmp.Or(status.Status().Message, text)
	for _, cause := range status.Status().Details.Causes {
		if cause.Message != "" {
			text += " " + cause.Message
		}
	}
	return text
}
