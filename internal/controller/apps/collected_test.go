//go:build integration

package apps

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

func TestAnAppThatIsDeletedInTheForegroundTakesItsClaimsWithIt(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "foreground")
	stop := w.run(w.Config)
	app := w.app("shop", volumeOf("data", 1), volumeOf("keep", 1, preserving), volumeOf("old", 1))
	w.ready(app)
	w.Must(w.change(app, func(s *tarnv1.AppSpec) { s.Volumes = s.Volumes[:2] }))
	w.ready(app)
	stop()
	w.Must(w.Client.Delete(w.Ctx, app, client.PropagationPolicy(metav1.DeletePropagationForeground)))
	// The garbage collector is faster and has finished: nothing that it owns keeps the App.
	w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(app), app))
	w.Must(kube.RemoveFinalizer(w.Ctx, w.Client, app, metav1.FinalizerDeleteDependents))
	of := metav1.ObjectMeta{Namespace: w.namespace, Name: ownName(app)}
	w.Must(w.Client.Delete(w.Ctx, &corev1.ConfigMap{ObjectMeta: of}))
	w.Must(w.Client.Delete(w.Ctx, &appsv1.Deployment{ObjectMeta: of}))
	defer w.run(w.Config)()
	w.Eventually("letting the App go", func() string {
		if err := w.Client.Get(w.Ctx, client.ObjectKeyFromObject(app), app); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("%v, %+v", err, app.Status)
		}
		return ""
	})
	for volume, want := range map[string]bool{"data": false, "keep": true, "old": false} {
		if claim := w.claim(app, volume); (claim != nil) != want {
			t.Errorf("the claim of volume %s: %v, want that it is there: %t", volume, claim, want)
		}
	}
}

func TestOfAnAppWithoutATopologyOnlyClaimsMadeForItGo(t *testing.T) {
	v := deployed(appOf(volumeOf("data", 1)), dying, stopped, func(v *View) { v.Config = nil })
	v.Deployed = topologyLeft(v)
	if e := endOf(v); len(e.doomed) != 1 || len(e.kept) != 0 {
		t.Errorf("of a claim that was made for it, %d go and %d are kept", len(e.doomed), len(e.kept))
	}
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim){
		"made for an earlier App":  func(claim *corev1.PersistentVolumeClaim) { claim.Annotations[tarnv1.AnnotationMadeFor] = "earlier" },
		"made by nobody knows who": func(claim *corev1.PersistentVolumeClaim) { claim.Annotations = nil },
		"to be preserved":          func(claim *corev1.PersistentVolumeClaim) { claim.Annotations[tarnv1.AnnotationPreserve] = preserveYes },
	} {
		v := deployed(appOf(), dying, stopped, bound(newClaim(viewOf(appOf()), ptr.To(volumeOf("data", 1))), change), func(v *View) { v.Config = nil })
		v.Deployed = topologyLeft(v)
		if e := endOf(v); len(e.doomed) != 0 || len(e.kept) != 1 {
			t.Errorf("of a claim %s, %d go and %d are kept", name, len(e.doomed), len(e.kept))
		}
	}
}
