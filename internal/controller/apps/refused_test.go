//go:build integration

package apps

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

func TestTheGrowthOfAVolumeThatIsRefusedIsInTheWayOfNoOther(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "refused")
	stop := w.run(w.Config)
	app := w.app("shop", volumeOf("a", 1), volumeOf("b", 1), volumeOf("c", 1))
	w.ready(app)
	stop()
	resource := corev1.Resource("persistentvolumeclaims")
	quota := func(name string) error { return apierrors.NewForbidden(resource, name, errors.New("exceeded quota")) }
	late := func(name string) error { return apierrors.NewConflict(resource, name, errors.New("changed since")) }
	size := int64(1)
	for name, c := range map[string]struct {
		fails map[string]func(name string) error
		// refused are the volumes whose rejection is reported; none if the App is not Refused.
		refused []string
	}{
		"the first":                         {map[string]func(string) error{"a": quota}, []string{"a"}},
		"the first and the last":            {map[string]func(string) error{"a": quota, "c": quota}, []string{"a", "c"}},
		"one, and another is still unknown": {map[string]func(string) error{"a": quota, "c": late}, nil},
	} {
		for _, volume := range []string{"a", "b", "c"} { // earlier growth may still be in progress
			w.Eventually("volume "+volume+" is as large as its claim asks for", func() string {
				claim := w.claim(app, volume)
				if is := claim.Status.Capacity[corev1.ResourceStorage]; is.Value() < requested(claim) {
					return "it is " + is.String()
				}
				return ""
			})
		}
		size++
		w.Must(w.change(app, func(s *tarnv1.AppSpec) {
			for i := range s.Volumes {
				s.Volumes[i].SizeGi = size
			}
		}))
		told := w.reconcileWhere(app, c.fails)
		for _, volume := range []string{"a", "b", "c"} {
			grown := c.fails[volume] == nil
			if now := requested(w.claim(app, volume)); (now == size*gi) != grown {
				t.Errorf("%s: volume %s asks for %d GiB, want that it grows to %d: %t", name, volume, now/gi, size, grown)
			}
			if strings.Contains(told, "claim paas-app-shop-"+volume+" of volume") != grown {
				t.Errorf("%s: told is %q, want that volume %s grows: %t", name, told, volume, grown)
			}
		}
		is := meta.FindStatusCondition(app.Status.Conditions, tarnv1.ConditionDeployed)
		if (is.Reason == tarnv1.ReasonRefused) != (c.refused != nil) || app.Status.ObservedGeneration != app.Generation {
			t.Errorf("%s: generation %d is told to be %s: %s", name, app.Status.ObservedGeneration, is.Reason, is.Message)
		}
		for _, volume := range c.refused {
			if !strings.Contains(is.Message, `"paas-app-shop-`+volume+`" is forbidden: exceeded quota`) {
				t.Errorf("%s: it says %q, and nothing of volume %s", name, is.Message, volume)
			}
		}
	}
}

// reconcileWhere reconciles an App once while writes to the claims of some volumes fail. It
// returns the Events of that reconcile.
func (w *world) reconcileWhere(app *tarnv1.App, fails map[string]func(name string) error) string {
	w.T.Helper()
	failing := interceptor.NewClient(w.Client, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
		if fail := fails[o.GetLabels()[tarnv1.LabelAppVolume]]; fail != nil {
			return fail(o.GetName())
		}
		return c.Patch(ctx, o, patch, options...)
	}})
	recorder := events.NewFakeRecorder(100)
	r := &reconciler{client: failing, reader: w.Client, runner: action.Runner{Client: failing, Events: recorder}, clock: clock.RealClock{}, classes: appspec.DefaultClasses}
	_, _ = r.Reconcile(w.Ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(app)}) // failures are retried
	close(recorder.Events)
	var told []string
	for event := range recorder.Events {
		told = append(told, event)
	}
	w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(app), app))
	return strings.Join(told, "\n")
}
