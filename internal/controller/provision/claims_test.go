package provision

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
)

func TestAClaimOfTheOldClassAnnotationIsServed(t *testing.T) {
	claim := testkit.Claim("ns", "data", "u1", "prov")
	claim.Spec.StorageClassName = nil
	claim.Annotations[corev1.BetaStorageClassAnnotation] = "prov"
	w := newWorld(t, claim, testkit.Class("prov"), testkit.Provisioner("prov"))
	w.look("u1")
	record := w.record("u1")
	if record == nil || !strings.Contains(string(record.Spec.ClassSnapshot.Raw), `"name":"prov"`) {
		t.Fatalf("got record %+v, want one with the class", record)
	}
}

func TestAPodThatTheAPIServerRefusesIsToldToItsClaim(t *testing.T) {
	claim := testkit.Claim("ns", "data", "u1", "prov")
	w := newWorld(t, claim, testkit.Class("prov"), testkit.Provisioner("prov"))
	refusing := interceptor.NewClient(w.store, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if _, ok := o.(*corev1.Pod); ok {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, o.GetName(), errors.New("exceeded quota: tight"))
			}
			return c.Create(ctx, o, opts...)
		},
	})
	w.r.client, w.r.steps = refusing, &steppod.Steps{Client: refusing, Reader: w.store}
	for range 4 {
		w.look("u1")
	}
	var told string
	for len(w.events.Events) > 0 {
		told += <-w.events.Events + "\n"
	}
	if !strings.Contains(told, "Warning ProvisioningFailed") || !strings.Contains(told, "the API server rejected the creation pod") || !strings.Contains(told, "exceeded quota: tight") {
		t.Errorf("told:\n%s\nwant the words of the API server", told)
	}
	if record := w.record("u1"); record == nil || record.Status.Phase == tarnv1.VolumeCreating || record.Status.NextAttemptTime == nil {
		t.Errorf("got record %+v, want one that is tried again", record)
	}
}
