package pavvolume

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// local is a released volume of policy Delete that was created by hand.
func local(changes ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-u1", Annotations: map[string]string{}}}
	vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data", UID: "u1"}
	vol.Spec.Local = &corev1.LocalVolumeSource{Path: "/mnt/a"}
	vol.Status.Phase = corev1.VolumeReleased
	for _, change := range changes {
		change(vol)
	}
	return vol
}

func marked(key, value string) func(*corev1.PersistentVolume) {
	return func(vol *corev1.PersistentVolume) { vol.Annotations[key] = value }
}

func ofPolicy(p corev1.PersistentVolumeReclaimPolicy) func(*corev1.PersistentVolume) {
	return func(vol *corev1.PersistentVolume) { vol.Spec.PersistentVolumeReclaimPolicy = p }
}

func ofPhase(p corev1.PersistentVolumePhase) func(*corev1.PersistentVolume) {
	return func(vol *corev1.PersistentVolume) { vol.Status.Phase = p }
}

func csi(vol *corev1.PersistentVolume) {
	vol.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d"}}
}

func TestWhoEndsAReleasedVolumeWithoutARecord(t *testing.T) {
	for _, c := range []struct {
		name string
		vol  *corev1.PersistentVolume
		// want is the reason of the Event, empty if the volume is left alone.
		want string
	}{
		{"case 126: nobody, where it was made by hand", local(), eventDeleteFailed},
		{"case 126: nobody, where its plugin inside Kubernetes is gone", local(marked(volume.AnnProvisionedBy, "kubernetes.io/host-path")), eventDeleteFailed},
		{"case 133: nobody, where the policy is not known", local(ofPolicy("Burn")), eventUnknownPolicy},
		{"case 130: its external provisioner", local(marked(volume.AnnProvisionedBy, "other.example.com")), ""},
		{"case 130: the driver of a CSI volume", local(csi), ""},
		{"case 130: the driver that it has moved to", local(marked(volume.AnnMigratedTo, "ebs.csi.aws.com")), ""},
		{"case 130: the driver that its plugin has moved to", local(marked(volume.AnnProvisionedBy, "kubernetes.io/aws-ebs")), ""},
		{"a person, by policy Retain", local(ofPolicy(corev1.PersistentVolumeReclaimRetain)), ""},
		{"who recycles it, by policy Recycle", local(ofPolicy(corev1.PersistentVolumeReclaimRecycle)), ""},
		{"the pool that has given it up", local(func(vol *corev1.PersistentVolume) { vol.Spec.ClaimRef.Namespace = "tarn-system" }), ""},
		{"not one that is bound", local(ofPhase(corev1.VolumeBound)), ""},
		{"not one that has failed already", local(ofPhase(corev1.VolumeFailed)), ""},
		{"case 136: not one that is nobody's", local(func(vol *corev1.PersistentVolume) { vol.Spec.ClaimRef = nil }), ""},
		{"case 131: not one that is being deleted", local(func(vol *corev1.PersistentVolume) { vol.DeletionTimestamp = &metav1.Time{Time: now} }), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			if r := refusalOf(c.vol, "tarn-system"); r != nil {
				got = r.Reason
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestCase126AVolumeThatNobodyCanDeleteIsFailedAndTold(t *testing.T) {
	for _, c := range []struct {
		name      string
		ownBinder bool
		change    func(*corev1.PersistentVolume)
		want      corev1.PersistentVolumePhase
	}{
		{"by Tarn", true, func(*corev1.PersistentVolume) {}, corev1.VolumeFailed},
		{"by Kubernetes' own binder, where that runs", false, func(*corev1.PersistentVolume) {}, corev1.VolumeReleased},
		{"not while its retention lasts", true, marked(tarnv1.AnnotationRetention, "1h"), corev1.VolumeReleased},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, local(c.change))
			w.r.ownBinder = c.ownBinder
			w.look("u1")
			vol := w.volume("u1")
			if vol.Status.Phase != c.want || (vol.Status.Message != "") != (c.want == corev1.VolumeFailed) {
				t.Errorf("it is %s %q, want %s", vol.Status.Phase, vol.Status.Message, c.want)
			}
			if told := len(w.events.Events); (told == 1) != (c.want == corev1.VolumeFailed) {
				t.Errorf("%d Events", told)
			} else if told == 1 {
				if text := <-w.events.Events; !strings.Contains(text, eventDeleteFailed) || !strings.Contains(text, "no deleter") {
					t.Errorf("told %q", text)
				}
			}
		})
	}
}
