package provision

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// View is all that is known about one volume to create: the claim, and what exists for it so far.
// Objects that do not exist are nil.
type View struct {
	// VolumeName is the name of the record and of the PersistentVolume.
	VolumeName string
	// Claim is the claim whose UID is in the volume's name.
	Claim       *corev1.PersistentVolumeClaim
	Class       *storagev1.StorageClass
	Provisioner *pavv1.PavProvisioner
	// DriverKnown says that a CSIDriver with the name of the claim's provisioner exists. The claim
	// may then be for that driver.
	DriverKnown bool
	Record      *tarnv1.PavVolume
	Volume      *corev1.PersistentVolume
	// Pod is the pod of the record's current step and attempt; Observed is its state.
	Pod      *corev1.Pod
	Observed steppod.Observation
}

// gather reads the View of one volume from the cache.
func (r *reconciler) gather(ctx context.Context, key client.ObjectKey) (*View, error) {
	v := &View{VolumeName: key.Name}
	uid, ok := claimUID(key.Name)
	if !ok {
		return v, nil
	}
	var err error
	if v.Record, err = kube.Get(ctx, r.client, client.ObjectKey{Name: key.Name}, &tarnv1.PavVolume{}); err != nil {
		return nil, err
	}
	if v.Claim, err = kube.ClaimByUID(ctx, r.client, indexClaimUID, uid); err != nil {
		return nil, err
	}
	if v.Record == nil && (v.Claim == nil || v.Claim.Spec.VolumeName != "" || !mayBeOurs(provisionerName(v.Claim))) {
		return v, nil // no volume for it: the usual case, as each claim of another provisioner is reconciled several times
	}
	if v.Volume, err = kube.Get(ctx, r.client, client.ObjectKey{Name: key.Name}, &corev1.PersistentVolume{}); err != nil {
		return nil, err
	}
	if err := r.gatherProvisioner(ctx, v); err != nil {
		return nil, err
	}
	if v.Record != nil {
		if err := r.gatherPod(ctx, v); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (r *reconciler) gatherProvisioner(ctx context.Context, v *View) error {
	name := ""
	switch {
	case v.Record != nil:
		name = v.Record.Spec.Provisioner.Name
	case v.Claim != nil:
		name = provisionerName(v.Claim)
	}
	if name == "" {
		return nil
	}
	var err error
	if v.Provisioner, err = kube.Get(ctx, r.client, client.ObjectKey{Name: name}, &pavv1.PavProvisioner{}); err != nil {
		return err
	}
	if v.Claim == nil || v.Record != nil && stepOf(v.Record) != "" {
		return nil
	}
	if v.Record == nil && v.Provisioner == nil {
		driver, err := kube.Get(ctx, r.client, client.ObjectKey{Name: name}, &storagev1.CSIDriver{})
		v.DriverKnown = driver != nil
		if err != nil {
			return err
		}
	}
	if class := className(v.Claim); class != "" {
		v.Class, err = kube.Get(ctx, r.client, client.ObjectKey{Name: class}, &storagev1.StorageClass{})
	}
	return err
}

// gatherPod reads the pod of the record's step and attempt, in the namespace that the record names.
// A pod of that name in another namespace is not Tarn's.
func (r *reconciler) gatherPod(ctx context.Context, v *View) error {
	step := stepOf(v.Record)
	if step == "" {
		return nil
	}
	key := client.ObjectKey{
		Namespace: v.Record.Status.PodNamespace,
		Name:      steppod.PodName(step, v.Record.Spec.Claim.UID, v.Record.Status.Attempts),
	}
	if key.Namespace != "" {
		pod, err := kube.Get(ctx, r.client, key, &corev1.Pod{})
		if err != nil {
			return err
		}
		v.Pod = pod
	}
	var err error
	now := r.clock.Now()
	v.Observed, err = r.steps.Unmounted(ctx, v.Pod, steppod.Observe(v.Pod, v.Record.UID, now), now)
	return err
}
