package reclaim

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/podvol"
)

// View is all that is known about one volume that may have to go. What does not
// exist is nil.
type View struct {
	Record      *tarnv1.PavVolume
	Volume      *corev1.PersistentVolume
	Provisioner *pavv1.PavProvisioner
	// Stages are the stages of the volume, on any node.
	Stages []tarnv1.PavStage
	// Others are the record's other pods that have not ended: those that are still
	// creating, and deletion pods of earlier attempts.
	Others []corev1.Pod
	// Pod is the deletion pod of the current attempt; Observed what it tells.
	Pod      *corev1.Pod
	Observed podvol.Observation
}

// gather reads the View of one volume from the cache. Where there is no record, the
// rest but the PersistentVolume is left out.
func (r *reconciler) gather(ctx context.Context, key client.ObjectKey) (*View, error) {
	v := &View{}
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
	stages := &tarnv1.PavStageList{}
	if err := r.client.List(ctx, stages, client.MatchingFields{indexStageVolume: key.Name}); err != nil {
		return nil, fmt.Errorf("listing the stages of volume %s: %w", key.Name, err)
	}
	v.Stages = stages.Items
	return v, r.gatherPods(ctx, v)
}

func (r *reconciler) gatherPods(ctx context.Context, v *View) error {
	pods := &corev1.PodList{}
	if err := r.client.List(ctx, pods, client.MatchingLabels{tarnv1.LabelRecord: string(v.Record.UID)}); err != nil {
		return fmt.Errorf("listing the pods of PavVolume %s: %w", v.Record.Name, err)
	}
	name := podvol.PodName(tarnv1.StepDeletion, v.Record.Spec.Claim.UID, v.Record.Status.DeletionAttempts)
	for i := range pods.Items {
		pod := &pods.Items[i]
		switch {
		case !podvol.OwnedBy(pod, v.Record.UID):
		case pod.Name == name && pod.Namespace == v.Record.Status.PodNamespace:
			v.Pod = pod
		case !podvol.Ended(pod):
			v.Others = append(v.Others, *pod)
		}
	}
	v.Observed = podvol.Observe(v.Pod, v.Record.UID, r.clock.Now())
	return nil
}
