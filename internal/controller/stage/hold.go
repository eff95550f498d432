package stage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// The node agent requests the end of a stage when the last pod that uses it has ended, or
// when it could not be staged. Anybody may: by `kubectl delete pavstage`, or with the
// definition of PavStage, whose objects the API server deletes without asking a policy.
// A deletion cannot be taken back, but its finalizer can wait: nothing is taken from a
// pod that has it. See docs/design/0002-staging-recovery.md.

const (
	// heldLook is how often a stage that is held is looked at: no event tells that a pod
	// which is not Tarn's has ended.
	heldLook = time.Second
	// heldQuiet is for how long after its deletion nothing is said of a stage of which the
	// node agent has not told whether it is used. A status of a pod may be late that long.
	heldQuiet = 2 * time.Second
	// heldNames is how many pods are named that hold a stage.
	heldNames = 3
)

// users says whether a stage that is to end is used, and by which pods. With a node that is
// gone, its pods are too.
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

// usedBy says whether a volume is used whose stage is to end. The node agent knows, which
// sees the mounts; what a pod's status says may be late. Until it has told, or where it is
// of a release that does not tell, the pods count in which something runs.
func usedBy(told *bool, pods []corev1.Pod) (held bool, users []corev1.Pod) {
	for i := range pods {
		if runs(&pods[i]) {
			users = append(users, pods[i])
		}
	}
	if told == nil {
		return len(users) > 0, users
	}
	if len(users) == 0 { // they are before their first container, or between two
		users = slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return volume.Ended(&p) })
	}
	return *told, users
}

// runs says whether a container of a pod runs.
func runs(pod *corev1.Pod) bool {
	return !volume.Ended(pod) && slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses),
		func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
}

// planHold leaves everything as it is until the pods have ended, and says so.
func planHold(v View, now time.Time) Plan {
	plan := Plan{LookAt: now.Add(heldLook)}
	if v.Stage.Status.Node.InUse == nil && now.Before(v.Stage.DeletionTimestamp.Add(heldQuiet)) {
		return plan
	}
	status := v.Stage.Status.Pod
	status.Message = fmt.Sprintf("its deletion was requested while pods use the volume, and they keep it; no other pod on node %s gets it until these have ended: %s",
		v.Stage.Spec.NodeName, nameUsers(v.Users))
	if plan.Actions = write(v, status); len(plan.Actions) > 0 {
		plan.Actions = append(plan.Actions, Post{ReasonEndHeld, kube.Cut(status.Message, maxNote)})
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
