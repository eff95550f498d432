package service

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appplan "tarn.dev/tarn/internal/app/plan"
)

// DefaultVerdict is how long a resize waits to hear whether Kubernetes accepts it. The controller
// asks Kubernetes within some hundredths of a second, or within seconds on an overloaded machine.
// If no controller runs, the call still returns after this time.
const DefaultVerdict = 10 * time.Second

// heard waits until the controller has asked Kubernetes for the new size of a volume. It returns
// why Kubernetes rejected the size, for instance by a quota. It returns an empty string if the size
// is accepted, if no answer comes in time, or if the application was changed meanwhile. Then the
// events show the progress.
func (c *Calls) heard(ctx context.Context, asked *tarnv1.App, volume string, sizeGi int64) string {
	if c.Verdict == 0 {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, c.Verdict)
	defer cancel()
	changes, err := c.Client.Watch(ctx, &tarnv1.AppList{}, client.InNamespace(asked.Namespace), client.MatchingFields{"metadata.name": asked.Name},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: asked.ResourceVersion}})
	if err != nil {
		return "" // the size is requested already; the events show the result
	}
	defer changes.Stop()
	for change := range changes.ResultChan() {
		app, is := change.Object.(*tarnv1.App)
		if !is || change.Type == watch.Deleted || app.UID != asked.UID || app.Generation != asked.Generation {
			return ""
		}
		if refused, known := verdict(app, volume, sizeGi); known {
			return refused
		}
	}
	return ""
}

// verdict reads from the status whether a volume's new size was rejected, and why. refused is empty
// for an accepted size. known says whether the controller has decided. An accepted size counts even
// if other parts of the application are rejected.
func verdict(app *tarnv1.App, volume string, sizeGi int64) (refused string, known bool) {
	if app.Status.ObservedGeneration != app.Generation {
		return "", false
	}
	taken := slices.ContainsFunc(app.Status.Volumes, func(v tarnv1.AppVolumeStatus) bool {
		return v.Name == volume && v.Requested != nil && v.Requested.Value() >= sizeGi<<30
	})
	deployed := meta.FindStatusCondition(app.Status.Conditions, tarnv1.ConditionDeployed)
	switch {
	case taken:
		return "", true
	case deployed == nil:
		return "", false
	case deployed.Reason == tarnv1.ReasonRefused:
		return deployed.Message, true
	}
	return "", deployed.Status == metav1.ConditionTrue
}

// takeBack withdraws a size that Kubernetes has rejected. Otherwise the volume would grow when the
// quota is raised one day. It changes nothing if the application was changed since.
func (c *Calls) takeBack(ctx context.Context, asked *tarnv1.App, volume string, beforeGi int64) {
	// If this fails, the next deploy or resize withdraws the size.
	_ = c.change(ctx, asked.Namespace, asked.Name, nil, func(w *appplan.World) error {
		if w.App.UID != asked.UID || w.App.Generation != asked.Generation {
			return nil
		}
		for i := range w.App.Spec.Volumes {
			if v := &w.App.Spec.Volumes[i]; v.Name == volume {
				v.SizeGi = beforeGi
			}
		}
		return nil
	}, nil)
}
