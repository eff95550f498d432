package pavvolume

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// The claims of a volume over other volumes. They are recorded with the phase Creating, made before
// the creation pod, and deleted after the storage: before the record ends, and before each new
// attempt. Retain and tarn forget leave them where they are, as they are the storage.

// Reasons of a record whose claims are in the way.
const (
	// reasonClaimRefused: the API server rejects a claim that has to be made for the volume. Correct
	// the cause in the message.
	reasonClaimRefused = "BackingClaimRefused"
	// reasonClaimForeign: a claim with the name of the volume's claim is not Tarn's. Delete it.
	reasonClaimForeign = "BackingClaimNotOurs"
	// reasonClaimGoing: the volume's own claims are being deleted. The message says what they wait
	// for.
	reasonClaimGoing = "BackingClaimGoing"
	// reasonClaimUnbound: a claim of the volume has no volume after the creation. Mount it in the
	// creation pod.
	reasonClaimUnbound = "BackingClaimUnbound"
)

// isMade passes claims that were made for volumes.
func isMade(o client.Object) bool { return o.GetLabels()[tarnv1.LabelRecord] != "" }

// mapMade enqueues the record of a claim that was made for a volume.
func mapMade(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{request(o.GetLabels()[tarnv1.LabelVolume])}
}

// follows says whether the volume is where its claims are.
func follows(v *View) bool {
	return v.Provisioner != nil && v.Provisioner.Spec.Topology == pavv1.TopologyClaims
}

// gatherClaims reads the claims that were made for the record.
func (r *reconciler) gatherClaims(ctx context.Context, v *View) error {
	for _, made := range v.Record.Status.Claims {
		claim, err := kube.Get(ctx, r.client, client.ObjectKey{Namespace: made.Namespace, Name: made.Name}, &corev1.PersistentVolumeClaim{})
		if err != nil {
			return err
		}
		if claim != nil && steppod.OwnsClaim(v.Record, claim) {
			v.Claims = append(v.Claims, claim)
		}
	}
	return nil
}

// withClaims adds claims to those of a record. Those of an earlier version of the provisioner stay.
func withClaims(recorded []tarnv1.MadeClaim, claims []*corev1.PersistentVolumeClaim) []tarnv1.MadeClaim {
	recorded = slices.Clone(recorded)
	for _, c := range claims {
		if made := (tarnv1.MadeClaim{Namespace: c.Namespace, Name: c.Name}); !slices.Contains(recorded, made) {
			recorded = append(recorded, made)
		}
	}
	return recorded
}

// makeClaims creates the claims of an attempt that do not exist. A claim that cannot be made gives a
// StepError.
func (r *reconciler) makeClaims(ctx context.Context, v *View, claims []*corev1.PersistentVolumeClaim) error {
	refused := func(reason, format string, args ...any) error {
		return &steppod.StepError{Step: tarnv1.StepCreation, Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	for _, claim := range claims {
		key := client.ObjectKeyFromObject(claim)
		switch err := r.client.Create(ctx, claim.DeepCopy()); {
		case err == nil:
			continue
		case kube.IsRefusal(err), apierrors.IsNotFound(err):
			return refused(reasonClaimRefused, "the API server rejects claim %s, which the volume needs: %v", key, err)
		case !apierrors.IsAlreadyExists(err):
			return fmt.Errorf("creating claim %s: %w", key, err)
		}
		live, err := kube.Get(ctx, r.reader, key, &corev1.PersistentVolumeClaim{})
		switch {
		case err != nil:
			return err
		case live == nil:
			return kube.ErrStale
		case !steppod.OwnsClaim(v.Record, live):
			return refused(reasonClaimForeign, "claim %s exists and belongs to something else; delete it to continue", key)
		case live.DeletionTimestamp != nil:
			return refused(reasonClaimGoing, "claim %s, which the volume needs, is being deleted", key)
		}
	}
	return nil
}

// endClaims deletes the claims of a record, and once they are gone removes them from it. more says
// that they are gone. Until then, the end of each enqueues the record.
func (r *reconciler) endClaims(ctx context.Context, v *View) (more bool, err error) {
	if len(v.Record.Status.Claims) == 0 {
		return true, nil
	}
	// A cache that is behind could delete the claims of a later attempt.
	if err := r.runner.Do(ctx, action.Confirm{Object: v.Record}); err != nil {
		return false, err
	}
	status := v.Record.Status.DeepCopy()
	if status.Phase == tarnv1.VolumeDeleting && !v.endsClaims() { // minutes may have passed since the deletion pod began
		if err := r.confirmReleased(ctx, v); err != nil {
			return false, err
		}
	}
	if status.Phase == tarnv1.VolumeDeleting && !status.DeletionStarted { // the claims are the storage
		status.DeletionStarted = true
		if _, err := r.apply(ctx, v, writes(v, status)); err != nil {
			return false, err
		}
		status = v.Record.Status.DeepCopy()
	}
	var going *corev1.PersistentVolumeClaim
	for _, made := range v.Record.Status.Claims {
		live, err := kube.Get(ctx, r.reader, client.ObjectKey{Namespace: made.Namespace, Name: made.Name}, &corev1.PersistentVolumeClaim{})
		if err != nil {
			return false, err
		}
		if live == nil || !steppod.OwnsClaim(v.Record, live) {
			continue
		}
		if going == nil || live.DeletionTimestamp != nil {
			going = live
		}
		if err := r.runner.Do(ctx, deleteClaim(live)...); err != nil {
			return false, err
		}
	}
	if going == nil && status.Phase == tarnv1.VolumeDeleting { // the record keeps them to its end, so that no pod waits for them
		return true, nil
	}
	if going == nil {
		status.Claims = nil
		if e := status.LastError; e != nil && !waitsForHandle(v.Record) {
			sayProvisioned(status, v.Record, e.Reason, e.Message)
		}
		_, err := r.apply(ctx, v, writes(v, status))
		return err == nil, err
	}
	if going.DeletionTimestamp == nil {
		return false, nil
	}
	message := fmt.Sprintf("claim %s/%s, which was made for the volume, is being deleted", going.Namespace, going.Name)
	say := sayProvisioned
	if status.Phase == tarnv1.VolumeDeleting {
		say = sayDeletable
	}
	if !waitsForHandle(v.Record) && say(status, v.Record, reasonClaimGoing, message) {
		_, err = r.apply(ctx, v, writes(v, status))
	}
	return false, err
}

// endsClaims says whether a claim of the volume is being deleted already. Nothing stops that.
func (v *View) endsClaims() bool {
	return slices.ContainsFunc(v.Claims, func(c *corev1.PersistentVolumeClaim) bool { return c.DeletionTimestamp != nil })
}

// deleteClaim deletes a claim that was made for a volume. Its label against deletion comes off
// first.
func deleteClaim(claim *corev1.PersistentVolumeClaim) (actions []action.Action) {
	if claim.Labels[tarnv1.LabelDeletionProtection] != "" {
		free := claim.DeepCopy()
		delete(free.Labels, tarnv1.LabelDeletionProtection)
		actions = append(actions, action.Patch{From: claim, To: free})
	}
	if claim.DeletionTimestamp == nil {
		actions = append(actions, action.Delete{Object: claim})
	}
	return actions
}

// unbacked says why a deletion pod is not started: a claim of the record that it mounts is gone, or
// an attempt ends before that was bound. Such a pod would never start, and has nothing to delete. It
// is empty if the pod can start.
func (r *reconciler) unbacked(ctx context.Context, v *View, pod *corev1.Pod) (why string, err error) {
	for _, mounted := range pod.Spec.Volumes {
		source := mounted.PersistentVolumeClaim
		if source == nil || !slices.Contains(v.Record.Status.Claims, tarnv1.MadeClaim{Namespace: pod.Namespace, Name: source.ClaimName}) {
			continue
		}
		live, err := kube.Get(ctx, r.reader, client.ObjectKey{Namespace: pod.Namespace, Name: source.ClaimName}, &corev1.PersistentVolumeClaim{})
		if err != nil {
			return "", err
		}
		state := ""
		switch {
		case live == nil || !steppod.OwnsClaim(v.Record, live):
			state = "is gone"
		case live.DeletionTimestamp != nil:
			state = "is being deleted"
		case live.Spec.VolumeName == "" && v.Record.Status.Phase == tarnv1.VolumeUndoing: // else the deletion pod may bind it
			state = "was never bound"
		}
		if state != "" {
			return fmt.Sprintf("no deletion pod runs, because claim %s/%s, which it would mount, %s", pod.Namespace, source.ClaimName, state), nil
		}
	}
	return "", nil
}

// tieToClaims gives a volume the node affinity of the volumes of all its claims.
func (r *reconciler) tieToClaims(ctx context.Context, v *View, vol *corev1.PersistentVolume) error {
	terms := []corev1.NodeSelectorTerm{{}}
	for _, made := range v.Record.Status.Claims {
		claim, err := kube.Get(ctx, r.reader, client.ObjectKey{Namespace: made.Namespace, Name: made.Name}, &corev1.PersistentVolumeClaim{})
		if err != nil {
			return err
		}
		if (claim == nil || claim.Spec.VolumeName == "") && !declares(v, made) {
			continue // dropped from the provisioner during the creation, and empty
		}
		if claim == nil || claim.Status.Phase != corev1.ClaimBound {
			return r.unwritten(ctx, v, reasonClaimUnbound, fmt.Errorf("claim %s/%s, which was made for the volume, is not bound; "+
				"have the creation pod of PavProvisioner %q mount it", made.Namespace, made.Name, v.Record.Spec.Provisioner.Name))
		}
		backing, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: claim.Spec.VolumeName}, &corev1.PersistentVolume{})
		if err != nil {
			return err
		}
		if backing == nil {
			return kube.ErrStale
		}
		if a := backing.Spec.NodeAffinity; a != nil && a.Required != nil {
			terms = bothTerms(terms, a.Required.NodeSelectorTerms)
		}
	}
	if len(terms) > 1 || len(terms[0].MatchExpressions)+len(terms[0].MatchFields) > 0 {
		vol.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}
	}
	return nil
}

// declares says whether the provisioner still has a claim that was made for the volume.
func declares(v *View, made tarnv1.MadeClaim) bool {
	return slices.ContainsFunc(v.Provisioner.Spec.Claims, func(c pavv1.VolumeClaim) bool {
		return steppod.ClaimName(v.Record.Name, c.Name) == made.Name
	})
}

// bothTerms are the terms that match what a term of each list matches.
func bothTerms(a, b []corev1.NodeSelectorTerm) (both []corev1.NodeSelectorTerm) {
	for _, x := range a {
		for _, y := range b {
			both = append(both, corev1.NodeSelectorTerm{
				MatchExpressions: slices.Concat(x.MatchExpressions, y.MatchExpressions), MatchFields: slices.Concat(x.MatchFields, y.MatchFields),
			})
		}
	}
	return both
}
