package pool

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"tarn.dev/tarn/internal/kube"
)

// filling are the filler claims of a set, as many as are made at once.
func filling(v *View) []Action {
	return order(v, fillingAtOnce)
}

func TestWritesAtOnceAreAllDoneAndAllFailuresTold(t *testing.T) {
	v := view(set(fillingAtOnce, fillingAtOnce))
	isRefused := func(name string) bool { return strings.HasSuffix(name, "-3") || strings.HasSuffix(name, "-7") }
	store := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if isRefused(o.GetName()) {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, o.GetName(), errors.New("exceeded quota"))
			}
			return c.Create(ctx, o, options...)
		},
	}).Build()
	r := &reconciler{client: store}
	for range 2 { // what is there already is no failure
		v.Refused = ""
		err := r.apply(t.Context(), v, filling(v))
		prefix := fillerPrefix(v.Set.UID)
		if err == nil || !strings.Contains(err.Error(), prefix+"3") || !strings.Contains(err.Error(), prefix+"7") || strings.Contains(err.Error(), prefix+"4") {
			t.Errorf("got %v, want what became of claims 3 and 7", err)
		}
		if !strings.Contains(v.Refused, prefix+"3") {
			t.Errorf("the view has %q, want the first refusal", v.Refused)
		}
	}
	claims := &corev1.PersistentVolumeClaimList{}
	if err := store.List(t.Context(), claims); err != nil || len(claims.Items) != fillingAtOnce-2 {
		t.Errorf("%d claims are there (%v), want all but two of %d", len(claims.Items), err, fillingAtOnce)
	}
}

func TestAWriteThatPanicsEndsTheLookAndNotTheProcess(t *testing.T) {
	store := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { panic("a fault") },
	}).Build()
	v := view(set(2, 2))
	if err := (&reconciler{client: store}).apply(t.Context(), v, filling(v)); err == nil || !strings.Contains(err.Error(), "doing pool.Order: a fault") {
		t.Errorf("got %v, want what went wrong", err)
	}
}
