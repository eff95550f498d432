package inprocess

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/plugin/plugintest"
	"tarn.dev/tarn/internal/volume"
)

func TestAVolumeWhoseClaimRefWasClearedIsKeptForTheClaimThatNamesIt(t *testing.T) {
	for name, claim := range map[string]*corev1.PersistentVolumeClaim{
		"which it was made for": {ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "u1", Annotations: map[string]string{volume.AnnProvisioner: "tarn.dev/fake"}}},
		"which has drawn it":    {ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "u2"}},
	} {
		t.Run(name, func(t *testing.T) {
			f, p := plugintest.NewFake("tarn.dev/fake", "")
			asset, err := p.Creator.Create(t.Context(), plugin.Request{Name: "pvc-u1", Mode: corev1.PersistentVolumeFilesystem})
			if err != nil {
				t.Fatal(err)
			}
			vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
				Name: "pvc-u1", UID: "v", Annotations: map[string]string{volume.AnnProvisionedBy: p.Name},
				Finalizers: []string{volume.FinalizerExternal},
			}}
			vol.DeletionTimestamp = ptr.To(metav1.Now())
			vol.Spec.PersistentVolumeReclaimPolicy, vol.Spec.PersistentVolumeSource = corev1.PersistentVolumeReclaimDelete, asset.Source
			vol.Status.Phase = corev1.VolumeAvailable
			claim.Spec.VolumeName, claim.Status.Phase = vol.Name, corev1.ClaimBound
			store := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(vol, claim).
				WithIndex(&corev1.PersistentVolumeClaim{}, indexClaimUID, kube.UIDOf).
				WithIndex(&corev1.PersistentVolumeClaim{}, kube.ClaimsByVolume, kube.VolumeNamed).Build()
			recorder := events.NewFakeRecorder(10)
			r := &reconciler{
				client: store, reader: store, plugins: map[string]plugin.Plugin{p.Name: p}, events: recorder, clock: clock.RealClock{},
				claims: kube.Claims{Cached: store, Live: store},
			}
			if _, err := r.Reconcile(t.Context(), request(vol.Name)); !errors.Is(err, errClaimThere) {
				t.Errorf("looked: %v, want to be asked again", err)
			}
			if left := f.Names(); len(left) != 1 {
				t.Fatalf("storage %q, want that of the claim", left)
			}
			if told := <-recorder.Events; !strings.Contains(told, "ns/data") {
				t.Errorf("told %q, want the claim's name", told)
			}
			if err := store.Delete(t.Context(), claim); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Reconcile(t.Context(), request(vol.Name)); err != nil || len(f.Names()) > 0 {
				t.Errorf("when the claim is gone: %v, storage %q", err, f.Names())
			}
		})
	}
}
