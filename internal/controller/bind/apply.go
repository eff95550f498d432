package bind

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/typed/core/v1"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes,verbs=update
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims/status;persistentvolumes/status,verbs=update
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// pair is a claim and a volume as last written. Either may be nil.
type pair struct {
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
}

// writeError is a failed write, with the object it was about.
type writeError struct {
	what string
	err  error
}

func (e *writeError) Error() string { return fmt.Sprintf("writing %s: %v", e.what, e.err) }
func (e *writeError) Unwrap() error { return e.err }

// isRejected says that the API server surely did not carry out a write and will reject the same write
// again. So the objects need not be read again.
func isRejected(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusConflict, http.StatusNotFound, http.StatusRequestTimeout:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// isStale says that another writer came first: the object changed or is gone.
func isStale(err error) bool { return apierrors.IsConflict(err) || apierrors.IsNotFound(err) }

// apply carries out a plan, up to the first error. Every write names the version it was computed
// from, and builds on the answer to the previous write. Each answer enters the cache at once.
func (r *reconciler) apply(ctx context.Context, on pair, p Plan) error {
	for _, a := range p.Actions {
		if err := r.do(ctx, &on, a); err != nil {
			return err
		}
	}
	return p.Problem
}

func (r *reconciler) do(ctx context.Context, on *pair, a Action) error {
	switch a := a.(type) {
	case WriteVolume:
		v := *a.Volume
		v.ResourceVersion = on.volume.ResourceVersion
		return r.wroteVolume(on, &v, func(api v1.PersistentVolumeInterface) (*corev1.PersistentVolume, error) {
			return api.Update(ctx, &v, metav1.UpdateOptions{})
		})
	case WriteVolumeStatus:
		v := *on.volume
		v.Status = a.Volume.Status
		return r.wroteVolume(on, &v, func(api v1.PersistentVolumeInterface) (*corev1.PersistentVolume, error) {
			return api.UpdateStatus(ctx, &v, metav1.UpdateOptions{})
		})
	case WriteClaim:
		c := *a.Claim
		c.ResourceVersion = on.claim.ResourceVersion
		return r.wroteClaim(on, &c, func(api v1.PersistentVolumeClaimInterface) (*corev1.PersistentVolumeClaim, error) {
			return api.Update(ctx, &c, metav1.UpdateOptions{})
		})
	case WriteClaimStatus:
		c := a.onto(on.claim)
		return r.wroteClaim(on, c, func(api v1.PersistentVolumeClaimInterface) (*corev1.PersistentVolumeClaim, error) {
			return api.UpdateStatus(ctx, c, metav1.UpdateOptions{})
		})
	case EnqueueClaim:
		r.watches.enqueue(requests{claims: set[claimKey]{a.Key: {}}})
		return nil
	case Post:
		r.events.post(*on, a)
		return nil
	}
	return fmt.Errorf("bind: unknown action %T", a)
}

// wroteVolume writes a volume. It leaves out managed fields, which the API server treats as no
// change; any other field left out would be lost.
func (r *reconciler) wroteVolume(on *pair, v *corev1.PersistentVolume, write func(v1.PersistentVolumeInterface) (*corev1.PersistentVolume, error)) error {
	v.ManagedFields = nil
	answer, err := write(r.api.PersistentVolumes())
	if err != nil {
		return &writeError{what: fmt.Sprintf("volume %q", v.Name), err: err}
	}
	answer.ManagedFields = nil
	on.volume = answer
	r.log.Info("update", "kind", "PersistentVolume", "object", answer.Name, "uid", answer.UID, "phase", answer.Status.Phase, "claim", claimKeyOf(answer))
	r.cache.putWritten(nil, answer)
	return nil
}

func (r *reconciler) wroteClaim(on *pair, c *corev1.PersistentVolumeClaim, write func(v1.PersistentVolumeClaimInterface) (*corev1.PersistentVolumeClaim, error)) error {
	c.ManagedFields = nil
	answer, err := write(r.api.PersistentVolumeClaims(c.Namespace))
	if err != nil {
		return &writeError{what: fmt.Sprintf("claim %s/%s", c.Namespace, c.Name), err: err}
	}
	answer.ManagedFields = nil
	on.claim = answer
	r.log.Info("update", "kind", "PersistentVolumeClaim", "object", answer.Namespace+"/"+answer.Name, "uid", answer.UID, "phase", answer.Status.Phase, "volume", answer.Spec.VolumeName)
	r.cache.putWritten(answer, nil)
	return nil
}

// claimKeyOf returns namespace/name of the claim that a volume points at, for the log.
func claimKeyOf(v *corev1.PersistentVolume) string {
	if v.Spec.ClaimRef == nil {
		return ""
	}
	return v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name
}
