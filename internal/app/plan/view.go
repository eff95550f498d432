package plan

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appspec "tarn.dev/tarn/internal/app/spec"
)

// View returns an application for an answer.
func View(w World) App {
	spec := &w.App.Spec
	view := App{
		ID: w.App.Name, Namespace: w.App.Namespace, CreatedAt: w.App.CreationTimestamp.UTC(),
		Image: spec.Image, Command: spec.Command, Args: spec.Args, Port: spec.Port, Env: spec.Env, Secrets: retyped[string](spec.Secrets),
		Replicas: replicas(spec), ReadyReplicas: w.App.Status.ReadyReplicas,
		Detached: []Volume{}, Warnings: []string{},
	}
	if observed(w.App) {
		view.Warnings = append(view.Warnings, w.App.Status.Warnings...)
	}
	view.Volumes = Volumes(w)
	for _, claim := range w.unmounted() {
		view.Detached = append(view.Detached, w.detached(claim))
	}
	view.Status, view.Message = state(w.App)
	if view.Status == Ready || view.Status == Waiting {
		if i := slices.IndexFunc(view.Volumes, func(v Volume) bool { return w.growing(v, view.Replicas) }); i >= 0 {
			view.Status, view.Message = Resizing, fmt.Sprintf("volume '%s' is growing to %d GiB", view.Volumes[i].Name, view.Volumes[i].SizeGi)
		}
	}
	switch view.Status {
	case NotDeployed, Refused, Failing, Ready:
		view.Settled = true
	}
	return view
}

// Volumes returns the volumes that an application mounts, in the order of its file.
func Volumes(w World) []Volume {
	volumes := []Volume{}
	for i := range w.App.Spec.Volumes {
		volumes = append(volumes, w.mounted(&w.App.Spec.Volumes[i]))
	}
	return volumes
}

// replicas is how many pods a spec asks for.
func replicas(spec *tarnv1.AppSpec) int32 {
	if spec.Replicas == nil {
		return 1
	}
	return *spec.Replicas
}

// observed says whether the status is about the current spec.
func observed(app *tarnv1.App) bool { return app.Status.ObservedGeneration == app.Generation }

// refused says whether the controller rejected the current spec.
func (w World) refused() bool {
	deployed := meta.FindStatusCondition(w.App.Status.Conditions, tarnv1.ConditionDeployed)
	return observed(w.App) && deployed != nil && deployed.Status == metav1.ConditionFalse && deployed.Reason == tarnv1.ReasonRefused
}

// state returns the state of an application and a message, as reported by its controller.
func state(app *tarnv1.App) (Status, string) {
	deployed := meta.FindStatusCondition(app.Status.Conditions, tarnv1.ConditionDeployed)
	ready := meta.FindStatusCondition(app.Status.Conditions, tarnv1.ConditionReady)
	switch {
	case !app.DeletionTimestamp.IsZero():
		return Deleting, said(ready, "it is being deleted")
	case app.Spec.Image == "":
		return NotDeployed, "nothing is deployed yet"
	case !observed(app) || deployed == nil || ready == nil:
		return Deploying, "the controller has not seen it yet"
	case deployed.Status != metav1.ConditionTrue && deployed.Reason == tarnv1.ReasonRefused:
		return Refused, deployed.Message
	case deployed.Status != metav1.ConditionTrue:
		return Deploying, deployed.Message
	case ready.Status == metav1.ConditionTrue:
		return Ready, ""
	case ready.Reason == tarnv1.ReasonResizing || ready.Reason == tarnv1.ReasonResizeFailed:
		return Resizing, ready.Message
	}
	if ready.Reason == tarnv1.ReasonPodsFailing {
		return Failing, ready.Message
	}
	return Waiting, ready.Message
}

func said(condition *metav1.Condition, otherwise string) string {
	if condition == nil || condition.Reason != tarnv1.ReasonDeleting {
		return otherwise
	}
	return condition.Message
}

// mounted returns a volume of the spec.
func (w World) mounted(v *tarnv1.AppVolume) Volume {
	view := Volume{
		Name: v.Name, ClaimName: appspec.ClaimName(w.App.Name, v.Name), SizeGi: v.SizeGi, Status: VolumeMissing,
		AccessMode: string(cmp.Or(v.AccessMode, corev1.ReadWriteOnce)), StorageClass: w.ClassName(*v),
		PreserveOnDelete: v.PreserveOnDelete, MountPath: v.MountPath,
	}
	claim, ours := w.claim(v.Name)
	switch {
	case claim == nil:
		view.Message = "its claim is not created yet"
	case !ours:
		view.Status, view.Message = VolumeForeign, "a claim of this name exists and does not belong to the application, so it is not touched"
	default:
		view.live(claim)
		view.growth(claim, v.SizeGi)
	}
	return view
}

// detached returns a volume that is not mounted.
func (w World) detached(claim *corev1.PersistentVolumeClaim) Volume {
	view := Volume{Name: claim.Labels[tarnv1.LabelAppVolume], ClaimName: claim.Name, PreserveOnDelete: w.outlives(claim)}
	view.live(claim)
	return view
}

// outlives says whether an unmounted claim stays when the application is deleted. It stays if it is
// marked to be preserved, or if no deploy of this application has mounted it. The latter shows in
// the claim's annotation and the status.
func (w World) outlives(claim *corev1.PersistentVolumeClaim) bool {
	listed := func(v tarnv1.AppVolumeStatus) bool { return v.ClaimName == claim.Name }
	status := &w.App.Status
	deployed := claim.Annotations[tarnv1.AnnotationMadeFor] == string(w.App.UID) ||
		slices.ContainsFunc(status.Volumes, listed) || slices.ContainsFunc(status.Detached, listed)
	return preserved(claim) || !deployed
}

func preserved(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Annotations[tarnv1.AnnotationPreserve] == "true"
}

// live fills in what the claim says.
func (v *Volume) live(claim *corev1.PersistentVolumeClaim) {
	v.SizeGi, v.CapacityBytes = inGi(requested(claim)), capacity(claim)
	v.AccessMode, v.StorageClass = string(ModeOf(claim)), ClassOf(claim)
	switch {
	case !claim.DeletionTimestamp.IsZero():
		v.Status, v.Message = VolumeTerminating, "it is being deleted"
	case claim.Status.Phase == corev1.ClaimBound:
		v.Status = VolumeBound
	case claim.Status.Phase == corev1.ClaimLost:
		v.Status, v.Message = VolumeLost, "its storage is gone"
	default:
		v.Status, v.Message = VolumePending, "it waits for storage"
	}
}

// growth fills in how far the expansion of a bound volume is.
func (v *Volume) growth(claim *corev1.PersistentVolumeClaim, wantedGi int64) {
	if v.Status != VolumeBound {
		return
	}
	v.SizeGi = max(v.SizeGi, wantedGi)
	target := max(requested(claim), wantedGi*gi)
	switch status := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]; {
	case status == corev1.PersistentVolumeClaimControllerResizeInfeasible || status == corev1.PersistentVolumeClaimNodeResizeInfeasible:
		v.Status, v.Message = VolumeResizeFailed, "it could not be expanded; that is tried again"
	case capacity(claim) < target || status != "":
		v.Status = VolumeResizing
	}
	for _, condition := range claim.Status.Conditions {
		if v.Status != VolumeBound && condition.Status == corev1.ConditionTrue && condition.Message != "" {
			v.Message = condition.Message
		}
	}
}

// growing says whether a caller should wait for a volume's expansion. If the application has no
// pods, it need not wait for a file system that only grows with the next pod.
func (w World) growing(v Volume, pods int32) bool {
	if v.Status != VolumeResizing && v.Status != VolumeResizeFailed {
		return false
	}
	claim, _ := w.claim(v.Name)
	return pods > 0 || claim == nil || !awaitsPod(claim)
}

// awaitsPod says whether a claim's storage has grown, but its file system grows only when a pod
// that uses it is started.
func awaitsPod(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == corev1.PersistentVolumeClaimNodeResizePending ||
		slices.ContainsFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
			return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending && c.Status == corev1.ConditionTrue
		})
}

// unmounted returns the application's claims that the spec does not name, sorted by name.
func (w World) unmounted() []*corev1.PersistentVolumeClaim {
	var claims []*corev1.PersistentVolumeClaim
	for _, claim := range w.Claims {
		name := claim.Labels[tarnv1.LabelAppVolume]
		if named, ours := w.claim(name); ours && named == claim && w.wanted(name) == nil {
			claims = append(claims, claim)
		}
	}
	slices.SortFunc(claims, func(a, b *corev1.PersistentVolumeClaim) int { return cmp.Compare(a.Name, b.Name) })
	return claims
}
