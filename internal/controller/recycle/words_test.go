package recycle

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// words says what a plan does.
func words(v *View, p Plan) string {
	var said []string
	if p.Grave {
		said = append(said, "look")
	}
	for _, a := range p.Actions {
		switch a := a.(type) {
		case Order:
			said = append(said, "order")
		case Dismiss:
			said = append(said, "dismiss")
		case Nudge:
			said = append(said, "nudge")
		case Remember:
			said = append(said, "remember")
		case StartPod:
			said = append(said, "start")
		case StopPod:
			said = append(said, "stop")
		case RunStep:
			said = append(said, strings.TrimSpace("run "+string(a.Step)+" "+a.Handle))
		case Report:
			said = append(said, "report")
		case Unfail:
			said = append(said, "phase "+string(a.Phase))
		case Fail:
			said = append(said, "fail")
		case Post:
			said = append(said, a.Reason)
		case Change:
			said = append(said, changeWords(v.Volume, a.To))
		}
	}
	if !p.Next.IsZero() {
		said = append(said, "wait")
	}
	return strings.Join(said, " ")
}

func changeWords(from, to *corev1.PersistentVolume) string {
	switch {
	case to.Spec.ClaimRef == nil && from.Spec.ClaimRef != nil:
		return "free"
	case to.Spec.ClaimRef != nil && to.Spec.ClaimRef.UID == "":
		return "free for " + to.Spec.ClaimRef.Namespace + "/" + to.Spec.ClaimRef.Name
	case to.Annotations[tarnv1.AnnotationRecycleFor] != "" && from.Annotations[tarnv1.AnnotationRecycleFor] == "":
		return "give, reserved for " + to.Annotations[tarnv1.AnnotationRecycleFor]
	case to.Spec.ClaimRef != nil && to.Spec.ClaimRef.UID != from.Spec.ClaimRef.UID:
		return "give"
	case to.Spec.PersistentVolumeReclaimPolicy != from.Spec.PersistentVolumeReclaimPolicy:
		return "policy " + string(to.Spec.PersistentVolumeReclaimPolicy)
	case wasFreed(from) && !wasFreed(to):
		return "had"
	case to.Annotations[tarnv1.AnnotationRecycled] != from.Annotations[tarnv1.AnnotationRecycled]:
		return "certify"
	case to.Annotations[tarnv1.AnnotationRecycleFailure] != from.Annotations[tarnv1.AnnotationRecycleFailure]:
		return "note"
	}
	return "other"
}
