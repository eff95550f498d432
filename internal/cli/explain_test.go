package cli

import (
	"errors"
	"strings"
	"testing"

	"tarn.dev/tarn/internal/cli/explain"
)

func TestWhatIsToBeExplainedIsNamedAsForKubectl(t *testing.T) {
	for _, c := range []struct {
		kind, name, namespace string
		want                  explain.Object
		wantError             string
	}{
		{"claim", "shop/data", "", explain.Object{Kind: explain.Claim, Namespace: "shop", Name: "data"}, ""},
		{"PVC", "data", "shop", explain.Object{Kind: explain.Claim, Namespace: "shop", Name: "data"}, ""},
		{"pod", "web", "", explain.Object{Kind: explain.Pod, Namespace: "of-the-context", Name: "web"}, ""},
		{"pod", "shop/web", "shop", explain.Object{Kind: explain.Pod, Namespace: "shop", Name: "web"}, ""},
		{"app", "shop/web", "", explain.Object{Kind: explain.App, Namespace: "shop", Name: "web"}, ""},
		{"pv", "pvc-1", "", explain.Object{Kind: explain.Volume, Name: "pvc-1"}, ""},
		{"pod", "shop/web", "other", explain.Object{}, "name different namespaces"},
		{"volume", "shop/data", "", explain.Object{}, "has no namespace"},
		{"volume", "data", "shop", explain.Object{}, "has no namespace"},
		{"claim", "a/b/c", "", explain.Object{}, "is not a name"},
		{"claim", "shop/", "", explain.Object{}, "is not a name"},
		{"claim", "/data", "", explain.Object{}, "is not a name"},
		{"node", "n1", "", explain.Object{}, `kind "node" is unknown; give app, claim, volume, pod or pvset`},
	} {
		got, err := explained(c.kind, c.name, c.namespace, func() (string, error) { return "of-the-context", nil })
		switch {
		case c.wantError == "" && (err != nil || got != c.want):
			t.Errorf("%s %s in %q: got %v, %v; want %v", c.kind, c.name, c.namespace, got, err, c.want)
		case c.wantError != "" && (err == nil || !strings.Contains(err.Error(), c.wantError)):
			t.Errorf("%s %s in %q: got %v, want an error with %q", c.kind, c.name, c.namespace, err, c.wantError)
		}
	}
	broken := errors.New("no kubeconfig")
	if _, err := explained("pod", "web", "", func() (string, error) { return "", broken }); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}
