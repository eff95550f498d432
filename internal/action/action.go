// Package action defines the writes of controllers to the cluster, and the runner that does them. A
// controller gathers a view, plans a list of actions from it with a pure function, and passes them
// to the runner, which does them in order. The package knows no controller and no policy.
package action

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"tarn.dev/tarn/internal/kube"
)

// Action is one write. An action may be repeated: the process can be killed at any line, and the
// next reconcile plans again from what was written.
type Action interface {
	do(context.Context, *Run) error
}

type (
	// Create creates an object. An existing object of that name is no error: the cache had not
	// shown it, and its event enqueues the controller's object again.
	Create struct{ Object client.Object }

	// Patch writes the difference between two versions of an object. From must be the API server's
	// version, otherwise the write is a conflict and an error. An object that no longer exists is
	// no error.
	Patch struct{ From, To client.Object }

	// PatchStatus is Patch for the status.
	PatchStatus struct {
		From, To client.Object
		// Present also requires that the object exists: otherwise the cache is behind.
		Present bool
	}

	// Update writes a whole object. To has the version that it was computed from. An object that no
	// longer exists is no error.
	Update struct{ To client.Object }

	// UpdateStatus is Update for the status. To becomes what the API server has made of it.
	UpdateStatus struct {
		To client.Object
		// Present is that of PatchStatus.
		Present bool
	}

	// AddFinalizer and RemoveFinalizer change the finalizers of an object as Patch does.
	AddFinalizer struct {
		Object client.Object
		Name   string
	}
	RemoveFinalizer struct {
		Object client.Object
		Name   string
	}

	// Delete deletes an object by its UID. An object that no longer exists is no error.
	Delete struct {
		Object client.Object
		// Unchanged also requires that the object has the version that was read.
		Unchanged bool
		// Grace is the grace period in seconds; nil means the object's own.
		Grace *int64
		// Present is that of PatchStatus.
		Present bool
		// Propagation says what happens to dependents; empty for the API server's default.
		Propagation metav1.DeletionPropagation
	}

	// StartPod starts the pod of a step.
	StartPod struct{ Pod *corev1.Pod }

	// DiscardPods deletes pods of steps, unless they are being deleted.
	DiscardPods struct{ Pods []corev1.Pod }

	// Confirm reads an object live, and ends the plan with kube.ErrStale if it is gone or has
	// another version than the one that was read. It stands before a write that cannot be undone.
	Confirm struct{ Object client.Object }

	// ConfirmAbsent does the same if an object of that name exists.
	ConfirmAbsent struct{ Object client.Object }

	// Emit emits an Event.
	Emit struct {
		About, Related client.Object
		Type, Reason   string
		// Doing is the Event's action. Events that differ only in their note are merged, unless
		// Doing differs, too.
		Doing string
		Note  string
	}

	// Together are actions of which each depends on the one before. They are done up to the first
	// that fails.
	Together []Action

	// Own is embedded in an action type of a controller that is more than a write, such as one that
	// reads live before it. Runner.Own does it.
	Own struct{}
)

// Steps starts and deletes the pods of steps. *steppod.Steps is one.
type Steps interface {
	Start(ctx context.Context, pod *corev1.Pod) error
	Discard(ctx context.Context, pod *corev1.Pod) error
}

// Runner does actions.
type Runner struct {
	Client client.Client
	Events events.EventRecorder
	// Live reads from the API server, for Confirm and ConfirmAbsent.
	Live client.Reader
	// Steps is for StartPod and DiscardPods.
	Steps Steps
	// Own does the controller's own actions. It returns the object that it has written, nil for
	// none.
	Own func(context.Context, Action) (client.Object, error)
}

// Run is the writes of one reconcile. A plan computes all its objects from one view. So an action
// on an object that an earlier one of the same run has written is checked against the version that
// this write made.
type Run struct {
	*Runner
	// Refused is the first error of a Create whose object the API server rejected for its content.
	Refused error
	// versions are the resource versions that this run has made.
	versions map[types.UID]string
}

// Begin begins a run, for a controller that plans more than once in a reconcile.
func (r *Runner) Begin() *Run { return &Run{Runner: r, versions: map[types.UID]string{}} }

// Do does the actions in order, up to the first error.
func (r *Runner) Do(ctx context.Context, actions ...Action) error {
	return r.Begin().Do(ctx, actions...)
}

// Do does the actions in order, up to the first error.
func (r *Run) Do(ctx context.Context, actions ...Action) error {
	return Together(actions).do(ctx, r)
}

// Try does the actions in order, also after one that failed, and joins the errors.
func (r *Run) Try(ctx context.Context, actions ...Action) error {
	var failed []error
	for _, a := range actions {
		if ctx.Err() != nil {
			return errors.Join(append(failed, ctx.Err())...)
		}
		failed = append(failed, r.one(ctx, a))
	}
	return errors.Join(failed...)
}

func (t Together) do(ctx context.Context, r *Run) error {
	for _, a := range t {
		if err := r.one(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

func (r *Run) one(ctx context.Context, a Action) error {
	if _, own := a.(interface{ own() }); !own {
		return a.do(ctx, r)
	}
	written, err := r.Own(ctx, a)
	if err == nil && written != nil {
		r.versions[written.GetUID()] = written.GetResourceVersion()
	}
	return err
}

func (Own) own() {}

func (Own) do(context.Context, *Run) error { return nil } // Run.one does it

func (a Create) do(ctx context.Context, r *Run) error {
	err := r.Client.Create(ctx, copyOf(a.Object))
	if err == nil || apierrors.IsAlreadyExists(err) {
		return nil
	}
	err = fmt.Errorf("creating %s: %w", r.name(a.Object), err)
	if r.Refused == nil && kube.IsRefusal(err) {
		r.Refused = err
	}
	return err
}

func (a Patch) do(ctx context.Context, r *Run) error {
	from, to := r.current(a.From), r.current(a.To)
	err := r.Client.Patch(ctx, to, locked(from))
	return r.wrote(to, err, "writing")
}

func (a PatchStatus) do(ctx context.Context, r *Run) error {
	from, to := r.current(a.From), r.current(a.To)
	err := r.Client.Status().Patch(ctx, to, locked(from))
	if apierrors.IsNotFound(err) && a.Present {
		return kube.ErrStale
	}
	return r.wrote(to, err, "writing the status of")
}

func (a Update) do(ctx context.Context, r *Run) error {
	to := r.current(a.To)
	err := r.Client.Update(ctx, to)
	return r.wrote(to, err, "writing")
}

func (a UpdateStatus) do(ctx context.Context, r *Run) error {
	if version, written := r.versions[a.To.GetUID()]; written {
		a.To.SetResourceVersion(version)
	}
	err := r.Client.Status().Update(ctx, a.To)
	if apierrors.IsNotFound(err) && a.Present {
		return kube.ErrStale
	}
	return r.wrote(a.To, err, "writing the status of")
}

func (a AddFinalizer) do(ctx context.Context, r *Run) error {
	from, to := r.current(a.Object), r.current(a.Object)
	if !controllerutil.AddFinalizer(to, a.Name) {
		return nil
	}
	err := r.Client.Patch(ctx, to, locked(from))
	return r.wrote(to, err, "adding finalizer "+a.Name+" to")
}

func (a RemoveFinalizer) do(ctx context.Context, r *Run) error {
	from, to := r.current(a.Object), r.current(a.Object)
	if !controllerutil.RemoveFinalizer(to, a.Name) {
		return nil
	}
	err := r.Client.Patch(ctx, to, locked(from))
	return r.wrote(to, err, "removing finalizer "+a.Name+" from")
}

func (a Delete) do(ctx context.Context, r *Run) error {
	o := r.current(a.Object)
	uid, version := o.GetUID(), o.GetResourceVersion()
	options := &client.DeleteOptions{GracePeriodSeconds: a.Grace, Preconditions: &metav1.Preconditions{UID: &uid}}
	if a.Unchanged {
		options.Preconditions.ResourceVersion = &version
	}
	if a.Propagation != "" {
		options.PropagationPolicy = &a.Propagation
	}
	switch err := r.Client.Delete(ctx, o, options); {
	case apierrors.IsNotFound(err) && a.Present:
		return kube.ErrStale
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("deleting %s: %w", r.name(o), err)
	}
	return nil
}

func (a StartPod) do(ctx context.Context, r *Run) error { return r.Steps.Start(ctx, a.Pod.DeepCopy()) }

func (a DiscardPods) do(ctx context.Context, r *Run) error {
	for i := range a.Pods {
		if err := r.Steps.Discard(ctx, a.Pods[i].DeepCopy()); err != nil {
			return err
		}
	}
	return nil
}

func (a Confirm) do(ctx context.Context, r *Run) error {
	o := r.current(a.Object)
	version := o.GetResourceVersion()
	live, err := kube.Get(ctx, r.Live, client.ObjectKeyFromObject(o), o)
	if err == nil && (live == nil || live.GetResourceVersion() != version) {
		return kube.ErrStale
	}
	return err
}

func (a ConfirmAbsent) do(ctx context.Context, r *Run) error {
	live, err := kube.Get(ctx, r.Live, client.ObjectKeyFromObject(a.Object), copyOf(a.Object))
	if err == nil && live != nil {
		return kube.ErrStale
	}
	return err
}

func (a Emit) do(_ context.Context, r *Run) error {
	var related runtime.Object
	if a.Related != nil {
		related = a.Related
	}
	r.Events.Eventf(a.About, related, a.Type, a.Reason, a.Doing, "%s", kube.Note(a.Note))
	return nil
}

// current gives a copy of an object with the version that this run has made of it.
func (r *Run) current(o client.Object) client.Object {
	o = copyOf(o)
	if version, written := r.versions[o.GetUID()]; written {
		o.SetResourceVersion(version)
	}
	return o
}

// wrote notes the version that a write has made.
func (r *Run) wrote(o client.Object, err error, doing string) error {
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("%s %s: %w", doing, r.name(o), err)
	}
	if err == nil && o.GetUID() != "" {
		r.versions[o.GetUID()] = o.GetResourceVersion()
	}
	return nil
}

// name names an object for an error, as PavVolume pvc-1 or Pod shop/web.
func (r *Run) name(o client.Object) string {
	kind := fmt.Sprintf("%T", o)
	if gvk, err := r.Client.GroupVersionKindFor(o); err == nil {
		kind = gvk.Kind
	}
	if namespace := o.GetNamespace(); namespace != "" {
		return kind + " " + namespace + "/" + o.GetName()
	}
	return kind + " " + o.GetName()
}

// locked is a merge patch that the API server takes if the object has from's version.
func locked(from client.Object) client.Patch {
	return client.MergeFromWithOptions(from, client.MergeFromWithOptimisticLock{})
}

// copyOf is a deep copy: views share memory with the cache, and writes change objects.
func copyOf(o client.Object) client.Object {
	return o.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy has the type of what was copied
}
