//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
)

// part is the case within one of its subtests.
func (s *scenario) part(t *testing.T) *scenario {
	return &scenario{t: t, ctx: s.ctx, name: s.name, step: s.step}
}

// another makes a second provisioner of the case and a class for it. It gives the name of both.
func (s *scenario) another(suffix string, sections fields, edits ...func(spec fields)) string {
	s.t.Helper()
	p := s.provisioner(sections)
	p.SetName(s.name + suffix)
	for _, edit := range edits {
		edit(p.Object["spec"].(fields))
	}
	s.create(p)
	// It disappears with its last volume, and the cleanup of the case waits for that.
	s.t.Cleanup(func() { s.deleteIfThere(&pav.PavProvisioner{ObjectMeta: named(s.name + suffix)}) })
	return s.classWith(suffix, s.name+suffix)
}

// since fails the case unless the last link of an object states since when the object is in its
// state, as the object itself says.
func (s *scenario) since(e explanation, kind, name string, want metav1.Time) {
	s.t.Helper()
	for i := len(e.Links) - 1; i >= 0; i-- {
		l := e.Links[i]
		if l.Object.Kind != kind || l.Object.Name != name {
			continue
		}
		if l.Since == nil || want.IsZero() || !l.Since.Equal(want.Time) {
			s.t.Errorf("%s %s is %q since %v, want since %s", kind, name, l.State, l.Since, want.UTC().Format(time.RFC3339))
		}
		return
	}
	s.t.Errorf("of %s %s nothing is said: %+v", kind, name, e.Links)
}

// goesOn is explains until the link of an object also says when work continues, with every text of
// next.
func (s *scenario) goesOn(kind, name, of string, next []string, texts ...string) explanation {
	s.t.Helper()
	what := fmt.Sprintf("the verdict to have %q, and the %s to go on %q", texts, of, next)
	return s.explainsThat(os.Getenv("KUBECONFIG"), kind, name, what, func(e explanation) bool {
		return containsAll(e.Verdict, texts) && slices.ContainsFunc(e.Links, func(l link) bool { return l.Object.Kind == of && containsAll(l.Next, next) })
	})
}

// read gives the present object from the API server.
func read[T client.Object](s *scenario, o T) T {
	s.t.Helper()
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(o), o); err != nil {
		s.t.Fatalf("reading %s: %v", describe(o), err)
	}
	return o
}

// unhold removes every finalizer of an object, as an administrator does to delete it by force.
func (s *scenario) unhold(o client.Object) {
	s.t.Helper()
	if err := client.IgnoreNotFound(suite.live.Patch(s.ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))); err != nil {
		s.t.Fatal(err)
	}
}
