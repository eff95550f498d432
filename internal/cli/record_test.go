package cli

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
)

func TestRetryAsksForTheNextAttemptOf(t *testing.T) {
	pausing := func(r *tarnv1.PavVolume) {
		r.Status.Attempts, r.Status.DeletionAttempts = 2, 3
		r.Status.NextAttemptTime, r.Status.NextDeletionTime = &metav1.Time{Time: someNow}, &metav1.Time{Time: someNow}
	}
	for _, c := range []struct {
		name         string
		phase        tarnv1.VolumePhase
		change       testkit.With[*tarnv1.PavVolume]
		currentClass bool
		want, what   string
		wantErr      string
	}{
		{"a creation that pauses", tarnv1.VolumePending, pausing, false, "creation-2", "creation attempt 3 starts now", ""},
		{"no creation with the current class", tarnv1.VolumePending, pausing, true, "", "", "omit --current-class"},
		{"no creation that does not pause", tarnv1.VolumePending, func(*tarnv1.PavVolume) {}, false, "", "", "waits for no retry"},
		{"an undoing", tarnv1.VolumeUndoing, pausing, false, "deletion-3", "deletion attempt 4 starts now", ""},
		{"an undoing with the current class", tarnv1.VolumeUndoing, pausing, true, "deletion-3/current-class", "deletion attempt 4", ""},
		{"an undoing under way", tarnv1.VolumeUndoing, func(r *tarnv1.PavVolume) { r.Status.DeletionAttempts = 1 }, false, "deletion-1", "if attempt 1 has not started", ""},
		{"a deletion", tarnv1.VolumeDeleting, pausing, false, "deletion-3", "deletion attempt 4 starts now", ""},
		{"no deletion with the current class", tarnv1.VolumeDeleting, pausing, true, "", "", "only its own parameters lead to its storage"},
		{"no volume in use", tarnv1.VolumeCreated, pausing, false, "", "", "is Created and waits for no retry"},
	} {
		t.Run(c.name, func(t *testing.T) {
			record := testkit.Record(testkit.Claim("shop", "data", "u", "fast"), "fast", c.phase, c.change)
			value, what, err := retryOf(record, c.currentClass)
			if value != c.want || !strings.Contains(what, c.what) || (err == nil) != (c.wantErr == "") || err != nil && !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("got %q, %q, %v, want %q, %q, %q", value, what, err, c.want, c.what, c.wantErr)
			}
		})
	}
}

func TestForgetGivesUpWhatNoClaimHas(t *testing.T) {
	record := testkit.Record(testkit.Claim("shop", "data", "u", "fast"), "fast", tarnv1.VolumeDeleting, func(r *tarnv1.PavVolume) {
		r.Finalizers, r.Status.Handle, r.Status.NodeName = []string{tarnv1.FinalizerRecord}, "shelf-7", "n1"
	})
	for _, c := range []struct {
		name, phase string
		yes         bool
		want        string
	}{
		{"told first", "Released", false, "add --yes"},
		{"not one that a claim has", "Bound", true, "delete its claim first"},
		{"given up", "Released", true, ""},
		{"given up without a volume", "", true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			objects := []client.Object{record.DeepCopy()}
			if c.phase != "" {
				objects = append(objects, testkit.Volume(record, func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.PersistentVolumePhase(c.phase) }))
			}
			store := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(objects...).Build()
			var out bytes.Buffer
			err := forgetVolume(t.Context(), store, &out, record.Name, c.yes)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			now := &tarnv1.PavVolume{}
			if err := store.Get(t.Context(), client.ObjectKeyFromObject(record), now); err != nil {
				t.Fatal(err)
			}
			if steppod.Forgotten(now) != (c.want == "") {
				t.Errorf("it is %+v", now.ObjectMeta)
			}
			if told := `storage with handle "shelf-7" of PavProvisioner "fast" on node "n1" is kept if it exists; delete it by hand`; c.phase != "Bound" && !strings.Contains(out.String(), told) {
				t.Errorf("said %q, want %q", out.String(), told)
			}
		})
	}
}
