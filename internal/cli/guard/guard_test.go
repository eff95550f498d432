//go:build integration

package guard

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// served returns the status of a guarded page for a token.
func served(t *testing.T, config *rest.Config, token string) int {
	t.Helper()
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	filter, err := New(config, c)
	if err != nil {
		t.Fatal(err)
	}
	page, err := filter(logr.Discard(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	if err != nil {
		t.Fatal(err)
	}
	request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer := httptest.NewRecorder()
	page.ServeHTTP(answer, request)
	return answer.Code
}

func TestOnlyWhoMayGetMetricsGetsThem(t *testing.T) {
	config := testkit.APIServer(t)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Limit)
	defer cancel()
	admin := testkit.Client(t, config)
	tokens := map[string]string{}
	for _, name := range []string{"reader", "stranger"} {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		if err := client.IgnoreAlreadyExists(admin.Create(ctx, account)); err != nil {
			t.Fatal(err)
		}
		request := &authenticationv1.TokenRequest{}
		if err := admin.SubResource("token").Create(ctx, account, request); err != nil {
			t.Fatal(err)
		}
		tokens[name] = request.Status.Token
	}
	for _, o := range []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "reader"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "reader"}},
		},
	} {
		if err := client.IgnoreAlreadyExists(admin.Create(ctx, o)); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Allowed(t, admin, authorizationv1.SubjectAccessReviewSpec{
		User:                  "system:serviceaccount:default:reader",
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"},
	})
	// The guard itself calls the API server with the rights of its process.
	for _, part := range []string{"tarn-controller", "tarn-node"} {
		asking := rest.CopyConfig(config)
		asking.Impersonate.UserName = "system:serviceaccount:tarn-system:" + part
		for _, c := range []struct {
			who, token string
			want       int
		}{
			{"nobody", "", http.StatusUnauthorized},
			{"a liar", "not-a-token", http.StatusUnauthorized},
			{"somebody without the right", tokens["stranger"], http.StatusForbidden},
			{"a reader", tokens["reader"], http.StatusOK},
		} {
			if got := served(t, asking, c.token); got != c.want {
				t.Errorf("%s answers %d to %s, want %d", part, got, c.who, c.want)
			}
		}
	}
	unable := rest.CopyConfig(config)
	unable.Impersonate.UserName = "nobody"
	if got := served(t, unable, tokens["reader"]); got != http.StatusServiceUnavailable {
		t.Errorf("a process that may ask nothing answers %d, want %d", got, http.StatusServiceUnavailable)
	}
}
