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
		if runs(&pods[i]) {
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

// runs reports whether a container of a pod runs.
func runs(pod *corev1.Pod) bool {
	return !volume.Ended(pod) && slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses),
		func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
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
