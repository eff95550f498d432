package stage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

func dueUnstaging(v View, status tarnv1.PavStagePodStatus, now time.Time) (tarnv1.Step, int32) {
	switch {
	case !status.Staged, v.Node == nil, v.Pod != nil:
		return "", 0
	case status.Phase == tarnv1.StagePodStopped && v.Stage.Status.Node.Phase != tarnv1.StageUnmounted:
		return "", 0
	case status.NextAttemptTime == nil:
		return tarnv1.StepUnstaging, max(status.UnstageAttempts, 1)
	case now.Before(status.NextAttemptTime.Time):
		return "", 0
	}
	return tarnv1.StepUnstaging, status.UnstageAttempts + 1
}

// planStop removes the staging pod. It leaves a foreign pod of that name alone.
func planStop(v View) Plan {
	var actions []action.Action
	if v.Leftover != nil && v.Leftover.DeletionTimestamp == nil {
		actions = append(actions, action.DiscardPods{Pods: []corev1.Pod{*v.Leftover}})
	}
	if ours(v) {
		return Plan{Actions: append(actions, discard(v)...)}
	}
	status := v.Stage.Status.Pod
	if unanswered(v.Stage) && !status.Staged {
		// Perhaps no node agent runs to remove its finalizer, and it has nothing to do here.
		return Plan{Actions: append(actions, LetGo{Stage: v.Stage, Finalizers: []string{tarnv1.FinalizerStagePod, tarnv1.FinalizerStageNode}})}
	}
	return Plan{Actions: append(actions, write(v, tarnv1.PavStagePodStatus{
		Phase: tarnv1.StagePodStopped, Namespace: status.Namespace, Staged: status.Staged,
	})...)}
}

// planUnstage runs the unstaging pod once the node has unmounted, and retries with growing
// pauses until it succeeds. A failed pod stays readable until its successor is due, and is gone
// before that starts.
func planUnstage(v View, now time.Time) Plan {
	status := v.Stage.Status.Pod
	switch {
	case v.Node == nil && status.Staged:
		return finish(v, fmt.Sprintf("node %q is gone, so the volume was not unstaged there", v.Stage.Spec.NodeName))
	case v.Node == nil, v.Dropped:
		return finish(v, "")
	case v.Refused != nil && v.Refused.Reason == steppod.ReasonNamespaceGone:
		// The namespace cannot end while this stage keeps its consumer's pod, and a namespace
		// that is ending accepts no new pod. Waiting would last for ever.
		return finish(v, v.Refused.Message+": the volume is not unstaged")
	case v.Refused != nil:
		return retryUnstaging(v, status.UnstageAttempts, v.Refused.Message, now)
	case v.Pod != nil && status.NextAttemptTime != nil:
		return waitForRetry(v, status, now)
	case v.Pod != nil:
		return followUnstaging(v, now)
	case untold(status):
		return tellFailure(v)
	case status.Phase == tarnv1.StagePodStopped && v.Stage.Status.Node.Phase != tarnv1.StageUnmounted:
		return Plan{}
	case !status.Staged:
		return finish(v, "")
	case status.NextAttemptTime != nil && now.Before(status.NextAttemptTime.Time):
		return Plan{LookAt: status.NextAttemptTime.Time}
	case v.Missing != "":
		// All three are named with a UID, so a missing one never comes back. Without it no
		// template can be evaluated. Waiting would keep the node's directory and the consumer's
		// pod for ever, so the controller reports this and gives up.
		return finish(v, v.Missing+": its unstaging template cannot be evaluated, so it was not unstaged")
	}
	_, attempt := dueUnstaging(v, status, now)
	switch {
	case v.Rival != "":
		return finish(v, v.Rival+": the volume is unstaged when that one is")
	case v.Unfit != nil:
		return retryUnstaging(v, attempt, v.Unfit.Message, now)
	case v.Prepared.Pod == nil:
		return finish(v, "")
	}
	pod := v.Prepared.Pod
	return Plan{Actions: []action.Action{v.record(tarnv1.PavStagePodStatus{
		Phase: tarnv1.StagePodUnstaging, Namespace: pod.Namespace, Name: pod.Name, Staged: true,
		UnstageAttempts: attempt, Message: status.Message,
	}), action.StartPod{Pod: pod}}}
}

func waitForRetry(v View, status tarnv1.PavStagePodStatus, now time.Time) Plan {
	at := status.NextAttemptTime.Time
	switch waits := now.Before(at); {
	case untold(status) && !(waits && saidBy(v) == ""):
		return tellFailure(v)
	case waits:
		return Plan{LookAt: at}
	case ours(v):
		return Plan{Actions: discard(v)}
	}
	// A foreign pod has the name of the failed attempt. The next attempt has another name.
	// Without a name in the status, the next reconcile finds no pod in its way.
	status.Name, status.UID = "", ""
	return Plan{Actions: write(v, status)}
}

// untold reports whether the failure of an unstaging pod must still be reported. It is reported
// once, when the node agent has added the pod's own message. An agent that is down adds
// nothing, so removing the pod is the latest moment. Until then the status keeps the UID of the
// pod. By that UID the agent knows which pod's message is awaited.
func untold(status tarnv1.PavStagePodStatus) bool {
	return status.NextAttemptTime != nil && status.UID != ""
}

// tellFailure reports that an unstaging pod has failed. The pod's own message comes before what
// the controller observed.
func tellFailure(v View) Plan {
	status := v.Stage.Status.Pod
	if text := saidBy(v); text != "" && !strings.HasPrefix(status.Message, text+" (") && !strings.HasSuffix(status.Message, ": "+text) {
		status.Message = kube.Cut(text+" ("+status.Message+")", maxMessage)
	}
	status.UID = ""
	// The write triggers the next reconcile.
	return Plan{Actions: append(write(v, status), v.warn(ReasonUnstagingFailed, status.Message)...)}
}

// saidBy returns the failed pod's own message; empty until the node agent has added it.
func saidBy(v View) string {
	if v.Pod != nil && !ours(v) {
		return ""
	}
	return volume.TextOfUnstaging(v.Stage)
}

func followUnstaging(v View, now time.Time) Plan {
	status := v.Stage.Status.Pod
	o := observe(v, now).After(waitedFor(v))
	switch o.State {
	case steppod.PodForeign, steppod.PodFailed:
		return retryUnstaging(v, status.UnstageAttempts, o.Message, now)
	case steppod.PodSucceeded:
		return finish(v, "")
	}
	status.UID, status.Message = v.Pod.UID, kube.Cut(o.Message, maxMessage)
	return Plan{Actions: writeWait(v, status, o), LookAt: o.CheckAt}
}

func retryUnstaging(v View, attempt int32, message string, now time.Time) Plan {
	at := now.Add(kube.Backoff(attempt, firstRetry, lastRetry, string(v.Stage.UID)))
	status := v.Stage.Status.Pod
	status.Phase, status.UnstageAttempts, status.Message = tarnv1.StagePodUnstaging, attempt, kube.Cut(message, maxMessage)
	status.NextAttemptTime = &metav1.Time{Time: at.Round(time.Second)} // the API keeps whole seconds
	status.UID = ""
	if v.Pod == nil {
		status.Name = ""
	}
	if ours(v) {
		status.UID = v.Pod.UID
		return Plan{Actions: write(v, status), LookAt: status.NextAttemptTime.Time} // see untold
	}
	return Plan{
		Actions: append(write(v, status), v.warn(ReasonUnstagingFailed, message)...),
		LookAt:  status.NextAttemptTime.Time,
	}
}

// finish ends unstaging. skipped says why no pod ran; empty if one succeeded or none was
// needed. The success is recorded before its pod is removed.
func finish(v View, skipped string) Plan {
	status := v.Stage.Status.Pod
	status.Phase, status.Message, status.NextAttemptTime = tarnv1.StagePodUnstaged, skipped, nil
	actions := write(v, status)
	if skipped != "" {
		actions = append(actions, v.warn(ReasonUnstagingSkipped, skipped)...)
	}
	return Plan{Actions: append(actions, planRelease(v).Actions...)}
}

// dropAfter is the deadline for the node agent to end a stage for which no pod was sent.
const dropAfter = time.Minute

func dropAt(stage *tarnv1.PavStage) time.Time { return stage.CreationTimestamp.Add(dropAfter) }

// lookDrop is when a Void stage is dropped; zero for other stages.
func lookDrop(stage *tarnv1.PavStage, now time.Time) time.Time {
	if stage == nil || !stage.Void() || !now.Before(dropAt(stage)) {
		return time.Time{}
	}
	return dropAt(stage)
}

// planRelease removes the last pod, then the controller's finalizer. It also removes the node
// agent's finalizer if the node is gone or the stage was dropped, because the agent will not.
func planRelease(v View) Plan {
	if ours(v) {
		return Plan{Actions: discard(v)}
	}
	var actions []action.Action
	if v.Guard != nil && v.Guard.DeletionTimestamp == nil {
		actions = append(actions, action.Delete{Object: v.Guard})
	}
	remove := []string{tarnv1.FinalizerStagePod}
	if v.Node == nil || v.Dropped {
		remove = append(remove, tarnv1.FinalizerStageNode)
	}
	remove = slices.DeleteFunc(remove, func(f string) bool { return !slices.Contains(v.Stage.Finalizers, f) })
	if len(remove) > 0 {
		actions = append(actions, LetGo{Stage: v.Stage, Finalizers: remove})
	}
	return Plan{Actions: actions}
}

// The node agent requests the end of a stage when the last pod that uses it has ended, or when
// staging has failed. Anyone else may delete a stage too: by `kubectl delete pavstage`, or by
// deleting the definition of PavStage. The API server then deletes its objects without
// consulting a policy. A deletion cannot be undone, but the finalizer delays it: no pod loses a
// volume that it uses. See docs/design/0002-staging-recovery.md.

const (
	// heldLook is how often a held stage is reconciled. No event reports the end of a pod that
	// is not Tarn's.
	heldLook = time.Second
	// heldQuiet is how long nothing is reported after the deletion of a stage whose node agent
	// has not said if it is used. The status of a pod may be that late.
	heldQuiet = 2 * time.Second
	// heldNames is how many of the pods that hold a stage are named.
	heldNames = 3
)

// users reports whether a stage that is being deleted is in use, and by which pods. If the node
// is gone, its pods are gone too.
func (r *Reconciler) users(ctx context.Context, v View) (held bool, users []corev1.Pod, err error) {
	node := v.Stage.Status.Node
	if v.Node == nil || !isStaged(v.Stage) || len(node.Targets) == 0 || node.InUse != nil && !*node.InUse {
		return false, nil, nil
	}
	pods, err := r.findConsumers(ctx, v.Stage)
	if err != nil {
		return false, nil, err
	}
	held, users = usedBy(node.InUse, pods)
	return held, users, nil
}

// usedBy reports whether the volume of a deleted stage is in use. The node agent knows best,
// because it sees the mounts, while the status of a pod may be late. Until the agent has told,
// or if its release does not tell, pods with a running container count.
func usedBy(told *bool, pods []corev1.Pod) (held bool, users []corev1.Pod) {
	for i := range pods {
		if !volume.Ended(&pods[i]) && volume.Running(&pods[i]) {
			users = append(users, pods[i])
		}
	}
	if told == nil {
		return len(users) > 0, users
	}
	if len(users) == 0 { // those pods are before their first container, or between two
		users = slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return volume.Ended(&p) })
	}
	return *told, users
}

// planHold leaves everything as it is until the pods have ended, and reports that.
func planHold(v View, now time.Time) Plan {
	plan := Plan{LookAt: now.Add(heldLook)}
	if v.Stage.Status.Node.InUse == nil && now.Before(v.Stage.DeletionTimestamp.Add(heldQuiet)) {
		return plan
	}
	status := v.Stage.Status.Pod
	status.Message = fmt.Sprintf("its deletion was requested while pods use the volume, and they keep it; no other pod on node %s gets it until these have ended: %s",
		v.Stage.Spec.NodeName, nameUsers(v.Users))
	if plan.Actions = write(v, status); len(plan.Actions) > 0 {
		plan.Actions = append(plan.Actions, v.warn(ReasonEndHeld, status.Message)...)
	}
	return plan
}

func nameUsers(users []corev1.Pod) string {
	if len(users) == 0 {
		return "pods that have ended or are deleted in the API, whose containers may still be running"
	}
	var names []string
	for i := range users {
		names = append(names, users[i].Namespace+"/"+users[i].Name)
	}
	slices.Sort(names)
	if more := len(names) - heldNames; more > 0 {
		names = append(names[:heldNames], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}
