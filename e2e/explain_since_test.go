//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

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
