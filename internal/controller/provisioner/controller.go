// Package provisioner decides whether a PavProvisioner may be used and writes its status. It
// keeps the CSIDriver object of that name. It removes the finalizer of a deleted provisioner
// once nothing needs the provisioner any more.
//
// For spec.nodeCapacity it keeps the CSIStorageCapacity objects, which node agents fill in.
//
// The controller creates no volume and no pod. The only templates that it evaluates are those of
// spec.nodeCapacity. It reads what the other controllers have recorded, and they read its condition
// Accepted.
package provisioner

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// +kubebuilder:rbac:groups=pav.albertofaria.github.io,resources=pavprovisioners,verbs=patch
// +kubebuilder:rbac:groups=pav.albertofaria.github.io,resources=pavprovisioners/status,verbs=patch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=csidrivers,verbs=create;update;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// gatherTime is how long the controller collects events of volumes, stages and nodes before it
// reconciles their provisioner. A thousand volumes created in a second are then counted and
// written once.
const gatherTime = 500 * time.Millisecond

// Options of the controller.
type Options struct {
	// MaxConcurrent is how many provisioners are reconciled at once; 0 means one.
	MaxConcurrent int
	// Namespaces are the namespaces that step pods may run in; nil means
	// steppod.DefaultNamespaces.
	Namespaces steppod.Namespaces
	// Clock is the time source; nil means the real clock.
	Clock clock.PassiveClock
}

// Reconciler reconciles PavProvisioners.
type Reconciler struct {
	client client.Reader // cached
	live   client.Reader
	runner action.Runner
	clock  clock.PassiveClock

	namespaces steppod.Namespaces
}

// Register adds the controller and its indexes to a manager.
func Register(mgr ctrl.Manager, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if err := addIndexes(context.Background(), mgr.GetFieldIndexer()); err != nil {
		return err
	}
	r := &Reconciler{client: mgr.GetClient(), live: mgr.GetAPIReader(), clock: o.Clock, namespaces: o.Namespaces,
		runner: action.Runner{Client: mgr.GetClient(), Events: mgr.GetEventRecorder(kube.ControllerName)}}
	return ctrl.NewControllerManagedBy(mgr).
		Named("accept").
		For(&pavv1.PavProvisioner{}).
		Watches(&storagev1.CSIDriver{}, soon(ofDriver)).
		Watches(&storagev1.CSINode{}, soon(ofNode)).
		Watches(&tarnv1.PavVolume{}, soon(ofRecord)).
		Watches(&tarnv1.PavStage{}, soon(ofStage)).
		Watches(&corev1.PersistentVolume{}, soon(ofVolume)).
		Watches(&storagev1.CSIStorageCapacity{}, soon(ofCapacity)).
		Watches(&storagev1.StorageClass{}, handler.EnqueueRequestsFromMapFunc(ofClass)).
		Watches(&corev1.Node{}, kube.Soon(gatherTime, r.measured)).
		WithOptions(controller.Options{MaxConcurrentReconciles: o.MaxConcurrent, RateLimiter: kube.RateLimiter()}).
		Complete(r)
}

// Reconcile gathers, plans and applies for one provisioner.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	now := r.clock.Now()
	view, err := r.gather(ctx, req.Name)
	if err != nil {
		return kube.Outcome(err, time.Time{}, now)
	}
	return kube.Outcome(r.runner.Do(ctx, plan(view, now).Actions...), time.Time{}, now)
}

// change is an object before and after an event. old is nil if the object is new, current is
// nil if it is gone.
type change struct{ old, current client.Object }

// soon enqueues the provisioners that a change concerns, after gatherTime.
func soon(concerned func(change) []string) handler.Funcs {
	return kube.Soon(gatherTime, func(_ context.Context, old, current client.Object) []string { return concerned(change{old, current}) })
}

// either gives the object after the event, or before the event if it is gone.
func (c change) either() client.Object {
	if c.current != nil {
		return c.current
	}
	return c.old
}

func ofDriver(c change) []string { return []string{c.either().GetName()} }

// ofNode names the drivers that a node gained or lost.
func ofNode(c change) []string {
	drivers := func(o client.Object) map[string]bool {
		names := map[string]bool{}
		if node, ok := o.(*storagev1.CSINode); ok {
			for _, driver := range node.Spec.Drivers {
				names[driver.Name] = true
			}
		}
		return names
	}
	before, after := drivers(c.old), drivers(c.current)
	var changed []string
	for name := range before {
		if !after[name] {
			changed = append(changed, name)
		}
	}
	for name := range after {
		if !before[name] {
			changed = append(changed, name)
		}
	}
	return changed
}

// ofRecord names the provisioner of a PavVolume. It ignores changes that affect neither the
// count of volumes nor a deletion.
func ofRecord(c change) []string {
	record, ok := c.either().(*tarnv1.PavVolume)
	if !ok {
		return nil
	}
	if old, was := c.old.(*tarnv1.PavVolume); was && c.current != nil && old.Status.Phase == record.Status.Phase {
		return nil
	}
	return []string{record.Spec.Provisioner.Name}
}

// ofStage names the provisioner of a stage that has ended. Nothing else about a stage matters
// to a deletion.
func ofStage(c change) []string {
	stage, ok := c.either().(*tarnv1.PavStage)
	if !ok || c.current != nil {
		return nil
	}
	return []string{stage.Spec.Provisioner.Name}
}

// ofVolume names the provisioner of a volume. It ignores changes after which the volume still
// keeps its provisioner.
func ofVolume(c change) []string {
	vol, ok := c.either().(*corev1.PersistentVolume)
	if !ok || vol.Spec.CSI == nil {
		return nil
	}
	if old, was := c.old.(*corev1.PersistentVolume); !was || c.current != nil && sameHold(old, vol) {
		return nil
	}
	return []string{vol.Spec.CSI.Driver}
}

func sameHold(a, b *corev1.PersistentVolume) bool {
	return a.Status.Phase == b.Status.Phase &&
		a.Spec.PersistentVolumeReclaimPolicy == b.Spec.PersistentVolumeReclaimPolicy &&
		volume.OwnPolicy(a) == volume.OwnPolicy(b) && joining(a) == joining(b) &&
		(a.Spec.ClaimRef == nil) == (b.Spec.ClaimRef == nil)
}
