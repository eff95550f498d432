package testkit

import (
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Allowed waits until a subject may do what was granted. The API server authorizes from watched
// roles and bindings, a moment after it stores them.
func Allowed(t *testing.T, c client.Client, granted authorizationv1.SubjectAccessReviewSpec) {
	t.Helper()
	again := time.NewTicker(20 * time.Millisecond) // there is nothing to watch
	defer again.Stop()
	for over := time.After(Limit); ; {
		review := &authorizationv1.SubjectAccessReview{Spec: granted}
		if err := c.Create(t.Context(), review); err != nil {
			t.Fatal(err)
		}
		if review.Status.Allowed {
			return
		}
		select {
		case <-again.C:
		case <-over:
			t.Fatalf("%s is not allowed what was granted: %+v %+v", granted.User, granted.ResourceAttributes, granted.NonResourceAttributes)
		}
	}
}
