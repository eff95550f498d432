//go:build integration

package apps

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	appspec "tarn.dev/tarn/internal/app/spec"
	"tarn.dev/tarn/internal/testkit"
)

func TestAnAppMadeAnewIsNotRefusedForWhatTheCacheStillShows(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "anew")
	earlier := appOf()
	earlier.Namespace, earlier.UID = w.namespace, "earlier"
	left := newConfig(earlier, topology{}.text())
	app := w.app("shop", volumeOf("data", 1))
	behind := interceptor.NewClient(w.Client, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
		if config, is := o.(*corev1.ConfigMap); is {
			left.DeepCopyInto(config)
			return nil
		}
		return c.Get(ctx, key, o, options...)
	}})
	r := &reconciler{client: behind, reader: w.Client, runner: action.Runner{Client: behind, Events: events.NewFakeRecorder(100)}, clock: clock.RealClock{}, classes: appspec.DefaultClasses}
	if _, err := r.Reconcile(w.Ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(app)}); err != nil {
		t.Fatal(err)
	}
	w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(app), app))
	if is := meta.FindStatusCondition(app.Status.Conditions, tarnv1.ConditionDeployed); is == nil || is.Reason == tarnv1.ReasonRefused {
		t.Errorf("it says %+v, want that it is not refused", is)
	}
	if w.claim(app, "data") == nil {
		t.Error("its claim is not made")
	}
}
