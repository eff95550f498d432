//go:build integration

package apps

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

func TestAnAppThatIsDeletedInTheForegroundTakesItsClaimsWithIt(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "foreground")
	stop := w.run(w.config)
	app := w.app("shop", volumeOf("data", 1), volumeOf("keep", 1, preserving), volumeOf("old", 1))
	w.ready(app)
	w.must(w.change(app, func(s *tarnv1.AppSpec) { s.Volumes = s.Volumes[:2] }))
	w.ready(app)
	stop()
	w.must(w.client.Delete(w.ctx, app, client.PropagationPolicy(metav1.DeletePropagationForeground)))
	of := metav1.ObjectMeta{Namespace: w.namespace, Name: ownName(app)} // the garbage collector is faster
	w.must(w.client.Delete(w.ctx, &corev1.ConfigMap{ObjectMeta: of}))
	w.must(w.client.Delete(w.ctx, &appsv1.Deployment{ObjectMeta: of}))
	defer w.run(w.config)()
	w.eventually("letting the App go", func() string {
		w.must(w.client.Get(w.ctx, client.ObjectKeyFromObject(app), app))
		if slices.Contains(app.Finalizers, tarnv1.FinalizerApp) {
			return "it is held"
		}
		return ""
	})
	for volume, want := range map[string]bool{"data": false, "keep": true, "old": false} {
		if claim := w.claim(app, volume); (claim != nil) != want {
			t.Errorf("the claim of volume %s: %v, want that it is there: %t", volume, claim, want)
		}
	}
}

func TestOfAnAppWithoutATopologyOnlyClaimsYoungerThanItGo(t *testing.T) {
	v := deployed(appOf(volumeOf("data", 1)), dying, stopped, func(v *View) {
		v.App.CreationTimestamp = metav1.NewTime(noon)
		v.App.Finalizers = append(v.App.Finalizers, metav1.FinalizerDeleteDependents)
		v.App.Status.Volumes = []tarnv1.AppVolumeStatus{{Name: "data"}}
		v.Config = nil
	})
	v.Deployed = topologyLeft(v)
	if e := endOf(v); len(e.doomed) != 0 || len(e.kept) != 1 {
		t.Errorf("of a claim that is older, %d go and %d are kept", len(e.doomed), len(e.kept))
	}
	v.Claims["paas-app-shop-data"].CreationTimestamp = metav1.NewTime(noon)
	v.Deployed = topologyLeft(v)
	if e := endOf(v); len(e.doomed) != 1 || len(e.kept) != 0 {
		t.Errorf("of a claim that is younger, %d go and %d are kept", len(e.doomed), len(e.kept))
	}
}
