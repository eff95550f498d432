package expand

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// View is all that is known about one volume that may have to grow. Objects that do not exist are
// nil.
type View struct {
	// Volume is a CSI volume.
	Volume *corev1.PersistentVolume
	// Claim is the claim that the volume is bound to.
	Claim *corev1.PersistentVolumeClaim
	// Record is the volume's record, nil for a volume that Tarn did not create.
	Record *tarnv1.PavVolume
	// Provisioner is the PavProvisioner with the name of the volume's driver.
	Provisioner *pavv1.PavProvisioner
	// Pods are the record's expansion pods.
	Pods []corev1.Pod
	// Observed is the state of the pod of the current attempt.
	Observed steppod.Observation
	// Current is that pod, nil if it does not exist.
	Current *corev1.Pod
	// Prepared is the evaluated section if an attempt is due. Unfit is why it could not be
	// evaluated, or why the API server rejected its pod.
	Prepared *steppod.Prepared
	Unfit    *steppod.StepError
	// Behind are the volume's own claims that have not reached their part of the new size.
	Behind []backing
}

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=tarn.dev,resources=pavvolumes,verbs=get;list;watch
// +kubebuilder:rbac:groups=tarn.dev,resources=pavvolumes/status,verbs=update
// +kubebuilder:rbac:groups=pav.albertofaria.github.io,resources=pavprovisioners,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// gather reads the View of one volume from the cache. It returns nil if the volume has neither a
// record nor a PavProvisioner.
func (r *reconciler) gather(ctx context.Context, key client.ObjectKey, now time.Time) (*View, error) {
	v := &View{}
	var err error
	if v.Volume, err = kube.Get(ctx, r.client, key, &corev1.PersistentVolume{}); err != nil || v.Volume == nil || v.Volume.Spec.CSI == nil {
		return nil, err
	}
	if v.Record, err = kube.Get(ctx, r.client, key, &tarnv1.PavVolume{}); err != nil {
		return nil, err
	}
	if v.Provisioner, err = kube.Get(ctx, r.client, client.ObjectKey{Name: v.Volume.Spec.CSI.Driver}, &pavv1.PavProvisioner{}); err != nil {
		return nil, err
	}
	if v.Record == nil && v.Provisioner == nil {
		return nil, nil
	}
	if v.Claim, err = r.claimOf(ctx, v.Volume); err != nil {
		return nil, err
	}
	if v.Record == nil {
		return v, nil
	}
	if err := r.gatherPods(ctx, v, now); err != nil {
		return nil, err
	}
	attempt, target := due(v, now)
	if attempt == 0 {
		return v, nil
	}
	if v.Unfit = obstacle(v); v.Unfit != nil {
		return v, nil //nolint:nilerr // what stands in the way is part of the view
	}
	if v.Prepared, err = r.steps.PrepareExpansion(ctx, v.Provisioner, v.Record, v.Claim, target, attempt); err == nil {
		err = r.gatherBehind(ctx, v, target)
	}
	if v.Unfit = steppod.AsStepError(err); err != nil && v.Unfit == nil {
		return nil, err
	}
	return v, nil
}

// claimOf returns the claim that the volume is bound to, if the claim is bound to it too. A scrub
// claim does not count: an expansion that the previous claim requested ends with that claim.
func (r *reconciler) claimOf(ctx context.Context, vol *corev1.PersistentVolume) (*corev1.PersistentVolumeClaim, error) {
	ref := vol.Spec.ClaimRef
	if ref == nil || ref.Name == volume.ScrubClaim(vol) {
		return nil, nil
	}
	claim, err := kube.Get(ctx, r.client, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &corev1.PersistentVolumeClaim{})
	if err != nil || claim == nil || claim.UID != ref.UID || claim.Spec.VolumeName != vol.Name {
		return nil, err
	}
	return claim, nil
}

func (r *reconciler) gatherPods(ctx context.Context, v *View, now time.Time) error {
	pods := &corev1.PodList{}
	labels := client.MatchingLabels{tarnv1.LabelRecord: string(v.Record.UID), tarnv1.LabelStep: string(tarnv1.StepExpansion)}
	if err := r.client.List(ctx, pods, labels); err != nil {
		return fmt.Errorf("listing the expansion pods of PavVolume %s: %w", v.Record.Name, err)
	}
	v.Pods = pods.Items
	var current *corev1.Pod
	name := steppod.PodName(tarnv1.StepExpansion, v.Record.Spec.Claim.UID, journalOf(v).Attempts)
	for i := range v.Pods {
		if v.Pods[i].Name == name {
			current = &v.Pods[i]
		}
	}
	var err error
	v.Current = current
	v.Observed, err = r.steps.Unmounted(ctx, current, steppod.Observe(current, v.Record.UID, now), now)
	return err
}
