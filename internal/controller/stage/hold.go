package stage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// The node agent requests the end of a stage when the last pod that uses it has ended, or
// when it could not be staged. Anybody may: by `kubectl delete pavstage`, or with the
// definition of PavStage, whose objects the API server deletes without asking a policy.
// A deletion cannot be taken back, but its finalizer can wait: nothing is taken from a
// pod that runs. See docs/design/0002-staging-recovery.md.

const (
	// heldLook is how often a stage that is held is looked at: no event tells that a pod
	// which is not Tarn's has ended.
	heldLook = time.Second
	// heldNames is how many pods are named that hold a stage.
	heldNames = 3
)

// users gives the pods that run on a volume whose stage is to end. With a node that is
// gone, its pods are too.
func (r *Reconciler) users(ctx context.Context, v View) ([]corev1.Pod, error) {
	if v.Node == nil || !isStaged(v.Stage) || len(v.Stage.Status.Node.Targets) == 0 {
		return nil, nil
	}
	pods, err := r.findConsumers(ctx, v.Stage)
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !holds(&p, v.Stage) }), err
}

// holds says whether a pod runs and was not asked to end before the stage was. Of one that
// was, the kubelet has given the volume back, whatever its status still says.
func holds(pod *corev1.Pod, stage *tarnv1.PavStage) bool {
	if volume.Ended(pod) || !running(pod) {
		return false
	}
	if pod.DeletionTimestamp == nil {
		return true
	}
	asked := pod.DeletionTimestamp.Time
	if grace := pod.DeletionGracePeriodSeconds; grace != nil {
		asked = asked.Add(-time.Duration(*grace) * time.Second)
	}
	return stage.DeletionTimestamp.Time.Before(asked)
}

// running says whether a container of a pod runs.
func running(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses),
		func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
}

// planHold leaves everything as it is until the pods have ended, and says so.
func planHold(v View, now time.Time) Plan {
	var names []string
	for i := range v.Users {
		names = append(names, v.Users[i].Namespace+"/"+v.Users[i].Name)
	}
	slices.Sort(names)
	if more := len(names) - heldNames; more > 0 {
		names = append(names[:heldNames], fmt.Sprintf("%d more", more))
	}
	status := v.Stage.Status.Pod
	status.Message = fmt.Sprintf("its deletion was requested while pods run on the volume, which is not taken from them; on node %s no other pod gets it until these have ended: %s",
		v.Stage.Spec.NodeName, strings.Join(names, ", "))
	actions := write(v, status)
	if len(actions) > 0 {
		actions = append(actions, Post{ReasonEndHeld, kube.Cut(status.Message, maxNote)})
	}
	return Plan{Actions: actions, LookAt: now.Add(heldLook)}
}
