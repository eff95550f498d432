package kubelet

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// life is the lifetime of a token that is shown to kubelets, and the shortest that API servers
// issue. A token is used for half of it.
const life = 10 * time.Minute

// As asks kubelets as a service account, with tokens that c gets for it. A kubelet of a stolen node
// can use a token that it is shown. So the account must have no other right.
func As(c client.Client, account client.ObjectKey) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return &wearer{client: c, account: account, next: next}
	}
}

// wearer sends calls with the token of an account.
type wearer struct {
	client  client.Client
	account client.ObjectKey
	next    http.RoundTripper

	mu    sync.Mutex
	token string
	until time.Time
}

// RoundTrip implements http.RoundTripper.
func (w *wearer) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := w.current(r.Context())
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return w.next.RoundTrip(r)
}

func (w *wearer) current(ctx context.Context) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if now.Before(w.until) {
		return w.token, nil
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(life / time.Second))}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.account.Namespace, Name: w.account.Name}}
	if err := w.client.SubResource("token").Create(ctx, account, request); err != nil {
		return "", fmt.Errorf("getting a token of service account %s: %w", w.account, err)
	}
	w.token, w.until = request.Status.Token, now.Add(life/2)
	return w.token, nil
}
