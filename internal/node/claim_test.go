package node

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// claimed creates a claim with a finalizer, and a volume bound to it.
func claimed(w *world) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	w.Helper()
	claim := testkit.Claim("default", "claim-"+w.id, "", w.id)
	claim.Finalizers = []string{"example.org/kept"}
	w.create(claim)
	w.Cleanup(func() { w.patch(claim, `{"metadata": {"finalizers": null}}`) })
	volume := w.volume(w.provisioner(), "pv-"+w.id)
	w.patch(volume, `{"spec": {"claimRef": {"namespace": "default", "name": "`+claim.Name+`", "uid": "`+string(claim.UID)+`"}}}`)
	return claim, volume
}

func (w *world) patch(o client.Object, patch string) {
	w.Helper()
	if err := w.client.Patch(w.ctx, o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		w.Fatal(err)
	}
}

// consumer creates a pod on the node, in a phase.
func consumer(w *world, name string, phase corev1.PodPhase) *corev1.Pod {
	w.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + "-" + w.id},
		Spec:       corev1.PodSpec{NodeName: w.node, Containers: []corev1.Container{{Name: "c", Image: "busybox:1.36"}}},
	}
	w.create(pod)
	w.Cleanup(func() {
		if err := w.client.Delete(w.ctx, pod, client.GracePeriodSeconds(0)); err != nil {
			w.Error(err)
		}
	})
	base := pod.DeepCopy()
	pod.Status.Phase = phase
	if err := w.client.Status().Patch(w.ctx, pod, client.MergeFrom(base)); err != nil {
		w.Fatal(err)
	}
	return pod
}

// of names the pod of a target, as the kubelet does.
func of(pod *corev1.Pod) func(*csi.NodePublishVolumeRequest) {
	return func(r *csi.NodePublishVolumeRequest) {
		r.VolumeContext = map[string]string{keyPodName: pod.Name, keyNamespace: pod.Namespace, keyPodUID: string(pod.UID)}
	}
}

// tellDoomed records in the stages that their claim is being deleted, as the stage controller does,
// and waits until the agent sees it.
func tellDoomed(w *world, claim *corev1.PersistentVolumeClaim) {
	w.Helper()
	for _, s := range w.stages() {
		body := `{"status": {"pod": {"claimDeleted": "` + string(claim.UID) + `"}}}`
		if err := w.client.Status().Patch(w.ctx, &s, client.RawPatch(types.MergePatchType, []byte(body))); err != nil {
			w.Fatal(err)
		}
		w.eventually("the agent hears of the claim", func() error {
			seen := &tarnv1.PavStage{}
			if err := w.agent.cached.Get(w.ctx, client.ObjectKeyFromObject(&s), seen); err != nil || seen.Status.Pod.ClaimDeleted == claim.UID {
				return err
			}
			return errors.New("not yet")
		})
	}
}

func TestNoPodStartsOnAClaimThatIsBeingDeleted(t *testing.T) {
	w := newWorld(t)
	w.start()
	claim, volume := claimed(w)
	early := consumer(w, "early", corev1.PodPending)
	target, err := w.publish(volume, string(early.UID), of(early))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.client.Delete(w.ctx, claim); err != nil {
		t.Fatal(err)
	}
	tellDoomed(w, claim)
	late := consumer(w, "late", corev1.PodPending)
	_, err = w.publish(volume, string(late.UID), of(late))
	want := "can't start pod default/" + late.Name + " because it's using claim default/" + claim.Name + " that is being deleted"
	if status.Code(err) != codes.FailedPrecondition || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("publishing for a pod that has not started: %v, want %q", err, want)
	}
	t.Run("what is published stays so", func(t *testing.T) {
		if _, err := w.publish(volume, string(early.UID), of(early)); err != nil {
			t.Errorf("publishing once more, as the kubelet does when it was restarted: %v", err)
		}
		w.wantFile(filepath.Join(target, "greeting"), "hello")
	})
	t.Run("a pod that ran before is served", func(t *testing.T) {
		running := consumer(w, "running", corev1.PodRunning)
		again, err := w.publish(volume, string(running.UID), of(running))
		if err != nil {
			t.Fatalf("publishing for a pod whose node was started anew: %v", err)
		}
		w.mustUnpublish(volume, again)
	})
	t.Run("another pod under the name of one that ran is not", func(t *testing.T) {
		running := consumer(w, "renamed", corev1.PodRunning)
		other := running.DeepCopy()
		other.UID = "another"
		if _, err := w.publish(volume, "another", of(other)); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("publishing: %v, want a refusal", err)
		}
	})
	w.mustUnpublish(volume, target)
	w.nothingIsLeft()
}
