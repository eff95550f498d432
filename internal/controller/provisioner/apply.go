package provisioner

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// eventAction is what Events say was being done.
const eventAction = "Accept"

// +kubebuilder:rbac:groups=pav.albertofaria.github.io,resources=pavprovisioners,verbs=patch
// +kubebuilder:rbac:groups=pav.albertofaria.github.io,resources=pavprovisioners/status,verbs=patch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=csidrivers,verbs=create;update;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// apply does what a plan says, up to the first error. The view's provisioner is the
// reconcile's own copy; each write leaves it as the API server has it, so that the
// next one is checked against that.
func (r *Reconciler) apply(ctx context.Context, v View, p Plan) error {
	for _, a := range p.Actions {
		if err := r.do(ctx, v.Provisioner, a); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reconciler) do(ctx context.Context, p *pavv1.PavProvisioner, a Action) error {
	switch a := a.(type) {
	case Hold:
		return r.patch(ctx, p, func() { controllerutil.AddFinalizer(p, tarnv1.FinalizerProvisioner) })
	case LetGo:
		return r.patch(ctx, p, func() { controllerutil.RemoveFinalizer(p, tarnv1.FinalizerProvisioner) })
	case CreateDriver:
		// One that is there already is one the cache had not shown: its event brings
		// the provisioner back, and whose it is is judged then.
		if err := r.client.Create(ctx, a.Driver.DeepCopy()); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating CSIDriver %s: %w", a.Driver.Name, err)
		}
		return nil
	case UpdateDriver:
		if err := r.client.Update(ctx, a.Driver.DeepCopy()); err != nil {
			return fmt.Errorf("updating CSIDriver %s: %w", a.Driver.Name, err)
		}
		return nil
	case DeleteDriver:
		err := r.client.Delete(ctx, a.Driver, client.Preconditions{UID: &a.Driver.UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting CSIDriver %s: %w", a.Driver.Name, err)
		}
		return nil
	case WriteStatus:
		base := p.DeepCopy()
		p.Status = a.Status
		err := r.client.Status().Patch(ctx, p, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("writing status of PavProvisioner %s: %w", p.Name, err)
		}
		return nil
	case Post:
		r.events.Eventf(p, nil, corev1.EventTypeWarning, a.Reason, eventAction, "%s", a.Note)
		return nil
	}
	return fmt.Errorf("accept: unknown action %T", a)
}

// patch writes a change of finalizers. Their list is replaced as a whole, hence the
// lock.
func (r *Reconciler) patch(ctx context.Context, p *pavv1.PavProvisioner, change func()) error {
	base := p.DeepCopy()
	change()
	err := r.client.Patch(ctx, p, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing finalizers of PavProvisioner %s: %w", p.Name, err)
	}
	return nil
}
