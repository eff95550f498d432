package expand

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// Reasons of a volume over other volumes that cannot grow, because a claim of it cannot.
const (
	// reasonClaimStays: a claim of the volume cannot grow. Set allowVolumeExpansion in its class, or
	// correct what the message names.
	reasonClaimStays = "BackingClaimNotExpandable"
	// reasonClaimGone: a claim of the volume does not exist any more, and with it the data.
	reasonClaimGone = "BackingClaimGone"
)

// backing is a claim that was made for the volume, and how large it must be, in bytes.
type backing struct {
	claim *corev1.PersistentVolumeClaim
	want  int64
}

// growBacking sets the request of a claim that was made for the volume.
type growBacking struct {
	action.Own
	backing
}

// gatherBehind finds the volume's own claims that are too small for its new size. A claim that
// cannot grow gives a StepError.
func (r *reconciler) gatherBehind(ctx context.Context, v *View, target int64) error {
	wanted, err := r.steps.PrepareClaims(ctx, v.Provisioner, v.Record, v.Claim, target)
	if err != nil {
		return err
	}
	for _, w := range wanted {
		key := client.ObjectKey{Namespace: w.Namespace, Name: w.Name}
		if i := slices.IndexFunc(v.Record.Status.Claims, func(m tarnv1.MadeClaim) bool { return m.Name == w.Name }); i < 0 {
			continue // added to the provisioner later: the volume has none
		} else {
			key.Namespace = v.Record.Status.Claims[i].Namespace
		}
		claim, err := kube.Get(ctx, r.client, key, &corev1.PersistentVolumeClaim{})
		if err != nil {
			return err
		}
		if claim == nil || !steppod.OwnsClaim(v.Record, claim) || claim.DeletionTimestamp != nil {
			return stays(reasonClaimGone, "claim %s, which was made for the volume, is gone", key)
		}
		b := backing{claim, wantedOf(w)}
		if reached, err := r.reached(ctx, v, b); err != nil || reached {
			if err != nil {
				return err
			}
			continue
		}
		if err := r.mayGrow(ctx, b); err != nil {
			return err
		}
		v.Behind = append(v.Behind, b)
	}
	return nil
}

// stays says why the volume cannot grow.
func stays(reason, format string, args ...any) error {
	return &steppod.StepError{Step: tarnv1.StepExpansion, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// reached says whether a claim has its size. If only a node has to follow, and no pod mounts the
// claim, the next mount does that.
func (r *reconciler) reached(ctx context.Context, v *View, b backing) (bool, error) {
	if capacityOf(b.claim) >= b.want {
		return true, nil
	}
	if statusOf(b.claim) != corev1.PersistentVolumeClaimNodeResizePending && !slices.ContainsFunc(b.claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending && c.Status == corev1.ConditionTrue
	}) || wantedOf(b.claim) < b.want || allocatedOf(b.claim) != 0 && allocatedOf(b.claim) < b.want {
		return false, nil
	}
	pods := &corev1.PodList{}
	of := client.MatchingLabels{tarnv1.LabelVolume: tarnv1.VolumeLabel(v.Volume.Name), tarnv1.LabelStep: string(tarnv1.StepStaging)}
	if err := r.client.List(ctx, pods, of); err != nil {
		return false, fmt.Errorf("listing the staging pods of volume %s: %w", v.Volume.Name, err)
	}
	return !slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return !steppod.Ended(&pod) }), nil
}

// mayGrow checks that the class of a claim lets it grow. Otherwise the API server would reject the
// request in words that do not name the class.
func (r *reconciler) mayGrow(ctx context.Context, b backing) error {
	if wantedOf(b.claim) >= b.want {
		return nil
	}
	name := volume.ClassOf(b.claim)
	class, err := kube.Get(ctx, r.client, client.ObjectKey{Name: name}, &storagev1.StorageClass{})
	if err != nil {
		return err
	}
	if class == nil || class.AllowVolumeExpansion == nil || !*class.AllowVolumeExpansion {
		return stays(reasonClaimStays, "claim %s/%s, which was made for the volume, cannot grow: set allowVolumeExpansion: true in its StorageClass %q",
			b.claim.Namespace, b.claim.Name, name)
	}
	return nil
}

// backingLook is when claims that are behind are checked without an event. A claim may wait for the
// end of the volume's staging pods, which this controller does not watch.
const backingLook = time.Minute

// growRequests raises the requests of the claims that are behind. A request that failed is also
// lowered, which Kubernetes allows.
func growRequests(v *View) (actions []action.Action) {
	for _, b := range v.Behind {
		if asked := wantedOf(b.claim); asked < b.want || asked > b.want && errorOf(b.claim) != "" {
			actions = append(actions, growBacking{backing: b})
		}
	}
	return actions
}

// growClaims repeats the requests after a crash, and says what keeps a claim from growing.
func growClaims(v *View, now time.Time) []action.Action {
	var o steppod.Observation
	for _, b := range v.Behind {
		if why := errorOf(b.claim); o.Message == "" && why != "" {
			o.State, o.Message = steppod.PodStarting, fmt.Sprintf("claim %s/%s, which was made for the volume, does not grow: %s", b.claim.Namespace, b.claim.Name, why)
		}
	}
	actions := growRequests(v)
	if !growable(v) {
		return actions
	}
	return append(actions, writeClaim(v, waiting(v.Claim, o, now))...)
}

// errorOf is what a claim says about its failed growth, empty for none.
func errorOf(claim *corev1.PersistentVolumeClaim) string {
	for _, c := range claim.Status.Conditions {
		if c.Status == corev1.ConditionTrue && c.Message != "" &&
			(c.Type == corev1.PersistentVolumeClaimControllerResizeError || c.Type == corev1.PersistentVolumeClaimNodeResizeError) {
			return c.Message
		}
	}
	return ""
}

// own sets the request of a claim. A request that the API server rejects gives a StepError.
func (r *reconciler) own(ctx context.Context, a action.Action) (client.Object, error) {
	g, ok := a.(growBacking)
	if !ok {
		return nil, fmt.Errorf("unknown action %T", a)
	}
	grown := g.claim.DeepCopy()
	grown.Spec.Resources.Requests[corev1.ResourceStorage] = quantity(g.want)
	err := r.client.Patch(ctx, grown, client.MergeFromWithOptions(g.claim, client.MergeFromWithOptimisticLock{}))
	if kube.IsRefusal(err) {
		return nil, stays(reasonClaimStays, "the API server rejects the growth of claim %s/%s to %s: %v", g.claim.Namespace, g.claim.Name, volume.Size(g.want), err)
	}
	if err != nil {
		return nil, fmt.Errorf("growing claim %s/%s: %w", g.claim.Namespace, g.claim.Name, err)
	}
	return grown, nil
}
