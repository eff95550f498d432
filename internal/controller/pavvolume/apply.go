package pavvolume

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
)

// apply carries out a plan. It returns true if the View has changed so that the next plan can
// follow at once.
func (r *reconciler) apply(ctx context.Context, v *View, p Plan) (more bool, err error) {
	if err := r.runner.Do(ctx, p.Actions...); err != nil {
		return false, err
	}
	if p.Record != nil {
		v.Record = p.Record
	}
	switch p.Act {
	case ActRecord:
		return true, r.writeRecord(ctx, v)
	case ActReschedule:
		return false, r.reschedule(ctx, v)
	case ActBegin:
		return r.begin(ctx, v)
	case ActCreate:
		return r.create(ctx, v, v.Record.Status.Attempts)
	case ActEndClaims:
		return r.endClaims(ctx, v)
	case ActRestart:
		return r.restart(ctx, v)
	case ActHandOver:
		return r.handOver(ctx, v)
	case ActRelease:
		return r.release(ctx, v)
	case ActDestroy:
		return r.destroy(ctx, v, p.Attempt)
	case ActFinish:
		return false, r.finish(ctx, v)
	case ActKeep:
		return false, r.keep(ctx, v)
	case ActForget:
		return false, r.forget(ctx, v)
	}
	return p.Record != nil && p.Record.Status.Phase == tarnv1.VolumeCreated && !handedOver(p.Record), nil
}

// liveClaim reads the claim from the API server, nil if the claim with that UID is gone.
func (r *reconciler) liveClaim(ctx context.Context, v *View) (*corev1.PersistentVolumeClaim, error) {
	claim := v.Claim
	if v.Record != nil {
		ref := v.Record.Spec.Claim
		claim = &corev1.PersistentVolumeClaim{}
		claim.Namespace, claim.Name, claim.UID = ref.Namespace, ref.Name, ref.UID
	}
	live, err := kube.Get(ctx, r.reader, client.ObjectKeyFromObject(claim), &corev1.PersistentVolumeClaim{})
	if err != nil || live == nil || live.UID != claim.UID {
		return nil, err
	}
	return live, nil
}

// liveVolume reads the PersistentVolume from the API server.
func (r *reconciler) liveVolume(ctx context.Context, v *View) (*corev1.PersistentVolume, error) {
	return kube.Get(ctx, r.reader, client.ObjectKey{Name: v.Name}, &corev1.PersistentVolume{})
}

// confirmVolume checks live that the PersistentVolume is as in the cache, and returns it.
func (r *reconciler) confirmVolume(ctx context.Context, v *View) (*corev1.PersistentVolume, error) {
	live, err := r.liveVolume(ctx, v)
	if err == nil && ((live == nil) != (v.Volume == nil) || live != nil && live.ResourceVersion != v.Volume.ResourceVersion) {
		err = kube.ErrStale
	}
	return live, err
}
