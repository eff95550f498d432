package pavvolume

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// View is all that is known about one volume. Objects that do not exist are nil.
type View struct {
	// Name is the name of the record and of the PersistentVolume.
	Name string
	// Claim is the claim whose UID is in that name, for which the volume is created.
	Claim *corev1.PersistentVolumeClaim
	// Class is the claim's class, read while no pod has to run, and while the
	// creation pod does.
	Class       *storagev1.StorageClass
	Provisioner *pavv1.PavProvisioner
	// Source is what the volume is to be copied from, read while no pod has to run; nil for none.
	Source *source
	// DriverKnown says that a CSIDriver with the name of the claim's provisioner exists. The claim
	// may then be for that driver.
	DriverKnown bool
	Record      *tarnv1.PavVolume
	Volume      *corev1.PersistentVolume
	// Pods are the record's pods. Pod is that of its current step and attempt; Observed is its
	// state.
	Pods     []corev1.Pod
	Pod      *corev1.Pod
	Observed steppod.Observation
	// Claims are the claims that were made for the volume.
	Claims []*corev1.PersistentVolumeClaim

	// Namespace is Tarn's own namespace. The volumes of its claims hold no user data.
	Namespace string
	// OwnBinder says that Tarn's binder replaces Kubernetes'.
	OwnBinder bool
	// Retention is what objects of the cluster say about how long to keep the released volume.
	Retention volume.Retention
	// Stages are the stages of a volume that is being destroyed, on any node.
	Stages []tarnv1.PavStage
}

// gather reads the View of one volume from the cache.
func (r *reconciler) gather(ctx context.Context, key client.ObjectKey) (*View, error) {
	v := &View{Name: key.Name, Namespace: r.namespace, OwnBinder: r.ownBinder}
	var err error
	if v.Record, err = kube.Get(ctx, r.client, key, &tarnv1.PavVolume{}); err != nil {
		return nil, err
	}
	if uid, ok := claimUID(key.Name); ok {
		if v.Claim, err = kube.ClaimByUID(ctx, r.client, indexClaimUID, uid); err != nil {
			return nil, err
		}
	}
	if v.Volume, err = kube.Get(ctx, r.client, key, &corev1.PersistentVolume{}); err != nil {
		return nil, err
	}
	switch {
	case v.Record != nil:
		return v, r.gatherRecord(ctx, v)
	case v.Volume != nil:
		return v, r.gatherStranger(ctx, v)
	case v.Claim != nil && v.Claim.Spec.VolumeName == "" && asksProvisioner(v.Claim):
		return v, r.gatherClaim(ctx, v)
	}
	return v, nil // no volume for it: the usual case, as each claim of another provisioner is reconciled several times
}

// gatherClaim reads what decides whether a claim without a record gets one.
func (r *reconciler) gatherClaim(ctx context.Context, v *View) (err error) {
	key := client.ObjectKey{Name: provisionerName(v.Claim)}
	if v.Provisioner, err = kube.Get(ctx, r.client, key, &pavv1.PavProvisioner{}); err != nil {
		return err
	}
	if v.Provisioner == nil {
		driver, err := kube.Get(ctx, r.client, key, &storagev1.CSIDriver{})
		if v.DriverKnown = driver != nil; err != nil {
			return err
		}
	}
	if v.Source, err = r.gatherSource(ctx, r.client, v.Claim, v.Provisioner); err != nil {
		return err
	}
	return r.gatherClass(ctx, v)
}

func (r *reconciler) gatherClass(ctx context.Context, v *View) (err error) {
	if class := volume.ClassOf(v.Claim); class != "" {
		v.Class, err = kube.Get(ctx, r.client, client.ObjectKey{Name: class}, &storagev1.StorageClass{})
	}
	return err
}

// gatherRecord reads what belongs to a record.
func (r *reconciler) gatherRecord(ctx context.Context, v *View) (err error) {
	if v.Provisioner, err = kube.Get(ctx, r.client, client.ObjectKey{Name: v.Record.Spec.Provisioner.Name}, &pavv1.PavProvisioner{}); err != nil {
		return err
	}
	if v.Claim != nil && (stepOf(v.Record) == "" || v.Record.Status.Phase == tarnv1.VolumeCreating) {
		if err := r.gatherClass(ctx, v); err != nil {
			return err
		}
	}
	if v.Claim != nil && v.Record.Spec.Source != nil && stepOf(v.Record) == "" {
		if v.Source, err = r.gatherSource(ctx, r.client, v.Claim, v.Provisioner); err != nil {
			return err
		}
	}
	if v.Volume != nil && released(v.Volume) {
		if v.Retention, err = r.retention(ctx, r.client, v); err != nil {
			return err
		}
	}
	if destroying(v.Record) || steppod.Forgotten(v.Record) {
		stages := &tarnv1.PavStageList{}
		if err := r.client.List(ctx, stages, client.MatchingFields{indexStageVolume: v.Name}); err != nil {
			return fmt.Errorf("listing the stages of volume %s: %w", v.Name, err)
		}
		v.Stages = slices.DeleteFunc(stages.Items, func(s tarnv1.PavStage) bool { return s.Void() })
	}
	if err := r.gatherClaims(ctx, v); err != nil {
		return err
	}
	return r.gatherPods(ctx, v)
}

// retention reads the retention of a volume. If the class is gone, it uses the class as it was when
// the volume was created, so that deleting a class shortens no retention.
func (r *reconciler) retention(ctx context.Context, reader client.Reader, v *View) (volume.Retention, error) {
	former := &storagev1.StorageClass{}
	if err := json.Unmarshal(v.Record.Spec.ClassSnapshot.Raw, former); err != nil {
		former = nil
	}
	return kube.RetentionOf(ctx, reader, v.Volume, former)
}

// gatherPods reads the record's pods, and among them that of its step and attempt, in the namespace
// that the record names. A pod of that name in another namespace is not Tarn's.
func (r *reconciler) gatherPods(ctx context.Context, v *View) error {
	pods := &corev1.PodList{}
	if err := r.client.List(ctx, pods, client.MatchingLabels{tarnv1.LabelRecord: string(v.Record.UID)}); err != nil {
		return fmt.Errorf("listing the pods of PavVolume %s: %w", v.Record.Name, err)
	}
	v.Pods = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return !steppod.OwnedBy(&pod, v.Record.UID) })
	// The cache lists them in any order, and messages name the first.
	slices.SortFunc(v.Pods, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	step, attempt, status := stepOf(v.Record), v.Record.Status.Attempts, v.Record.Status
	if step == "" {
		return nil
	}
	if step == tarnv1.StepDeletion {
		attempt = status.DeletionAttempts
	}
	key := client.ObjectKey{Namespace: status.PodNamespace, Name: steppod.PodName(step, v.Record.Spec.Claim.UID, attempt)}
	i := slices.IndexFunc(v.Pods, func(pod corev1.Pod) bool { return client.ObjectKeyFromObject(&pod) == key })
	var err error
	switch {
	case i >= 0:
		v.Pod = &v.Pods[i]
	case key.Namespace != "" && step != tarnv1.StepDeletion: // one that a user put in its place is not listed
		if v.Pod, err = kube.Get(ctx, r.client, key, &corev1.Pod{}); err != nil {
			return err
		}
	}
	now := r.clock.Now()
	if v.Observed, err = r.steps.Unmounted(ctx, v.Pod, steppod.Observe(v.Pod, v.Record.UID, now), now); err == nil {
		v.Observed, err = r.steps.Unbound(ctx, v.Pod, v.Claims, v.Observed, now)
	}
	return err
}

// stepOf is the step of the pod that belongs to a record's phase, empty for none.
func stepOf(record *tarnv1.PavVolume) tarnv1.Step {
	switch record.Status.Phase {
	case tarnv1.VolumeValidating:
		return tarnv1.StepValidation
	case tarnv1.VolumeCreating, tarnv1.VolumeCreated:
		return tarnv1.StepCreation
	case tarnv1.VolumeUndoing, tarnv1.VolumeDeleting:
		return tarnv1.StepDeletion
	}
	return ""
}

// destroying says whether the storage of a record is being deleted.
func destroying(record *tarnv1.PavVolume) bool { return stepOf(record) == tarnv1.StepDeletion }

// others are the record's pods besides the current one that have not ended: creation pods that still
// run, and deletion pods of earlier attempts.
func (v *View) others() []corev1.Pod {
	return v.podsWith(func(pod *corev1.Pod) bool {
		return !steppod.Ended(pod) && (v.Pod == nil || client.ObjectKeyFromObject(pod) != client.ObjectKeyFromObject(v.Pod))
	})
}

func (v *View) podsWith(those func(*corev1.Pod) bool) []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(v.Pods), func(pod corev1.Pod) bool { return !those(&pod) })
}
