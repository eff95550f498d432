package stage

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// A volume made for a claim was validated before it was made. A volume written by hand is
// validated when it is staged. First its fields are checked, then a validation pod runs if the
// section has one. Staging begins only after that pod has succeeded.

// validated reports whether the validation pod has succeeded.
func validated(v View, now time.Time) bool {
	return situationOf(v.Stage) == validate && v.Pod != nil && steppod.Observe(v.Pod, v.Stage.UID, now).State == steppod.PodSucceeded
}

// startValidation writes the intent, as startStaging does, then creates the pod. The status
// still shows that no staging pod was sent, so nothing has to be unstaged. The pod's UID is not
// written, because the node agent would take the pod for the staging pod.
func startValidation(v View) Plan {
	pod := v.Validation.Pod
	return Plan{Actions: []Action{
		WriteStatus{tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodValidating, Namespace: pod.Namespace, Name: pod.Name, ClaimDeleted: v.Stage.Status.Pod.ClaimDeleted}},
		StartPod{pod},
	}}
}

// planValidate follows the validation pod, and starts the staging pod once that has succeeded.
// A pod that vanished is replaced, as the provisioner now describes it.
func planValidate(v View, now time.Time) Plan {
	switch {
	case v.Refused != nil:
		return failStaging(v, v.Refused.Message)
	case v.Pod == nil:
		return planBegin(v, now)
	}
	status := v.Stage.Status.Pod
	o := observe(v, now).After(status.Message) // the message is about this pod alone
	switch o.State {
	case steppod.PodForeign:
		return failStaging(v, o.Message)
	case steppod.PodFailed:
		return failStaging(v, "Validation pod failed: "+o.Message)
	case steppod.PodSucceeded:
		p := planBegin(v, now)
		if v.Prepared != nil {
			p.Actions = append(p.Actions, discard(v)...)
		}
		return p
	}
	status.Message = kube.Cut(o.Message, maxMessage)
	return Plan{Actions: writeWait(v, status, o), LookAt: o.CheckAt}
}

// giveWay ends a stage that has staged nothing, because a stage of another volume has the same
// handle.
func giveWay(v View, message string) Plan {
	v.Stage = v.Stage.DeepCopy()
	v.Stage.Status.Pod.Staged = false
	p := failStaging(v, message)
	if ours(v) { // the validation pod
		p.Actions = append(p.Actions, discard(v)...)
	}
	return p
}

// leftover returns the validation pod that a crash has left beside the staging pod.
func (r *Reconciler) leftover(ctx context.Context, stage *tarnv1.PavStage) (*corev1.Pod, error) {
	pods := &corev1.PodList{}
	labels := client.MatchingLabels{tarnv1.LabelStage: string(stage.UID), tarnv1.LabelStep: string(tarnv1.StepValidation)}
	if err := r.client.List(ctx, pods, labels); err != nil {
		return nil, fmt.Errorf("listing the validation pods of PavStage %s: %w", stage.Name, err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; steppod.OwnedBy(pod, stage.UID) && client.ObjectKeyFromObject(pod) != podKey(stage) {
			return pod, nil
		}
	}
	return nil, nil
}
