//go:build integration

package kubelet

import (
	"net/http"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestAKubeletIsShownATokenThatIsWorthNothingElse(t *testing.T) {
	config := testkit.APIServer(t)
	admin := testkit.Client(t, config)
	server := rest.CopyConfig(config)
	server.Impersonate.UserName = "system:serviceaccount:tarn-system:tarn-api"
	mine := testkit.Client(t, server)
	var shown []string
	there, authority := kubelet(t, func(w http.ResponseWriter, r *http.Request) {
		shown = append(shown, r.Header.Get("Authorization"))
		_, _ = w.Write([]byte(answer))
	})
	asked := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: authority}}
	asked.Wrap(As(mine, client.ObjectKey{Namespace: "tarn-system", Name: "tarn-stats"}))
	k, err := New(asked, there)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if used, err := k.Used(t.Context(), "red", nil); err != nil || used["data"].Used != 7 {
			t.Errorf("Used = %v, %v", used, err)
		}
		k.known.RemoveAll(func(any) bool { return true })
	}
	if len(shown) != 2 || shown[0] != shown[1] || len(shown[0]) < len("Bearer x") {
		t.Fatalf("it was shown %q, want one token twice", shown)
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: shown[0][len("Bearer "):]}}
	if err := admin.Create(t.Context(), review); err != nil || review.Status.User.Username != "system:serviceaccount:tarn-system:tarn-stats" {
		t.Errorf("it was shown a token of %+v, %v", review.Status, err)
	}
	for _, c := range []struct {
		who, group, verb, resource, part string
		want                             bool
	}{
		{"tarn-stats", "", "get", "nodes", "stats", true},
		{"tarn-stats", "tarn.dev", "create", "apps", "", false},
		{"tarn-stats", "", "list", "persistentvolumeclaims", "", false},
		{"tarn-stats", "", "get", "nodes", "proxy", false},
		{"tarn-api", "", "get", "nodes", "stats", false},
		{"tarn-controller", "", "get", "nodes", "stats", false},
		{"tarn-controller", "", "get", "nodes", "proxy", false},
	} {
		may := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:tarn-system:" + c.who,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: c.group, Verb: c.verb, Resource: c.resource, Subresource: c.part, Namespace: ""},
		}}
		if err := admin.Create(t.Context(), may); err != nil || may.Status.Allowed != c.want {
			t.Errorf("%s may %s %s/%s: %t, %v; want %t", c.who, c.verb, c.resource, c.part, may.Status.Allowed, err, c.want)
		}
	}
	other := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "tarn-system", Name: "tarn-controller"}}
	if err := mine.SubResource("token").Create(t.Context(), other, &authenticationv1.TokenRequest{}); !apierrors.IsForbidden(err) {
		t.Errorf("the server gets a token of the controller: %v", err)
	}
}
