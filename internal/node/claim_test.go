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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	w.must(w.client.Patch(w.ctx, o, client.RawPatch(types.MergePatchType, []byte(patch))))
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
	w.must(w.client.Status().Patch(w.ctx, pod, client.MergeFrom(base)))
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
		w.must(w.client.Status().Patch(w.ctx, &s, client.RawPatch(types.MergePatchType, []byte(body))))
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
	w.must(err)
	w.must(w.client.Delete(w.ctx, claim))
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
	w.ends(volume, target)
}

// An attacker on a stolen node has the agent's token.
func TestTheAgentReadsNoPodOfAnotherNodeAndNoClaim(t *testing.T) {
	w := newWorld(t)
	w.start()
	own, ok := w.agent.stages.Live.(ownPods)
	if !ok {
		t.Fatalf("pods are read by %T", w.agent.stages.Live)
	}
	here := w.pod("here")
	there := w.pod("there", func(p *corev1.Pod) { p.Spec.NodeName = "of-another" })
	nowhere := w.pod("nowhere", func(p *corev1.Pod) { p.Spec.NodeName = "" })
	claim := testkit.Claim(w.id, "claim", "", w.id)
	w.create(claim)

	got := &corev1.Pod{}
	if err := own.Get(w.ctx, client.ObjectKeyFromObject(here), got); err != nil || got.UID != here.UID || len(got.Spec.Containers) != 1 {
		t.Errorf("reading a pod of its own node: %v, %+v", err, got)
	}
	live := &corev1.Pod{}
	if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(here), live); err != nil || live.ResourceVersion != here.ResourceVersion {
		t.Errorf("the pod that was read has version %s (%v), want %s as before", live.ResourceVersion, err, here.ResourceVersion)
	}
	for _, pod := range []*corev1.Pod{there, nowhere} {
		if err := own.Get(w.ctx, client.ObjectKeyFromObject(pod), &corev1.Pod{}); !apierrors.IsNotFound(err) {
			t.Errorf("reading pod %s of node %q: %v, want NotFound", pod.Name, pod.Spec.NodeName, err)
		}
	}
	// An attacker is not bound to the agent's way of reading.
	for _, o := range []client.Object{here, there, nowhere, claim} {
		if err := own.Reader.Get(w.ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsForbidden(err) {
			t.Errorf("get %T %s: %v, want Forbidden", o, o.GetName(), err)
		}
	}
}
