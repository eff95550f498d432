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

// DefaultVerdict is how long a resize waits to hear whether Kubernetes takes it. The
// controller asks within some hundredths of a second, on a machine that is overrun within
// seconds; where none runs the answer does not wait for it.
const DefaultVerdict = 10 * time.Second

// heard waits until the controller has had Kubernetes take the size of a volume, and
// gives why it was refused, as by a quota. It is empty where nothing is heard in time, or
// somebody changed the application meanwhile: how it goes on is in the events.
func (c *Calls) heard(ctx context.Context, asked *tarnv1.App, volume string, sizeGi int64) string {
	if c.Verdict == 0 {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, c.Verdict)
	defer cancel()
	changes, err := c.Client.Watch(ctx, &tarnv1.AppList{}, client.InNamespace(asked.Namespace), client.MatchingFields{"metadata.name": asked.Name},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: asked.ResourceVersion}})
	if err != nil {
		return "" // the size is asked for; who wants to know more follows the events
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

// verdict is what the controller says of a size that a volume was asked to have: why it
// is refused, empty where it is taken, and whether it is known yet. A size that is taken
// counts, whatever else of the application is refused.
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

// takeBack makes a size that Kubernetes refused be asked for no more, so that it is not
// what happens when a quota is raised one day. Whatever has changed since stays.
func (c *Calls) takeBack(ctx context.Context, asked *tarnv1.App, volume string, beforeGi int64) {
	// Where it fails the size is forgotten by the next deploy or resize.
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
