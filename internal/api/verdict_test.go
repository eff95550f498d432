//go:build integration

package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appplan "tarn.dev/tarn/internal/app/plan"
)

// onChange calls do at the next change of application shop.
func (w *world) onChange(namespace string, do func(app *tarnv1.App) error) (wait func()) {
	w.t.Helper()
	return w.when(namespace, func(*tarnv1.App) bool { return true }, do)
}

// when calls do at the next change of application shop that satisfies is.
func (w *world) when(namespace string, is func(app *tarnv1.App) bool, do func(app *tarnv1.App) error) (wait func()) {
	w.t.Helper()
	before := w.app(namespace, "shop")
	changes, err := w.admin.Watch(context.Background(), &tarnv1.AppList{}, client.InNamespace(w.in(namespace)),
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: before.ResourceVersion}})
	if err != nil {
		w.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		defer changes.Stop()
		for change := range changes.ResultChan() {
			if app, ok := change.Object.(*tarnv1.App); ok && change.Type == watch.Modified && app.Name == "shop" && is(app) {
				done <- do(app)
				return
			}
		}
		done <- fmt.Errorf("the watch broke off")
	}()
	return func() {
		w.t.Helper()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	}
}

// tells writes the status that the controller writes after it has reconciled a spec.
func (w *world) tells(app *tarnv1.App, deployed metav1.ConditionStatus, reason, message, requested string) error {
	app.Status.ObservedGeneration = app.Generation
	app.Status.Conditions = []metav1.Condition{{
		Type: tarnv1.ConditionDeployed, Status: deployed, Reason: reason, Message: message, ObservedGeneration: app.Generation, LastTransitionTime: metav1.Now(),
	}}
	size := resource.MustParse(requested)
	app.Status.Volumes = []tarnv1.AppVolumeStatus{{Name: "data", ClaimName: "paas-app-shop-data", Phase: tarnv1.AppVolumeBound, Requested: &size}}
	return w.admin.Status().Update(context.Background(), app)
}

// growing returns a world in which a tenant's app shop has an expandable volume of 10 GiB. A resize
// there waits for verdict.
func growing(t *testing.T, tenant string, verdict time.Duration) (*world, *visitor) {
	t.Helper()
	w := newWorld(t, func(o *Options) { o.Limits.Verdict = verdict })
	w.class("grows", true)
	c := w.deployed(tenant, shop)
	w.claim(tenant, "shop", "data", 10, corev1.ReadWriteOnce, "grows")
	return w, c
}

func TestAResizeHearsWhatKubernetesSaysToIt(t *testing.T) {
	const forbidden = `writing claim red/paas-app-shop-data: persistentvolumeclaims "paas-app-shop-data" is forbidden: exceeded quota: small`
	w, c := growing(t, "heard", time.Minute) // it is heard long before
	resize := func(do func(app *tarnv1.App) error) *reply {
		wait := w.onChange("heard", do)
		defer wait()
		return c.put("/v1/apps/shop/volumes/data", `{"new_size_gi": 20}`)
	}
	size := func() int64 { return w.app("heard", "shop").Spec.Volumes[0].SizeGi }

	resize(func(app *tarnv1.App) error {
		return w.tells(app, metav1.ConditionFalse, tarnv1.ReasonRefused, forbidden, "10Gi")
	}).
		fails(http.StatusInternalServerError, appplan.Internal, "resizing volume 'data' of app 'shop': "+forbidden)
	if got := size(); got != 10 {
		t.Errorf("after a refusal %d GiB are asked for, want the 10 from before", got)
	}

	resize(func(app *tarnv1.App) error { // another deploy comes while this one is applied
		app.Spec.Image = "shop:2"
		if err := w.admin.Update(context.Background(), app); err != nil {
			return err
		}
		return w.tells(app, metav1.ConditionFalse, tarnv1.ReasonRefused, forbidden, "10Gi")
	}).want(http.StatusOK)
	if got := size(); got != 20 {
		t.Errorf("what another deploy has built on was taken back: %d GiB", got)
	}

	app := w.app("heard", "shop")
	app.Spec.Volumes[0].SizeGi = 10
	if err := w.admin.Update(context.Background(), app); err != nil {
		t.Fatal(err)
	}
	r := resize(func(app *tarnv1.App) error {
		return w.tells(app, metav1.ConditionTrue, tarnv1.ReasonDeployed, "", "20Gi")
	}).want(http.StatusOK)
	if !strings.Contains(string(r.body), `"size_gi":20,"status":"Resizing"`) || size() != 20 {
		t.Errorf("a resize that is carried out answered %s, and %d GiB are asked for", r.body, size())
	}
}

func TestAResizeIsAnsweredByWhatBecomesOfItsOwnVolume(t *testing.T) {
	w, c := growing(t, "beside", time.Minute)                // it is heard long before
	defer w.onChange("beside", func(app *tarnv1.App) error { // data grows, media is beyond a quota
		return w.tells(app, metav1.ConditionFalse, tarnv1.ReasonRefused, `writing claim red/paas-app-shop-media: exceeded quota: small`, "20Gi")
	})()
	c.put("/v1/apps/shop/volumes/data", `{"new_size_gi": 20}`).want(http.StatusOK)
	if got := w.app("beside", "shop").Spec.Volumes[0].SizeGi; got != 20 {
		t.Errorf("a size that is carried out was taken back: %d GiB are asked for", got)
	}
}

func TestASizeThatWasRefusedIsHeardAnewWhenItIsAskedForAgain(t *testing.T) {
	const forbidden = "exceeded quota: small"
	w, c := growing(t, "again", time.Minute) // it is heard long before
	c.deploy("shop", strings.Replace(shop, `"10Gi"`, `"20Gi"`, 1)).want(http.StatusAccepted)
	if err := w.tells(w.app("again", "shop"), metav1.ConditionFalse, tarnv1.ReasonRefused, forbidden, "10Gi"); err != nil {
		t.Fatal(err)
	}
	before := w.app("again", "shop")
	resize := func(do func(app *tarnv1.App) error) *reply {
		defer w.when("again", func(app *tarnv1.App) bool {
			return app.Spec.Volumes[0].SizeGi == 20 && app.Generation > before.Generation
		}, do)()
		return c.put("/v1/apps/shop/volumes/data", `{"new_size_gi": 20}`)
	}
	resize(func(app *tarnv1.App) error {
		return w.tells(app, metav1.ConditionFalse, tarnv1.ReasonRefused, forbidden, "10Gi")
	}).fails(http.StatusInternalServerError, appplan.Internal, "resizing volume 'data' of app 'shop': "+forbidden)
	if got := w.app("again", "shop").Spec.Volumes[0].SizeGi; got != 10 {
		t.Errorf("after another refusal %d GiB are asked for, want the 10 that the claim has", got)
	}

	c.deploy("shop", strings.Replace(shop, `"10Gi"`, `"20Gi"`, 1)).want(http.StatusAccepted)
	if err := w.tells(w.app("again", "shop"), metav1.ConditionFalse, tarnv1.ReasonRefused, forbidden, "10Gi"); err != nil {
		t.Fatal(err)
	}
	before = w.app("again", "shop")
	resize(func(app *tarnv1.App) error { // the quota was raised
		return w.tells(app, metav1.ConditionTrue, tarnv1.ReasonDeployed, "", "20Gi")
	}).want(http.StatusOK)
	if got := w.app("again", "shop").Spec.Volumes[0].SizeGi; got != 20 {
		t.Errorf("%d GiB are asked for, want 20", got)
	}
}

func TestAResizeDoesNotWaitForAControllerThatDoesNotRun(t *testing.T) {
	w, c := growing(t, "unheard", 50*time.Millisecond)
	c.put("/v1/apps/shop/volumes/data", `{"new_size_gi": 20}`).want(http.StatusOK)
	if got := w.app("unheard", "shop").Spec.Volumes[0].SizeGi; got != 20 {
		t.Errorf("%d GiB are asked for, want 20", got)
	}
}
