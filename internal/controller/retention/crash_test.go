//go:build integration

package retention

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// kept expects a volume in the trash.
func kept(vol *corev1.PersistentVolume) string {
	if vol == nil {
		return "it is gone"
	}
	if _, known, _ := volume.TrashedUntil(vol); !known || !volume.Held(vol) {
		return "it is not in the trash"
	}
	return ""
}

func isGone(vol *corev1.PersistentVolume) string {
	if vol == nil {
		return ""
	}
	return "it is there"
}

// remembers expects a held volume that remembers its claim with a label.
func remembers(value string) func(*corev1.PersistentVolume) string {
	return func(vol *corev1.PersistentVolume) string {
		if vol != nil && volume.Held(vol) && strings.Contains(vol.Annotations[tarnv1.AnnotationClaim], `"app":"`+value+`"`) {
			return ""
		}
		return "it does not remember its claim with " + value
	}
}

// life takes a volume from its claim through the trash to its deletion. It restarts the
// controller whenever the killer stops it.
func (w *world) life(k *testkit.Killer) {
	w.t.Helper()
	stop := k.Life(w.config, w.run)
	w.volume("holding", remembers("shop"))
	base := w.claim.DeepCopy()
	w.claim.Labels["app"] = "store"
	w.must(w.client.Patch(w.ctx, w.claim, client.MergeFrom(base)))
	w.volume("remembering the claim as it is", remembers("store"))
	w.must(w.client.Delete(w.ctx, w.claim))
	w.volume("being destroyed when its time is over", isGone)
	stop()
	select {
	case version := <-w.early:
		w.t.Errorf("the volume was destroyed before its time, at version %s", version)
	default:
	}
}

func TestAVolumeIsKeptAndThenDestroyedWhereverTheControllerIsKilled(t *testing.T) {
	server := testkit.APIServer(t)
	whole := testkit.NewKiller(0)
	t.Run("whole", func(t *testing.T) { newWorld(t, server, "trash-whole", "2s").life(whole) })
	if whole.Writes() < 4 {
		t.Fatalf("there were %d writes, want those that hold, remember, trash and let go", whole.Writes())
	}
	for _, n := range testkit.Deaths(t, whole.Writes()) {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			newWorld(t, server, fmt.Sprintf("trash-%d", n), "2s").life(testkit.NewKiller(n))
		})
	}
}

// uses creates a pod on a node with the world's claim.
func (w *world) uses() *corev1.Pod {
	w.t.Helper()
	w.must(client.IgnoreAlreadyExists(w.client.Create(w.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}})))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: w.name},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: w.name}}}}},
	}
	w.must(w.client.Create(w.ctx, pod))
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour))}}
	w.must(w.client.Status().Update(w.ctx, pod))
	return pod
}

func TestAPodWhoseClaimWasRemovedByForceKeepsItsVolume(t *testing.T) {
	server := testkit.APIServer(t)
	for name, anew := range map[string]bool{"trash-in-use": false, "trash-in-use-anew": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server, name, "1s")
			pod := w.uses()
			defer w.run(w.config)()
			w.volume("holding", remembers("shop"))
			w.must(w.client.Delete(w.ctx, w.claim)) // the world removes its finalizers
			if anew {
				w.again()
			}
			told := func(vol *corev1.PersistentVolume) string {
				events := &corev1.EventList{}
				w.must(w.client.List(w.ctx, events))
				for _, e := range events.Items {
					if e.InvolvedObject.Name == w.name && e.Reason == eventInUse && strings.Contains(e.Message, "pod default/"+w.name) {
						return kept(vol)
					}
				}
				return "no Event says that a pod uses it"
			}
			w.volume("being kept though its time is over", told)
			w.must(w.client.Delete(w.ctx, pod, client.GracePeriodSeconds(0)))
			w.volume("being destroyed once the pod is gone", isGone)
			if len(w.early) > 0 {
				t.Error("the volume was destroyed before its time")
			}
		})
	}
}

// again creates a claim with the same name once the first is gone. The new claim gets another
// volume.
func (w *world) again() {
	w.t.Helper()
	claim := testkit.Claim("default", w.name, "", w.name, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = w.name + "-other" })
	for apierrors.IsAlreadyExists(w.client.Create(w.ctx, claim)) {
		select {
		case <-w.ctx.Done():
			w.t.Fatal("the claim does not go")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestATimeThatIsPutOffIsWaitedFor(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "trash-put-off", "1h")
	defer w.run(w.config)()
	w.volume("holding", remembers("shop"))
	w.must(w.client.Delete(w.ctx, w.claim))
	w.volume("being trashed", kept)
	vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: w.name}}
	if err := w.client.Delete(w.ctx, vol); err == nil || !strings.Contains(err.Error(), "tarn trash purge "+w.name) {
		t.Errorf("deleting a volume in the trash: %v, want a refusal that says what to do", err)
	}
	until := time.Now().Add(time.Second).UTC().Format(time.RFC3339)
	w.must(w.client.Patch(w.ctx, vol, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"`+tarnv1.AnnotationTrashedUntil+`":"`+until+`"}}}`))))
	w.volume("being destroyed at the new time", isGone)
}

func TestAVolumeThatIsReleasedBeforeItsClaimIsSeenToGoIsKept(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "trash-hasty", "1h", func(w *world) { w.hasty = true })
	defer w.run(w.config)()
	w.volume("holding", remembers("shop"))
	w.must(w.client.Delete(w.ctx, w.claim))
	w.volume("being trashed", kept)
}
