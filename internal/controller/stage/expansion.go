package stage

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// ReasonExpansionFailed: the file system could not be expanded on the node. Correct the cause in
// the message; the next attempt follows by itself.
const ReasonExpansionFailed = "NodeExpansionFailed"

// ExpansionView is all that a decision about expanding a staged volume on its node depends on.
type ExpansionView struct {
	// View is of a stage with a request. Its Prepared and Unfit are those of the expansion pod;
	// Unfit also says why the API server rejected that.
	View
	// Pods are the stage's node expansion pods.
	Pods []corev1.Pod
}

// expand takes the expansion of a staged volume a step further. It returns when to reconcile if
// no event arrives.
func (r *Reconciler) expand(ctx context.Context, v View, now time.Time) (time.Time, error) {
	if v.Stage == nil || !grows(v.Stage) {
		return time.Time{}, nil
	}
	e, err := r.gatherExpansion(ctx, v)
	if err != nil {
		return time.Time{}, err
	}
	p := planExpansion(e, now)
	err = r.runner.Do(ctx, p.Actions...)
	if e.Unfit = steppod.AsStepError(err); e.Unfit != nil {
		p = planExpansion(e, now)
		err = r.runner.Do(ctx, p.Actions...)
	}
	return p.LookAt, err
}

// stopExpansion removes the node expansion pods of a stage that ends or whose volume is lost.
// It reports whether any are left. Nothing of the stage may be unmounted under them, and none
// may run beside the next staging pod.
//
// The staging pod of a lost volume is removed together with them: an expansion pod that waits
// for its hung server does not end before that. The stage reports an expansion pod that does
// not end just like a staging pod.
func (r *Reconciler) stopExpansion(ctx context.Context, v View, now time.Time) (left bool, lookAt time.Time, err error) {
	switch {
	case v.Stage == nil || v.Stage.Status.Node.Expansion == nil:
		return false, time.Time{}, nil
	case situationOf(v.Stage) == stop:
		pods, err := r.expansionPods(ctx, v.Stage)
		if err != nil {
			return false, time.Time{}, err
		}
		return len(pods) > 0, time.Time{}, r.runner.Do(ctx, action.DiscardPods{Pods: pods})
	case v.Node == nil || !losesStagingPod(v):
		return false, time.Time{}, nil
	}
	pods, err := r.runningExpansions(ctx, v.Stage)
	if err != nil || len(pods) == 0 {
		return err != nil, time.Time{}, err
	}
	actions, status := hurryAll(pods), v.Stage.Status.Pod
	if isSpent(v) {
		actions = append(actions, hurryAll([]corev1.Pod{*v.Pod})...)
	}
	for i := range pods {
		if o := steppod.Observe(&pods[i], v.Stage.UID, now); o.State == steppod.PodGoing {
			lookAt, status.Message = kube.Sooner(lookAt, o.CheckAt), cmp.Or(o.Message, status.Message)
		}
	}
	return true, lookAt, r.runner.Do(ctx, append(write(v, status), actions...)...)
}

// losesStagingPod reports whether the next write may say that the staging pod is gone while the
// stage continues. The node then clears the directory, so the volume's consumers must be told
// first.
func losesStagingPod(v View) bool {
	switch situationOf(v.Stage) {
	case mend:
		return !somethingToTell(v.Stage)
	case follow:
		return v.Pod == nil && isStaged(v.Stage)
	}
	return false
}

// isSpent reports whether the staging pod belongs to a lost volume, which that pod cannot make
// available any more.
func isSpent(v View) bool {
	return situationOf(v.Stage) == mend && v.Stage.Status.Node.Loss.Spent(attemptOf(v.Stage.Status.Pod)) && ours(v)
}

// runningExpansions are the node expansion pods of a stage that have not ended. The pod of the
// current attempt may be too new for the cache, so its absence is confirmed with the API
// server.
func (r *Reconciler) runningExpansions(ctx context.Context, stage *tarnv1.PavStage) ([]corev1.Pod, error) {
	pods, err := r.expansionPods(ctx, stage)
	if err != nil {
		return nil, err
	}
	want, have := stage.Status.Node.Expansion, stage.Status.Pod.Expansion
	e := ExpansionView{View: View{Stage: stage}, Pods: pods}
	if have != nil && have.Attempt == want.Attempt && have.Phase == tarnv1.StageExpansionRunning && currentExpansion(e) == nil {
		pod, err := find(ctx, r, &corev1.Pod{}, client.ObjectKey{Namespace: have.Namespace, Name: have.Name}, "")
		if err != nil {
			return nil, err
		}
		if pod != nil && steppod.OwnedBy(pod, stage.UID) {
			pods = append(pods, *pod)
		}
	}
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	}), nil
}

// hurryAll deletes pods that have nothing more to do, each once.
func hurryAll(pods []corev1.Pod) []action.Action {
	var actions []action.Action
	for i := range pods {
		if grace := pods[i].DeletionGracePeriodSeconds; pods[i].DeletionTimestamp == nil || grace == nil || *grace > hurry {
			actions = append(actions, action.Delete{Object: &pods[i], Grace: ptr.To[int64](hurry)})
		}
	}
	return actions
}

// grows reports whether the node waits for its volume to be expanded, or did. A volume whose
// staging pod is gone is about to be lost.
func grows(stage *tarnv1.PavStage) bool {
	return stage.DeletionTimestamp == nil && stage.Status.Node.Expansion != nil && stage.Status.Node.Phase == tarnv1.StageStaged &&
		stage.Status.Pod.Phase != tarnv1.StagePodGone && !stage.Void()
}

func (r *Reconciler) expansionPods(ctx context.Context, stage *tarnv1.PavStage) ([]corev1.Pod, error) {
	pods := &corev1.PodList{}
	labels := client.MatchingLabels{tarnv1.LabelStage: string(stage.UID), tarnv1.LabelStep: string(tarnv1.StepNodeExpansion)}
	if err := r.client.List(ctx, pods, labels); err != nil {
		return nil, fmt.Errorf("listing the node expansion pods of PavStage %s: %w", stage.Name, err)
	}
	return pods.Items, nil
}

func (r *Reconciler) gatherExpansion(ctx context.Context, v View) (ExpansionView, error) {
	e := ExpansionView{View: View{Stage: v.Stage, Claim: v.Claim}}
	var err error
	if e.Pods, err = r.expansionPods(ctx, v.Stage); err != nil || !expansionDue(e) {
		return e, err
	}
	unfit := func(message string) (ExpansionView, error) {
		e.Unfit = &steppod.StepError{Step: tarnv1.StepNodeExpansion, Reason: steppod.ReasonInvalid, Message: message}
		return e, nil
	}
	w := View{Stage: v.Stage, Node: v.Node}
	if err := r.readSubjects(ctx, &w, true); err != nil {
		return e, err
	}
	if why := verdict(w); why != usable {
		if why == unknown {
			why = fmt.Sprintf("PavProvisioner %q has not been checked yet", v.Stage.Spec.Provisioner.Name)
		}
		return unfit(why)
	}
	record, err := find(ctx, r, &tarnv1.PavVolume{}, client.ObjectKey{Name: w.Volume.Name}, "")
	if err != nil {
		return e, err
	}
	if w.Node == nil {
		return unfit(fmt.Sprintf("volume %q cannot grow on node %q: its Node is gone", w.Volume.Name, v.Stage.Spec.NodeName))
	}
	want := v.Stage.Status.Node.Expansion
	has, err := r.capacityOf(ctx, w.Volume, record, want.Capacity)
	if err != nil {
		return e, err
	}
	if want.Capacity > has {
		return unfit(fmt.Sprintf("node %q asks that volume %q grow to %s, but it has %s", v.Stage.Spec.NodeName, w.Volume.Name, volume.Size(want.Capacity), volume.Size(has)))
	}
	e.Prepared, err = r.steps.PrepareNodeExpansion(ctx, w.Provisioner, steppod.NodeExpansion{
		Stage: v.Stage, Record: record, Volume: w.Volume, Claim: w.Claim, Node: w.Node, NewCapacity: want.Capacity, Attempt: want.Attempt,
	})
	if e.Unfit = steppod.AsStepError(err); err != nil && e.Unfit == nil {
		return e, err
	}
	return e, nil
}

// capacityOf is the capacity of a volume in bytes. It is read from the API server if the cache
// has less than wanted; record is nil for a volume that Tarn has not made. A kubelet requests
// what the volume has. A node agent that requests more would evade the claim's quota.
func (r *Reconciler) capacityOf(ctx context.Context, vol *corev1.PersistentVolume, record *tarnv1.PavVolume, wanted int64) (int64, error) {
	of := func(v *corev1.PersistentVolume) int64 {
		has := volume.Bytes(v.Spec.Capacity[corev1.ResourceStorage])
		if record != nil {
			has = max(has, record.Status.Capacity)
		}
		return has
	}
	if has := of(vol); has >= wanted {
		return has, nil
	}
	fresh := &corev1.PersistentVolume{}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(vol), fresh); err != nil {
		return 0, fmt.Errorf("reading PersistentVolume %s: %w", vol.Name, err)
	}
	return of(fresh), nil
}

// expansionDue reports whether a pod must be created now.
func expansionDue(e ExpansionView) bool {
	want, have := e.Stage.Status.Node.Expansion, e.Stage.Status.Pod.Expansion
	return have == nil || have.Attempt != want.Attempt || have.Phase == tarnv1.StageExpansionRunning && currentExpansion(e) == nil
}

// currentExpansion is the pod of the attempt in the status.
func currentExpansion(e ExpansionView) *corev1.Pod {
	have := e.Stage.Status.Pod.Expansion
	for i := range e.Pods {
		if have != nil && e.Pods[i].Name == have.Name && e.Pods[i].Namespace == have.Namespace {
			return &e.Pods[i]
		}
	}
	return nil
}

// planExpansion answers the node's request. It records the attempt before it creates the pod,
// and the result before it removes the pod. A failed pod stays readable until the next one is
// created. The kubelet decides whether there is a next one.
func planExpansion(e ExpansionView, now time.Time) Plan {
	want := e.Stage.Status.Node.Expansion
	if expansionDue(e) {
		switch {
		case e.Unfit != nil:
			return expansionFailed(e, e.Unfit.Message)
		case e.Prepared.Pod == nil:
			return expansionDone(e)
		}
		pod := e.Prepared.Pod
		running := e.expansion(tarnv1.StageExpansion{
			Attempt: want.Attempt, Phase: tarnv1.StageExpansionRunning, Namespace: pod.Namespace, Name: pod.Name,
		})
		return Plan{Actions: []action.Action{running, action.StartPod{Pod: pod}, discardExpansions(e, pod.Name)}}
	}
	have := e.Stage.Status.Pod.Expansion
	if have.Phase != tarnv1.StageExpansionRunning {
		if have.Phase == tarnv1.StageExpansionSucceeded {
			return Plan{Actions: []action.Action{discardExpansions(e, "")}}
		}
		return Plan{}
	}
	if e.Unfit != nil {
		return expansionFailed(e, e.Unfit.Message)
	}
	o := steppod.Observe(currentExpansion(e), e.Stage.UID, now).After(have.Message)
	switch o.State {
	case steppod.PodSucceeded:
		return expansionDone(e)
	case steppod.PodFailed, steppod.PodForeign:
		return expansionFailed(e, o.Message)
	}
	waiting := *have
	waiting.Message = kube.Cut(o.Message, maxMessage)
	if waiting == *have {
		return Plan{LookAt: o.CheckAt}
	}
	return Plan{Actions: append([]action.Action{e.expansion(waiting)}, e.waits(o, currentExpansion(e))...), LookAt: o.CheckAt}
}

func expansionDone(e ExpansionView) Plan {
	done := tarnv1.StageExpansion{Attempt: e.Stage.Status.Node.Expansion.Attempt, Phase: tarnv1.StageExpansionSucceeded}
	return Plan{Actions: []action.Action{e.expansion(done), discardExpansions(e, "")}}
}

func expansionFailed(e ExpansionView, message string) Plan {
	failed := tarnv1.StageExpansion{
		Attempt: e.Stage.Status.Node.Expansion.Attempt, Phase: tarnv1.StageExpansionFailed, Message: kube.Cut(message, maxMessage),
	}
	if pod := currentExpansion(e); pod != nil {
		failed.Namespace, failed.Name = pod.Namespace, pod.Name
	}
	return Plan{Actions: append([]action.Action{e.expansion(failed)}, e.warn(ReasonExpansionFailed, message)...)}
}

// expansion writes the status of the expansion.
func (v View) expansion(is tarnv1.StageExpansion) action.Action {
	status := v.Stage.Status.Pod
	status.Expansion = &is
	return v.record(status)
}

// discardExpansions deletes the expansion pods but one.
func discardExpansions(e ExpansionView, keep string) action.Action {
	return action.DiscardPods{Pods: slices.DeleteFunc(slices.Clone(e.Pods), func(p corev1.Pod) bool {
		return p.Name == keep || p.DeletionTimestamp != nil
	})}
}
