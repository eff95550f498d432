//go:build integration

package recycle

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// life releases the volume and waits until a claim can draw it again. It restarts the
// controller whenever the killer stops it.
func (w *world) life(k *testkit.Killer, policy corev1.PersistentVolumeReclaimPolicy) {
	w.T.Helper()
	w.until("binding", phase(corev1.VolumeBound))
	stop := k.Life(w.Config, w.run)
	w.Must(w.Client.Delete(w.Ctx, w.claim))
	w.until("recycling", func(vol *corev1.PersistentVolume) string {
		cert := volume.CertificateOf(vol)
		switch {
		case vol.Status.Phase != corev1.VolumeAvailable || vol.Spec.ClaimRef != nil:
			return "it cannot be had"
		case vol.Spec.PersistentVolumeReclaimPolicy != policy || vol.Annotations[tarnv1.AnnotationRecyclePolicy] != "":
			return "its reclaim policy is not its own"
		case cert == nil || !w.certifies(cert):
			return "its certificate is wrong"
		case failureOf(vol) != nil, vol.Status.Reason != "":
			return "a failure is left"
		}
		return ""
	})
	name := volume.ScrubClaim(w.vol)
	left := metav1.ObjectMeta{Namespace: testNamespace, Name: name}
	if !w.gone(&corev1.Pod{ObjectMeta: left}) || !w.gone(&corev1.PersistentVolumeClaim{ObjectMeta: left}) {
		w.T.Error("scrub claim or scrub pod is left")
	}
	pods := &corev1.PodList{}
	w.Must(w.Client.List(w.Ctx, pods, client.MatchingLabels{tarnv1.LabelScrub: string(w.vol.UID)}))
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp == nil {
			w.T.Errorf("pod %s is left", pods.Items[i].Name)
		}
	}
	select {
	case version := <-w.unverified:
		w.T.Errorf("the volume could be had before it was scrubbed, in version %s", version)
	default:
	}
	stop()
}

// certifies reports whether a certificate shows the expected recycler: the provisioner or the
// scrub pod.
func (w *world) certifies(cert *tarnv1.RecycleCertificate) bool {
	if cert.Method != w.method || cert.Time == nil {
		return false
	}
	if w.method == tarnv1.RecycleFiles {
		return cert.Image == testImage && cert.Files == 3
	}
	return cert.Image == "scrubber" && cert.Provisioner == w.name && cert.Verifier == testImage && cert.SampleSHA256 != "" && cert.Bytes == 1<<30
}

func TestAVolumeIsRecycledWhereverTheControllerIsKilled(t *testing.T) {
	for _, c := range []struct {
		name             string
		policy           corev1.PersistentVolumeReclaimPolicy
		failures, wrongs int
		method           tarnv1.RecycleMethod
		waits            bool
	}{
		{"retained", corev1.PersistentVolumeReclaimRetain, 0, 0, tarnv1.RecycleFiles, false},
		{"whose-pod-waits", corev1.PersistentVolumeReclaimRetain, 0, 0, tarnv1.RecycleFiles, true},
		{"of-policy-recycle", corev1.PersistentVolumeReclaimRecycle, 0, 0, tarnv1.RecycleFiles, false},
		{"that-fails-first", corev1.PersistentVolumeReclaimRetain, 1, 0, tarnv1.RecycleFiles, false},
		{"by-its-provisioner", corev1.PersistentVolumeReclaimRetain, 0, 0, tarnv1.RecycleZero, false},
		{"by-its-provisioner-on-second-thoughts", corev1.PersistentVolumeReclaimRetain, 0, 1, tarnv1.RecycleZero, false},
		{"made-anew", corev1.PersistentVolumeReclaimRetain, 0, 0, tarnv1.RecycleRecreate, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := testkit.OwnAPIServer(t)
			live := func(name string, k *testkit.Killer) {
				t.Run(name, func(t *testing.T) {
					w := newWorld(t, server, c.name+"-"+name, c.policy, c.method)
					w.failures, w.wrongs, w.waits = c.failures, c.wrongs, c.waits
					w.life(k, c.policy)
				})
			}
			whole := testkit.NewKiller(0)
			live("whole", whole)
			for _, n := range testkit.Deaths(t, whole.Writes()) {
				live(fmt.Sprint(n), testkit.NewKiller(n))
			}
		})
	}
}

func TestARunningPodKeepsAVolumeFromBeingScrubbed(t *testing.T) {
	w := newWorld(t, testkit.OwnAPIServer(t), "kept", corev1.PersistentVolumeReclaimRetain, tarnv1.RecycleFiles)
	w.until("binding", phase(corev1.VolumeBound))
	user := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "user"},
		Spec: corev1.PodSpec{NodeName: "a", Containers: []corev1.Container{{Name: "c", Image: testImage}}, Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "kept"},
		}}}},
	}
	w.PodsMayRun("default")
	w.Must(w.Client.Create(w.Ctx, user))
	defer w.run(w.Config)()
	w.Must(w.Client.Delete(w.Ctx, w.claim)) // the stand-in does not implement its protection
	w.until("telling", func(vol *corev1.PersistentVolume) string {
		if vol.Spec.ClaimRef == nil || vol.Spec.ClaimRef.UID != w.claim.UID {
			w.T.Fatalf("it was given to %+v under a running pod", vol.Spec.ClaimRef)
		}
		events := &corev1.EventList{}
		w.Must(w.Client.List(w.Ctx, events))
		for i := range events.Items {
			if e := &events.Items[i]; e.InvolvedObject.Name == vol.Name && e.Reason == eventFailed {
				return ""
			}
		}
		return "no event says so"
	})
	user.Status.Phase = corev1.PodSucceeded
	w.Must(w.Client.Status().Update(w.Ctx, user))
	w.until("recycling", phase(corev1.VolumeAvailable))
}
