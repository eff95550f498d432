package apps

import (
	"context"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
)

// eventAction is the action that Events name.
const eventAction = "Deploy"

// +kubebuilder:rbac:groups=tarn.dev,resources=apps,verbs=patch
// +kubebuilder:rbac:groups=tarn.dev,resources=apps/status,verbs=patch
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=create;update;delete
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=create;update;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// The controller's own actions. Each updates the view, for the status that follows.
type (
	// Hold adds the finalizer to the App.
	Hold struct{ action.Own }
	// LetGo removes the finalizer from the App.
	LetGo struct{ action.Own }
	// WriteTopology records in the ConfigMap what was deployed.
	WriteTopology struct {
		action.Own
		Topology topology
	}
	// MakeClaim creates a claim.
	MakeClaim struct {
		action.Own
		Claim *corev1.PersistentVolumeClaim
	}
	// MarkClaim records on a claim whether it is to outlive its App.
	MarkClaim struct {
		action.Own
		Claim    *corev1.PersistentVolumeClaim
		Preserve bool
	}
	// GrowClaim makes a claim request more bytes.
	GrowClaim struct {
		action.Own
		Claim *corev1.PersistentVolumeClaim
		Bytes int64
	}
	// Run creates or corrects the Deployment.
	Run struct {
		action.Own
		Deployment *appsv1.Deployment
	}
	// Tell emits an Event of type Normal about a claim of the App, by its name. With Logged it
	// is also logged, so that it can be found after the App is gone.
	Tell struct {
		action.Own
		Reason, Note, Claim string
		Logged              bool
	}
)

// tell creates a Tell.
func tell(claim, reason, format string, args ...any) Tell {
	return Tell{Reason: reason, Note: fmt.Sprintf(format, args...), Claim: claim}
}

// logged returns the Tell with Logged set.
func (t Tell) logged() Tell { t.Logged = true; return t }

// warn emits a Warning about the App.
func (v *View) warn(reason, note string) action.Action {
	return action.Emit{About: v.App, Type: corev1.EventTypeWarning, Reason: reason, Doing: eventAction, Note: note}
}

// stop deletes the Deployment, which exists until its pods are gone.
func stop(v *View) action.Action {
	return action.Delete{Object: v.Deployment, Propagation: metav1.DeletePropagationForeground}
}

// begin begins the writes of one reconcile.
func (r *reconciler) begin(v *View) *action.Run {
	runner := r.runner
	runner.Own = func(ctx context.Context, a action.Action) (client.Object, error) { return r.own(ctx, v, a) }
	return runner.Begin()
}

// apply carries out a plan up to the first error. If the API server rejects the growth of one
// volume, for example by a quota, the other actions still follow. apply notes in the view what
// the API server rejected.
func apply(ctx context.Context, run *action.Run, v *View, actions []action.Action) error {
	var refused []error
	skip := false
	for _, a := range actions {
		if _, tells := a.(Tell); tells && skip {
			continue // of the rejected growth before it
		}
		err := run.Do(ctx, a)
		_, grows := a.(GrowClaim)
		switch skip = err != nil && grows && kube.IsRefusal(err); {
		case skip:
			refused = append(refused, err)
		case err != nil && kube.IsRefusal(err):
			return v.refuse(append(refused, err))
		case err != nil:
			// Not everything was tried, so rejections are reported by a later reconcile.
			return errors.Join(append(refused, err)...)
		}
	}
	return v.refuse(refused)
}

// refuse notes in the view what the API server rejected, and returns it as one error.
func (v *View) refuse(refused []error) error {
	if v.Refused == "" {
		words := make([]string, len(refused))
		for i, err := range refused {
			words[i] = err.Error()
		}
		v.Refused = strings.Join(words, "; ")
	}
	return errors.Join(refused...)
}

// own does the controller's own actions.
func (r *reconciler) own(ctx context.Context, v *View, a action.Action) (client.Object, error) {
	switch a := a.(type) {
	case Hold:
		return v.App, kube.AddFinalizer(ctx, r.client, v.App, tarnv1.FinalizerApp)
	case LetGo:
		return v.App, kube.RemoveFinalizer(ctx, r.client, v.App, tarnv1.FinalizerApp)
	case WriteTopology:
		return nil, r.writeTopology(ctx, v, a.Topology)
	case MakeClaim:
		return nil, r.makeClaim(ctx, v, a.Claim.DeepCopy())
	case MarkClaim, GrowClaim:
		return nil, r.changeClaim(ctx, v, a)
	case Run:
		return nil, r.run(ctx, v, a.Deployment)
	case Tell:
		return nil, r.tell(ctx, v, a)
	}
	return nil, fmt.Errorf("apps: unknown action %T", a)
}

// tell names the claim besides the App, because Kubernetes keeps only the first of Events that
// differ only in their text.
func (r *reconciler) tell(ctx context.Context, v *View, a Tell) error {
	event := action.Emit{About: v.App, Type: corev1.EventTypeNormal, Reason: a.Reason, Doing: eventAction, Note: a.Note}
	if claim := v.Claims[a.Claim]; claim != nil {
		event.Related = claim
		if a.Logged {
			log.FromContext(ctx).Info(a.Note, "claim", claim.Name, "uid", claim.UID, "volume", claim.Spec.VolumeName)
		}
	}
	return r.runner.Do(ctx, event)
}

// writeTopology creates the ConfigMap, or updates it if it is unchanged since it was read.
func (r *reconciler) writeTopology(ctx context.Context, v *View, t topology) error {
	config := newConfig(v.App, t.text())
	if v.Config == nil {
		made := config.DeepCopy()
		created, err := r.create(ctx, v, "ConfigMap", made)
		if err != nil {
			return err
		}
		if v.Config = made; created {
			v.Deployed = t
			return nil
		}
	}
	config.ResourceVersion, config.UID = v.Config.ResourceVersion, v.Config.UID
	if err := r.client.Update(ctx, config); err != nil {
		return fmt.Errorf("writing ConfigMap %s/%s: %w", config.Namespace, config.Name, err)
	}
	v.Config, v.Deployed = config, t
	return nil
}

// makeClaim creates a claim, after it has read the App again. A claim has no owner, so the
// claim of a deleted App would stay for ever.
func (r *reconciler) makeClaim(ctx context.Context, v *View, claim *corev1.PersistentVolumeClaim) error {
	live, err := kube.Get(ctx, r.reader, client.ObjectKeyFromObject(v.App), &tarnv1.App{})
	if err != nil {
		return err
	}
	if live == nil || live.UID != v.App.UID || live.DeletionTimestamp != nil {
		return fmt.Errorf("creating claim %s/%s: %w", claim.Namespace, claim.Name, kube.ErrStale)
	}
	if err := r.client.Create(ctx, claim); err != nil {
		return fmt.Errorf("creating claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	v.Claims[claim.Name] = claim
	return nil
}

// changeClaim writes the two things of a claim that an App decides repeatedly: whether it is
// preserved, and its size.
func (r *reconciler) changeClaim(ctx context.Context, v *View, a action.Action) error {
	var base, claim *corev1.PersistentVolumeClaim
	switch a := a.(type) {
	case MarkClaim:
		base, claim = v.Claims[a.Claim.Name], v.Claims[a.Claim.Name].DeepCopy()
		if !a.Preserve {
			delete(claim.Annotations, tarnv1.AnnotationPreserve)
			break
		}
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, tarnv1.AnnotationPreserve, preserveYes)
	case GrowClaim:
		base, claim = v.Claims[a.Claim.Name], v.Claims[a.Claim.Name].DeepCopy()
		claim.Spec.Resources.Requests[corev1.ResourceStorage] = storage(a.Bytes)[corev1.ResourceStorage]
	}
	if err := r.client.Patch(ctx, claim, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("writing claim %s/%s: %w", base.Namespace, base.Name, err)
	}
	v.Claims[claim.Name] = claim
	return nil
}

// run creates the Deployment, or updates it if it is unchanged since it was read.
func (r *reconciler) run(ctx context.Context, v *View, wanted *appsv1.Deployment) error {
	if v.Deployment == nil {
		made := wanted.DeepCopy()
		created, err := r.create(ctx, v, "Deployment", made)
		if err != nil {
			return err
		}
		if v.Deployment = made; created {
			return nil
		}
	}
	next := v.Deployment.DeepCopy()
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, annDeployed, wanted.Annotations[annDeployed])
	metav1.SetMetaDataLabel(&next.ObjectMeta, tarnv1.LabelApp, v.App.Name)
	next.Spec = wanted.Spec
	if err := r.client.Update(ctx, next); err != nil {
		return fmt.Errorf("writing Deployment %s/%s: %w", next.Namespace, next.Name, err)
	}
	v.Deployment = next
	return nil
}

// create creates an object, and reports whether it did. If the name exists, o becomes that
// object, read from the API server: the cache was stale, or the object has lost its label. If
// that object is not the App's, create notes a rejection and returns an error.
func (r *reconciler) create(ctx context.Context, v *View, kind string, o client.Object) (created bool, err error) {
	err = r.client.Create(ctx, o)
	if err == nil {
		return true, nil
	}
	err = fmt.Errorf("creating %s %s/%s: %w", kind, o.GetNamespace(), o.GetName(), err)
	if !apierrors.IsAlreadyExists(err) {
		return false, err
	}
	if failed := r.reader.Get(ctx, client.ObjectKeyFromObject(o), o); failed != nil {
		return false, fmt.Errorf("reading %s %s/%s: %w", kind, o.GetNamespace(), o.GetName(), failed)
	}
	if !metav1.IsControlledBy(o, v.App) {
		v.Refused = taken(kind, o.GetName())
		return false, err
	}
	return false, nil
}
