package expand

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

func TestAnExpansionIsNotBegunAnewWhileTheVolumeIsScrubbed(t *testing.T) {
	v := viewOf(journal(2*gi, 0), has(gi))
	scrub := testkit.Claim("tarn-system", volume.ScrubClaim(v.Volume), "scrub-uid", "prov", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Status = v.Volume.Name, corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: bytes(gi)}
	})
	v.Volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: scrub.Namespace, Name: scrub.Name, UID: scrub.UID}
	store := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(scrub, v.Volume, v.Record, v.Provisioner).
		WithStatusSubresource(&tarnv1.PavVolume{}, &corev1.PersistentVolumeClaim{}).Build()
	steps := &steppod.Steps{Client: store, Reader: store}
	r := &reconciler{
		client: store, steps: steps, clock: testclock.NewFakePassiveClock(noon),
		runner: action.Runner{Client: store, Steps: steps, Events: events.NewFakeRecorder(10)},
	}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(v.Record)}); err != nil {
		t.Fatal(err)
	}
	pods, record := &corev1.PodList{}, &tarnv1.PavVolume{}
	if err := store.List(t.Context(), pods); err != nil {
		t.Fatal(err)
	}
	if err := store.Get(t.Context(), client.ObjectKeyFromObject(v.Record), record); err != nil {
		t.Fatal(err)
	}
	if j := record.Status.Expansion; len(pods.Items) > 0 || j == nil || j.TargetCapacity != 0 || j.Attempts != 3 {
		t.Errorf("%d pods work on the storage beside those that scrub it; the journal says %+v", len(pods.Items), j)
	}
}
