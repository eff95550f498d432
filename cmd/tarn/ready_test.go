//go:build integration

package main

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"tarn.dev/tarn/internal/cli"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

// filled stands for a cache that is, or is not.
type filled bool

func (f filled) WaitForCacheSync(context.Context) bool { return bool(f) }

func TestAControllerIsReadyWhenItsCachesAreFilledAndOneLeads(t *testing.T) {
	c := testkit.Client(t, testkit.OwnAPIServer(t)) // another test may lead in a shared one
	waiting, won := make(chan struct{}), make(chan struct{})
	close(won)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: cli.Namespace, Name: kube.ControllerName}}
	for _, step := range []struct {
		name    string
		before  func() error
		caches  filled
		elected chan struct{}
		want    string
	}{
		{"it leads, with empty caches", nil, false, won, "not filled"},
		{"it leads", nil, true, won, ""},
		{"nobody ever led", nil, true, waiting, "no controller leads"},
		{"another leads", func() error {
			lease.Spec.HolderIdentity = ptr.To("another")
			return c.Create(t.Context(), lease)
		}, true, waiting, ""},
		{"the other gave it back", func() error {
			lease.Spec.HolderIdentity = ptr.To("")
			return c.Update(t.Context(), lease)
		}, true, waiting, "no controller leads"},
	} {
		if step.before != nil {
			if err := step.before(); err != nil {
				t.Fatal(err)
			}
		}
		err := ready(step.caches, c, step.elected)(httptest.NewRequest("GET", "/readyz", nil))
		if step.want == "" && err != nil || step.want != "" && (err == nil || !strings.Contains(err.Error(), step.want)) {
			t.Errorf("%s: %v, want %q", step.name, err, step.want)
		}
	}
}
