//go:build integration

package recycle

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// Live releases the volume and waits until a claim can draw it again.
func (w *world) Live() {
	w.Must(w.Client.Delete(w.Ctx, w.claim))
	w.until("recycling", func(vol *corev1.PersistentVolume) string {
		cert := volume.CertificateOf(vol)
		switch {
		case vol.Status.Phase != corev1.VolumeAvailable || vol.Spec.ClaimRef != nil:
			return "it cannot be had"
		case vol.Spec.PersistentVolumeReclaimPolicy != w.policy || vol.Annotations[tarnv1.AnnotationRecyclePolicy] != "":
			return "its reclaim policy is not its own"
		case cert == nil || !w.certifies(cert):
			return "its certificate is wrong"
		case failureOf(vol) != nil, vol.Status.Reason != "":
			return "a failure is left"
		}
		return ""
	})
}

// Check expects nothing left of the work, and that no claim could draw the volume before.
func (w *world) Check() {
	left := metav1.ObjectMeta{Namespace: testNamespace, Name: volume.ScrubClaim(w.vol)}
	for _, o := range []client.Object{&corev1.Pod{ObjectMeta: left}, &corev1.PersistentVolumeClaim{ObjectMeta: left}} {
		if what := w.Gone(o); what != "" {
			w.T.Errorf("the %T %s", o, what)
		}
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
	const retain, recycle = corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeReclaimRecycle
	lives := []struct {
		name   string
		policy corev1.PersistentVolumeReclaimPolicy
		method tarnv1.RecycleMethod
		change func(*world)
	}{
		{"retained", retain, tarnv1.RecycleFiles, func(*world) {}},
		{"whose-pod-waits", retain, tarnv1.RecycleFiles, func(w *world) { w.waits = true }},
		{"of-policy-recycle", recycle, tarnv1.RecycleFiles, func(*world) {}},
		{"that-fails-first", retain, tarnv1.RecycleFiles, func(w *world) { w.failures = 1 }},
		{"by-its-provisioner", retain, tarnv1.RecycleZero, func(*world) {}},
		{"by-its-provisioner-on-second-thoughts", retain, tarnv1.RecycleZero, func(w *world) { w.wrongs = 1 }},
		{"made-anew", retain, tarnv1.RecycleRecreate, func(*world) {}},
	}
	var spans []testkit.Span
	for _, l := range lives {
		spans = append(spans, testkit.Span{Name: l.name})
	}
	testkit.AtTheirWrites(t, spans, func(t *testing.T, server *rest.Config, span int, name string) (testkit.Life, *rest.Config) {
		w := newWorld(t, server, name, lives[span].policy, lives[span].method)
		lives[span].change(w)
		return w, server
	})
}

func TestARunningPodKeepsAVolumeFromBeingScrubbed(t *testing.T) {
	w := newWorld(t, testkit.OwnAPIServer(t), "kept", corev1.PersistentVolumeReclaimRetain, tarnv1.RecycleFiles)
	user := testkit.Pod("default", "user", testkit.OnNode("a"), testkit.Using("kept"))
	w.PodsMayRun("default")
	w.Create(user)
	defer w.Run(w.Config)()
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
