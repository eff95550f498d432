// Package guard restricts metrics to callers that the API server allows. It asks the API server
// whose token a request carries, and whether that user may get the path. It must not know what is
// served behind it.
//
// Controller-runtime has such a filter, but it links a whole API server's code into the agent that
// runs on every node.
package guard

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authentication "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// timeout is how long the API server may take to judge a request.
const timeout = 10 * time.Second

type guard struct {
	tokens authentication.TokenReviewInterface
	access authorization.SubjectAccessReviewInterface
}

// New returns a filter for the metrics server. The filter answers 401 to a request without a valid
// token, and 403 if the token's user may not get the path. It answers 503 if the API server could
// not be asked.
func New(config *rest.Config, c *http.Client) (metricsserver.Filter, error) {
	tokens, err := authentication.NewForConfigAndClient(config, c)
	if err != nil {
		return nil, fmt.Errorf("creating a client for TokenReviews: %w", err)
	}
	access, err := authorization.NewForConfigAndClient(config, c)
	if err != nil {
		return nil, fmt.Errorf("creating a client for SubjectAccessReviews: %w", err)
	}
	g := &guard{tokens: tokens.TokenReviews(), access: access.SubjectAccessReviews()}
	return func(log logr.Logger, next http.Handler) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			code, err := g.judge(r)
			if err != nil {
				log.Error(err, "no caller could be authorized for "+r.URL.Path)
			}
			if code != http.StatusOK {
				http.Error(w, http.StatusText(code), code)
				return
			}
			next.ServeHTTP(w, r)
		}), nil
	}, nil
}

// judge returns the HTTP status for a request: 200 if it is allowed.
func (g *guard) judge(r *http.Request) (int, error) {
	token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !found || token == "" {
		return http.StatusUnauthorized, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	review, err := g.tokens.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return http.StatusServiceUnavailable, fmt.Errorf("reviewing the token: %w", err)
	}
	if !review.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	answer, err := g.access.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: question(review.Status.User, r)}, metav1.CreateOptions{})
	if err != nil {
		return http.StatusServiceUnavailable, fmt.Errorf("checking the rights of %s: %w", review.Status.User.Username, err)
	}
	if !answer.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}

// question returns a review that asks whether a user may send a request.
func question(user authenticationv1.UserInfo, r *http.Request) authorizationv1.SubjectAccessReviewSpec {
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for key, value := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(value)
	}
	return authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, Groups: user.Groups, UID: user.UID, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: r.URL.Path, Verb: strings.ToLower(r.Method)},
	}
}
