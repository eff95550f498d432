package explain

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// unused is a cluster with one claim that was deleted an hour ago and that no pod uses. The claim
// exists for a limited number of reads.
type unused struct {
	claim *corev1.PersistentVolumeClaim
	left  int
}

func (u *unused) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if claim, ok := into.(*corev1.PersistentVolumeClaim); ok && u.left > 0 {
		u.left--
		*claim = *u.claim.DeepCopy()
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (u *unused) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

func TestASecondLookTellsWhatPassesFromWhatStays(t *testing.T) {
	for name, c := range map[string]struct {
		looks    int
		deleted  time.Duration // before the first look
		want     string
		wantTime time.Duration
	}{
		"it goes":                  {1, time.Hour, "no pod uses it, so it is deleted within moments", secondLook},
		"it stays":                 {2, time.Hour, "no pod uses it, but its protection controller does not remove the finalizer", secondLook},
		"it was deleted right now": {2, time.Second, "no pod uses it, so it is deleted within moments", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				claim := newWorld().bound().claim
				deleted := metav1.NewTime(began.Add(-c.deleted))
				claim.Spec.VolumeName, claim.DeletionTimestamp, claim.Finalizers = "", &deleted, []string{claimProtection}
				e, err := Explain(t.Context(), Source{Client: &unused{claim, c.looks}, Namespace: "tarn-system"}, Object{Claim, "shop", "data"}, began)
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != c.wantTime || !strings.Contains(e.Verdict, c.want) {
					t.Errorf("after %s it says %q, want %q after %s", took, e.Verdict, c.want, c.wantTime)
				}
			})
		})
	}
}
