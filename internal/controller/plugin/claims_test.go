package plugin

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/plugin/plugintest"
	"tarn.dev/tarn/internal/volume"
)

// toGo is a volume with storage that is to be destroyed, after an edit. It also returns a
// controller whose API server has that volume and other objects.
func toGo(t *testing.T, edit func(*corev1.PersistentVolume), others ...client.Object) (*reconciler, *plugintest.Fake, *events.FakeRecorder) {
	t.Helper()
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
	edit(vol)
	store := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(vol).WithObjects(others...).
		WithIndex(&corev1.PersistentVolumeClaim{}, indexClaimUID, kube.UIDOf).
		WithIndex(&corev1.PersistentVolumeClaim{}, kube.ClaimsByVolume, kube.VolumeNamed).Build()
	recorder := events.NewFakeRecorder(10)
	return &reconciler{
		client: store, reader: store, plugins: map[string]plugin.Plugin{p.Name: p}, events: recorder, clock: clock.RealClock{},
		claims: kube.Claims{Cached: store, Live: store},
	}, f, recorder
}

// keepsUntilGone checks that an object keeps a volume and is named in its Event, and that the
// volume is destroyed once that object is gone.
func keepsUntilGone(t *testing.T, r *reconciler, f *plugintest.Fake, recorder *events.FakeRecorder, keeper client.Object, want error) {
	t.Helper()
	if _, err := r.Reconcile(t.Context(), request("pvc-u1")); !errors.Is(err, want) {
		t.Errorf("looked: %v, want to be asked again", err)
	}
	if left := f.Names(); len(left) != 1 {
		t.Fatalf("storage %q, want that which is in use", left)
	}
	if told := <-recorder.Events; !strings.Contains(told, "ns/"+keeper.GetName()) {
		t.Errorf("told %q, want the name of %s", told, keeper.GetName())
	}
	if err := r.client.Delete(t.Context(), keeper); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(t.Context(), request("pvc-u1")); err != nil || len(f.Names()) > 0 {
		t.Errorf("when it is gone: %v, storage %q", err, f.Names())
	}
}

func TestAVolumeWhoseClaimRefWasClearedIsKeptForTheClaimThatNamesIt(t *testing.T) {
	for name, claim := range map[string]*corev1.PersistentVolumeClaim{
		"which it was made for": {ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "u1", Annotations: map[string]string{volume.AnnProvisioner: "tarn.dev/fake"}}},
		"which has drawn it":    {ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "u2"}},
	} {
		t.Run(name, func(t *testing.T) {
			claim.Spec.VolumeName, claim.Status.Phase = "pvc-u1", corev1.ClaimBound
			r, f, recorder := toGo(t, func(vol *corev1.PersistentVolume) { vol.Status.Phase = corev1.VolumeAvailable }, claim)
			keepsUntilGone(t, r, f, recorder, claim, errClaimThere)
		})
	}
}

func TestAVolumeWhoseClaimWasRemovedByForceIsKeptForThePodThatUsesIt(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: corev1.PodSpec{NodeName: "n", Volumes: []corev1.Volume{{
		Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}},
	}}}}
	r, f, recorder := toGo(t, func(vol *corev1.PersistentVolume) {
		vol.Status.Phase, vol.Spec.ClaimRef = corev1.VolumeReleased, &corev1.ObjectReference{Namespace: "ns", Name: "data", UID: "u1"}
	}, pod)
	keepsUntilGone(t, r, f, recorder, pod, errPodThere)
}
