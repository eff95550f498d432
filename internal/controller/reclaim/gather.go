package reclaim

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

// View is all that is known about one volume that may have to be deleted. Objects that do not exist
// are nil.
type View struct {
	Record      *tarnv1.PavVolume
	Volume      *corev1.PersistentVolume
	Provisioner *pavv1.PavProvisioner
	// Namespace is Tarn's own namespace. The volumes of its claims hold no user data.
	Namespace string
	// Retention is what objects of the cluster say about how long to keep the released volume.
	Retention volume.Retention
	// Stages are the stages of the volume, on any node.
	Stages []tarnv1.PavStage
	// Others are the record's other pods that have not ended: creation pods that still run, and
	// deletion pods of earlier attempts.
	Others []corev1.Pod
	// Pod is the deletion pod of the current attempt; Observed is its state.
	Pod      *corev1.Pod
	Observed steppod.Observation
}

// gather reads the View of one volume from the cache. Without a record, it reads only the
// PersistentVolume.
func (r *reconciler) gather(ctx context.Context, key client.ObjectKey) (*View, error) {
	v := &View{Namespace: r.namespace}
	var err error
	if v.Volume, err = kube.Get(ctx, r.client, key, &corev1.PersistentVolume{}); err != nil {
		return nil, err
	}
	if v.Record, err = kube.Get(ctx, r.client, key, &tarnv1.PavVolume{}); err != nil || v.Record == nil {
		return v, err
	}
	name := v.Record.Spec.Provisioner.Name
	if v.Provisioner, err = kube.Get(ctx, r.client, client.ObjectKey{Name: name}, &pavv1.PavProvisioner{}); err != nil {
		return nil, err
	}
	if v.Volume != nil && released(v.Volume) {
		if v.Retention, err = r.retention(ctx, r.client, v); err != nil {
			return nil, err
		}
	}
	stages := &tarnv1.PavStageList{}
	if err := r.client.List(ctx, stages, client.MatchingFields{indexStageVolume: key.Name}); err != nil {
		return nil, fmt.Errorf("listing the stages of volume %s: %w", key.Name, err)
	}
	v.Stages = slices.DeleteFunc(stages.Items, func(s tarnv1.PavStage) bool { return s.Void() })
	return v, r.gatherPods(ctx, v)
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

func (r *reconciler) gatherPods(ctx context.Context, v *View) error {
	pods := &corev1.PodList{}
	if err := r.client.List(ctx, pods, client.MatchingLabels{tarnv1.LabelRecord: string(v.Record.UID)}); err != nil {
		return fmt.Errorf("listing the pods of PavVolume %s: %w", v.Record.Name, err)
	}
	name := steppod.PodName(tarnv1.StepDeletion, v.Record.Spec.Claim.UID, v.Record.Status.DeletionAttempts)
	for i := range pods.Items {
		pod := &pods.Items[i]
		switch {
		case !steppod.OwnedBy(pod, v.Record.UID):
		case pod.Name == name && pod.Namespace == v.Record.Status.PodNamespace:
			v.Pod = pod
		case !steppod.Ended(pod):
			v.Others = append(v.Others, *pod)
		}
	}
	// The cache lists them in any order, and messages name the first.
	slices.SortFunc(v.Others, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	var err error
	now := r.clock.Now()
	v.Observed, err = r.steps.Unmounted(ctx, v.Pod, steppod.Observe(v.Pod, v.Record.UID, now), now)
	return err
}
