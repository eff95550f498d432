package retention

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

// attached is a VolumeAttachment of the volume to node n; nil stands for an inline volume,
// without PersistentVolume.
func attached(vol *string) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a-" + ptr.Deref(vol, "inline")}}
	a.Spec.Attacher, a.Spec.NodeName, a.Spec.Source.PersistentVolumeName = "driver", "n", vol
	return a
}

// uses is a pod with the claim shop/data.
func uses(phase corev1.PodPhase) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p"}}
	p.Spec.NodeName, p.Status.Phase = "n", phase
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}
	return p
}

func TestAVolumeWhoseRetentionIsOverStaysWhileSomethingUsesIt(t *testing.T) {
	robbed := testkit.Claim("other", "data", "v", "fast", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Status.Phase = "pvc-u", corev1.ClaimBound
	})
	for _, c := range []struct {
		name    string
		objects []client.Object
		// want is part of the Event; empty means that the volume gets its own policy back.
		want string
	}{
		{"nothing", nil, ""},
		{"its claim", []client.Object{viewOf().Claim}, "claim shop/data uses it"},
		{"a claim that is bound to it, though it points at another", []client.Object{robbed}, "claim other/data uses it"},
		{"a pod whose claim was removed by force", []client.Object{uses(corev1.PodRunning)}, "pod shop/p uses it"},
		{"a pod that has ended", []client.Object{uses(corev1.PodSucceeded)}, ""},
		{"an attachment", []client.Object{attached(ptr.To("pvc-u"))}, "it is attached to node n"},
		{"attachments of something else", []client.Object{attached(ptr.To("other")), attached(nil)}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := viewOf(held(deletes), trashedUntil(now.Add(-time.Minute)))
			store := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithIndex(&corev1.PersistentVolumeClaim{}, kube.ClaimsByVolume, kube.VolumeNamed).
				WithObjects(v.Volume.DeepCopy()).WithObjects(c.objects...).Build()
			if err := store.Get(t.Context(), client.ObjectKeyFromObject(v.Volume), v.Volume); err != nil {
				t.Fatal(err)
			}
			recorder := events.NewFakeRecorder(1)
			r := &reconciler{client: store, reader: store, claims: kube.Claims{Cached: store, Live: store}, runner: action.Runner{Client: store, Events: recorder}, namespace: "tarn-system"}
			err := r.apply(t.Context(), v, plan(v, now))
			if (c.want == "") != (err == nil) || err != nil && !errors.Is(err, errInUse) {
				t.Errorf("got %v", err)
			}
			vol := &corev1.PersistentVolume{}
			if err := store.Get(t.Context(), client.ObjectKeyFromObject(v.Volume), vol); err != nil {
				t.Fatal(err)
			}
			want, event := retains, eventInUse
			if c.want == "" {
				want, event = deletes, eventOver
			}
			if vol.Spec.PersistentVolumeReclaimPolicy != want || (vol.Annotations[tarnv1.AnnotationReclaimPolicy] == "") != (c.want == "") {
				t.Errorf("policy %s, annotations %v; want policy %s", vol.Spec.PersistentVolumeReclaimPolicy, vol.Annotations, want)
			}
			if told := <-recorder.Events; !strings.Contains(told, event) || !strings.Contains(told, c.want) {
				t.Errorf("the Event is %q, want reason %s and %q", told, event, c.want)
			}
		})
	}
}
