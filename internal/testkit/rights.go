package testkit

import (
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Allowed waits until somebody may do what was granted: the API server authorizes by what
// it has heard of roles and bindings, which is a moment later than it stores them.
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
