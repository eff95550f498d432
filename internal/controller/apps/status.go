package apps

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	appplan "tarn.dev/tarn/internal/app/plan"
	"tarn.dev/tarn/internal/kube"
)

// verdict is the content of one condition.
type verdict struct {
	holds           bool
	reason, message string
}

func yes(reason, format string, args ...any) verdict {
	return verdict{true, reason, fmt.Sprintf(format, args...)}
}

func no(reason, format string, args ...any) verdict {
	return verdict{false, reason, fmt.Sprintf(format, args...)}
}

// report writes the status if it has changed, and emits an Event about a rejection.
func report(v *View, now time.Time) []action.Action {
	if v.App == nil || v.App.DeletionTimestamp != nil && !held(v.App) {
		return nil
	}
	status := statusOf(v, now)
	if equality.Semantic.DeepEqual(status, v.App.Status) {
		return nil
	}
	to := v.App.DeepCopy()
	to.Status = status
	actions := []action.Action{action.PatchStatus{From: v.App, To: to}}
	was := meta.FindStatusCondition(v.App.Status.Conditions, tarnv1.ConditionDeployed)
	is := meta.FindStatusCondition(status.Conditions, tarnv1.ConditionDeployed)
	if is.Reason == tarnv1.ReasonRefused && (was == nil || was.Message != is.Message) {
		actions = append(actions, v.warn(tarnv1.ReasonRefused, is.Message))
	}
	return actions
}

// statusOf computes the App's status from the view.
func statusOf(v *View, now time.Time) tarnv1.AppStatus {
	app := v.App
	status := tarnv1.AppStatus{
		ObservedGeneration: app.Generation, Conditions: slices.Clone(app.Status.Conditions),
		Selector: labels.SelectorFromSet(labelsOf(app)).String(), Warnings: warnings(v),
	}
	if ours(app, v.Deployment) {
		status.Replicas, status.ReadyReplicas = v.Deployment.Status.Replicas, v.Deployment.Status.ReadyReplicas
	}
	for i := range app.Spec.Volumes {
		status.Volumes = append(status.Volumes, mountedStatus(v, &app.Spec.Volumes[i]))
	}
	for _, claim := range v.detached() {
		status.Detached = append(status.Detached, claimStatus(claim))
	}
	deployed := deployedOf(v)
	set := func(kind string, is verdict) {
		condition := metav1.Condition{
			Type: kind, Status: metav1.ConditionFalse, Reason: is.reason, Message: kube.Message(is.message),
			ObservedGeneration: app.Generation, LastTransitionTime: metav1.NewTime(now),
		}
		if is.holds {
			condition.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	set(tarnv1.ConditionDeployed, deployed)
	set(tarnv1.ConditionReady, readyOf(v, deployed, status.Volumes))
	return status
}

// deployedOf reports whether the spec is applied and nothing is left to do.
func deployedOf(v *View) verdict {
	if v.App.DeletionTimestamp != nil {
		return no(tarnv1.ReasonDeleting, "%s", endMessage(v))
	}
	if v.App.Spec.Image == "" {
		return no(tarnv1.ReasonNothingDeployed, "nothing is deployed yet: spec.image is empty")
	}
	if why := refusal(v); why != "" {
		return no(tarnv1.ReasonRefused, "%s", why)
	}
	for i := range v.App.Spec.Volumes {
		if claim := v.claim(v.App.Spec.Volumes[i].Name); claim != nil && claim.DeletionTimestamp != nil {
			return no(tarnv1.ReasonDeploying, "claim %s is being deleted, and is created again, empty, once no pod uses it; to end its pods now, scale the App to 0", claim.Name)
		}
	}
	if len(plan(v)) > 0 {
		return no(tarnv1.ReasonDeploying, "the spec is being applied")
	}
	return yes(tarnv1.ReasonDeployed, "the spec is applied")
}

// readyOf reports whether the App works as intended.
func readyOf(v *View, deployed verdict, volumes []tarnv1.AppVolumeStatus) verdict {
	if !deployed.holds {
		return deployed
	}
	wanted := replicas(v.App)
	for _, volume := range volumes {
		// A class may wait for the first pod. Without a pod there is nothing to wait for.
		if volume.Phase != tarnv1.AppVolumeBound && wanted > 0 {
			return no(tarnv1.ReasonWaitingForVolumes, "volume %s is %s: %s", volume.Name, volume.Phase, volume.Message)
		}
	}
	waits := podsMissing(v.Deployment, wanted)
	if why := v.failure(); why != "" && waits != "" {
		return no(tarnv1.ReasonPodsFailing, "%s", why)
	}
	if waits != "" {
		return no(tarnv1.ReasonWaitingForPods, "%s", waits)
	}
	for _, volume := range volumes {
		if volume.Resize == tarnv1.AppResizeWaiting && wanted == 0 {
			continue // its file system grows with the first pod; without a pod there is nothing to wait for
		}
		switch volume.Resize {
		case tarnv1.AppResizeFailed:
			return no(tarnv1.ReasonResizeFailed, "volume %s could not be expanded, which is retried: %s", volume.Name, volume.Message)
		case tarnv1.AppResizing, tarnv1.AppResizeWaiting:
			return no(tarnv1.ReasonResizing, "volume %s grows to %s: %s", volume.Name, volume.Requested, volume.Message)
		}
	}
	return yes(tarnv1.ReasonReady, "%d of %d pods are ready", wanted, wanted)
}

// podsMissing says what the pods lack; empty if nothing.
func podsMissing(d *appsv1.Deployment, wanted int32) string {
	s := d.Status
	if s.ObservedGeneration == d.Generation && s.UpdatedReplicas == wanted && s.AvailableReplicas == wanted && s.Replicas == wanted {
		return ""
	}
	message := fmt.Sprintf("%d of %d pods are ready", min(s.AvailableReplicas, s.UpdatedReplicas), wanted)
	if s.ObservedGeneration != d.Generation { // the numbers are those of the spec before
		message += ", and Kubernetes has not yet acted on the last change of Deployment " + d.Name
	}
	if fresh := s.ReadyReplicas - s.AvailableReplicas; fresh > 0 {
		message += fmt.Sprintf(", %d for less than %d seconds", fresh, settleSeconds)
	}
	if old := s.Replicas - s.UpdatedReplicas; old > 0 {
		message += fmt.Sprintf(", %d of an earlier deploy remain", old)
	}
	for _, c := range d.Status.Conditions {
		stuck := c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse ||
			c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue
		if stuck {
			message += ": " + c.Message
		}
	}
	return message
}

// warnings are what is valid but perhaps not intended.
func warnings(v *View) []string {
	var all []string
	recreate := false
	for i := range v.App.Spec.Volumes {
		volume := &v.App.Spec.Volumes[i]
		if mode := v.mode(volume); appplan.Single(mode) && !recreate {
			recreate = true
			all = append(all, fmt.Sprintf("volume '%s' is %s, so the running pod is stopped before a new one starts (strategy Recreate)", volume.Name, mode))
		}
		claim := v.claim(volume.Name)
		if claim == nil {
			continue
		}
		if _, is := claim.Annotations[annRemade]; is {
			all = append(all, fmt.Sprintf("volume '%s' was created again, empty, at %s, because its claim was deleted by hand; remove annotation %s of claim %s to clear this message",
				volume.Name, claim.CreationTimestamp.UTC().Format(time.RFC3339), annRemade, claim.Name))
		}
		if size := inGi(requested(claim)); size > volume.SizeGi {
			all = append(all, fmt.Sprintf("volume '%s' keeps its %d GiB: the spec asks for %d, and volumes never shrink", volume.Name, size, volume.SizeGi))
		}
		if mode := v.mode(volume); mode != volume.AccessMode {
			all = append(all, fmt.Sprintf("volume '%s' stays %s: a claim's access mode cannot be changed; for %s give the volume another name", volume.Name, mode, volume.AccessMode))
		}
		if class := appplan.ClassOf(claim); volume.StorageClass != "" && class != volume.StorageClass {
			all = append(all, fmt.Sprintf("volume '%s' stays in storage class '%s': a claim's class cannot be changed; for '%s' give the volume another name", volume.Name, class, volume.StorageClass))
		}
	}
	return all
}

// failures are the conditions of a claim that could not grow.
var failures = []corev1.PersistentVolumeClaimConditionType{
	corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError,
}

// mountedStatus is the status of a volume that the spec names.
func mountedStatus(v *View, volume *tarnv1.AppVolume) tarnv1.AppVolumeStatus {
	claim := v.claim(volume.Name)
	if claim == nil {
		status := tarnv1.AppVolumeStatus{
			Name: volume.Name, ClaimName: newClaim(v, volume).Name, Phase: tarnv1.AppVolumeMissing, PreserveOnDelete: volume.PreserveOnDelete,
			Message: "its claim is not created yet",
		}
		if v.Claims[status.ClaimName] != nil {
			status.Phase, status.Message = tarnv1.AppVolumeForeign, "a claim of this name exists and does not belong to the App, so it is not touched"
		}
		return status
	}
	status := claimStatus(claim)
	status.PreserveOnDelete = volume.PreserveOnDelete
	if status.Resize == "" && status.Phase == tarnv1.AppVolumeBound && tooSmall(claim, volume) {
		status.Resize, status.Message = tarnv1.AppResizing, "its claim does not ask for that yet"
	}
	return status
}

// claimStatus is the status that follows from a claim of the App.
func claimStatus(claim *corev1.PersistentVolumeClaim) tarnv1.AppVolumeStatus {
	size := claim.Spec.Resources.Requests.Storage().DeepCopy()
	status := tarnv1.AppVolumeStatus{
		Name: claim.Labels[tarnv1.LabelAppVolume], ClaimName: claim.Name, Requested: &size,
		AccessMode: appplan.ModeOf(claim), StorageClass: appplan.ClassOf(claim), PreserveOnDelete: preserved(claim),
	}
	if has, ok := claim.Status.Capacity[corev1.ResourceStorage]; ok {
		status.Capacity = &has
	}
	switch {
	case claim.DeletionTimestamp != nil:
		status.Phase, status.Message = tarnv1.AppVolumeTerminating, "its claim is being deleted"
	case claim.Status.Phase == corev1.ClaimBound:
		status.Phase = tarnv1.AppVolumeBound
		status.Resize, status.Message = resizeOf(claim)
	case claim.Status.Phase == corev1.ClaimLost:
		status.Phase, status.Message = tarnv1.AppVolumeLost, "the storage of its claim is gone"
	default:
		status.Phase, status.Message = tarnv1.AppVolumePending, "its claim waits for storage"
	}
	return status
}

// resizeOf returns how far the growth of a bound claim is, and the message about it.
func resizeOf(claim *corev1.PersistentVolumeClaim) (tarnv1.AppResize, string) {
	said := map[corev1.PersistentVolumeClaimConditionType]string{}
	for _, c := range claim.Status.Conditions {
		if c.Status == corev1.ConditionTrue {
			said[c.Type] = c.Message
		}
	}
	for _, failure := range failures {
		if message, ok := said[failure]; ok {
			return tarnv1.AppResizeFailed, kube.Message(message)
		}
	}
	state := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	message, waits := said[corev1.PersistentVolumeClaimFileSystemResizePending]
	switch {
	case strings.HasSuffix(string(state), "ResizeInfeasible"):
		return tarnv1.AppResizeFailed, "it could not be expanded"
	case waits, state == corev1.PersistentVolumeClaimNodeResizePending:
		if message == "" {
			message = "its file system grows next, on each node that uses it or on the first node that runs a pod with it"
		}
		return tarnv1.AppResizeWaiting, message
	case state != "", requested(claim) > capacityOf(claim):
		return tarnv1.AppResizing, "its storage is being expanded"
	}
	return "", ""
}
