package provision

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

func TestAPersistentVolumeThatIsThereAlreadyIs(t *testing.T) {
	going := func(vol *corev1.PersistentVolume) {
		vol.DeletionTimestamp, vol.Finalizers = &metav1.Time{Time: now}, []string{"kubernetes.io/pv-protection"}
	}
	others := func(vol *corev1.PersistentVolume) {
		vol.Annotations, vol.Spec.ClaimRef.UID = nil, "another" // with the same namespace and name
	}
	for _, c := range []struct {
		name   string
		change func(*corev1.PersistentVolume)
		// want is the message for claim and record; empty if the volume is adopted.
		want string
	}{
		{"taken over where it has the claim's uid", func(vol *corev1.PersistentVolume) { vol.Annotations = nil }, ""},
		{"taken over where it has the record's uid", func(vol *corev1.PersistentVolume) { vol.Spec.ClaimRef = nil }, ""},
		{"told to be another claim's", others, "PersistentVolume pvc-u1 exists and belongs to another claim; delete it to continue"},
		{"told to be another claim's where it is nobody's", func(vol *corev1.PersistentVolume) { vol.Annotations, vol.Spec.ClaimRef = nil, nil }, "belongs to another claim"},
		{"waited for while it is being deleted", going, "PersistentVolume pvc-u1 exists and is being deleted; waiting until it is gone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			claim, record := made("u1", "shelf-7", tarnv1.VolumeCreated)
			vol, err := newVolume(record)
			if err != nil {
				t.Fatal(err)
			}
			vol.Finalizers = nil // so that it can be deleted
			c.change(vol)
			w := newWorld(t, claim, record, vol, testkit.Provisioner("prov"))
			record = w.record("u1")
			v := &View{VolumeName: vol.Name, Claim: claim, Record: record}
			err = w.r.writeVolume(t.Context(), v)
			condition := meta.FindStatusCondition(w.record("u1").Status.Conditions, tarnv1.ConditionProvisioned)
			if c.want == "" {
				if err != nil || v.Volume == nil || condition != nil {
					t.Errorf("%v, %v, %+v, want the volume", v.Volume, err, condition)
				}
				return
			}
			if err == nil || v.Volume != nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, %v, want an error with %q", v.Volume, err, c.want)
			}
			if len(w.events.Events) == 0 {
				t.Fatal("the claim is told nothing")
			}
			if told := <-w.events.Events; !strings.HasPrefix(told, "Warning ProvisioningFailed") || !strings.Contains(told, c.want) {
				t.Errorf("the claim is told %q", told)
			}
			if condition == nil || condition.Status != metav1.ConditionFalse || condition.Reason != reasonNameTaken || !strings.Contains(condition.Message, c.want) {
				t.Errorf("the record says %+v", condition)
			}
			vol.Finalizers = nil
			vol.ResourceVersion = ""
			w.must(client.IgnoreNotFound(w.store.Update(t.Context(), vol)))
			w.must(client.IgnoreNotFound(w.store.Delete(t.Context(), vol)))
			w.look("u1")
			if vol := w.volume("u1"); vol == nil || !isOf(vol, record) {
				t.Errorf("once that is gone, the volume is %v", vol)
			}
		})
	}
}

// refusing rejects every PersistentVolume, as a cluster's policy may.
type refusing struct{ client.Client }

func (r refusing) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	if _, ok := o.(*corev1.PersistentVolume); ok {
		return apierrors.NewForbidden(corev1.Resource("persistentvolumes"), o.GetName(), errors.New("a policy says no"))
	}
	return r.Client.Create(ctx, o, options...)
}

func TestAPersistentVolumeThatIsRefusedIsToldAndWrittenOnceItIsNot(t *testing.T) {
	const want = `the API server rejects PersistentVolume pvc-u1: persistentvolumes "pvc-u1" is forbidden: a policy says no`
	claim, record := made("u1", "shelf-7", tarnv1.VolumeCreated)
	w := newWorld(t, claim, record, testkit.Provisioner("prov"))
	w.r.client = refusing{w.store}
	if _, err := w.r.Reconcile(t.Context(), request(volumeName("u1"))); err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("%v, want an error with %q, by which it is tried again", err, want)
	}
	if len(w.events.Events) == 0 {
		t.Fatal("the claim is told nothing")
	}
	if told := <-w.events.Events; told != "Warning ProvisioningFailed "+want {
		t.Errorf("the claim is told %q", told)
	}
	condition := meta.FindStatusCondition(w.record("u1").Status.Conditions, tarnv1.ConditionProvisioned)
	if condition == nil || condition.Status != metav1.ConditionFalse || condition.Reason != reasonRefused || condition.Message != want {
		t.Errorf("the record says %+v", condition)
	}
	w.r.client = w.store
	w.look("u1")
	if vol := w.volume("u1"); vol == nil || !isOf(vol, record) {
		t.Errorf("once it is not refused, the volume is %v", vol)
	}
}
