//go:build integration

package cli

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/deploy"
	"tarn.dev/tarn/internal/testkit"
)

func TestInstallBringsTheFinalizersPolicyAndTakesItAwayWhereKubernetesProtects(t *testing.T) {
	own := testkit.OwnAPIServer(t)
	c, config := testkit.Client(t, own), kubeconfig(t, own)
	there := func(kind string) bool {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: kind})
		err := c.Get(t.Context(), client.ObjectKey{Name: deploy.FinalizersPolicy}, o)
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	}
	for _, step := range []struct {
		protection string
		want       bool
	}{{"kubernetes", false}, {"tarn", true}, {"kubernetes", false}, {"kubernetes", false}, {"tarn", true}} { // as it was, for who has the server next
		if out, said, status := run(t, "", "install", "--protection="+step.protection, "--kubeconfig", config); status != 0 {
			t.Fatalf("exit status %d: %s%s", status, out, said)
		}
		for _, kind := range []string{"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"} {
			if there(kind) != step.want {
				t.Errorf("with --protection=%s the %s is there: %t, want %t", step.protection, kind, !step.want, step.want)
			}
		}
	}
	if _, said, status := run(t, "", "install", "--protection=nobody", "--kubeconfig", config); status != 1 || !strings.Contains(said, `--protection "nobody" is unknown; give tarn or kubernetes`) {
		t.Errorf("exit status %d and %q", status, said)
	}
}
