package explain

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// A kubelet mounts a protected claim even while the claim is being deleted. Tarn's node agent does
// so only if it has begun to mount it.
func TestAPodIsOnlyToldOfTheEndOfItsClaimWhereThatKeepsIt(t *testing.T) {
	const refuses, secret = "claim shop/data is being deleted, so no pod that uses it can start", `MountVolume.SetUp failed for volume "s" : secret "none" not found`
	const mounts = "the kubelet on node n1 cannot mount its volumes: " + secret
	const target = "/var/lib/kubelet/pods/pod-uid/volumes/kubernetes.io~csi/pvc-claim-uid/mount"
	pod := func(change func(*world), finalizers ...string) *world {
		w := with(deleted(newWorld().bound().askedPod(), finalizers...), change)
		return says(w, "FailedMount", secret)
	}
	theirs := func(w *world) {
		w.volumeView.Provisioner, w.volume.Spec.CSI.Driver, w.view.Pod.Drivers = nil, "csi.example.org", []string{"csi.example.org"}
	}
	local := func(w *world) { w.volumeView.Provisioner, w.volume.Spec.CSI = nil, nil }
	staged := func(change func(*tarnv1.PavStage)) func(*world) {
		return func(w *world) {
			w.staged(func(g *tarnv1.PavStage) { g.Status.Node.Targets = []string{target}; change(g) })
		}
	}
	for _, c := range []answer{
		{"another driver's, protected", pod(theirs, claimProtection), mounts, "when the kubelet retries", ""},
		{"another driver's, protected no more", pod(theirs, foreign), refuses, "when a new claim of that name exists", ""},
		{"another driver's, of which nobody may see whose it is", hides(pod(theirs, claimProtection), Object{Kind: pavProvisioner, Name: "csi.example.org"}), refuses, "when a new claim", ""},
		{"of no driver, protected", pod(local, claimProtection), mounts, "when the kubelet retries", ""},
		{"not bound", pod(func(w *world) { theirs(w); w.volumeView.Volume = nil }, claimProtection), refuses, "when a new claim", ""},
		{"Tarn's, not staged", pod(func(*world) {}, claimProtection), refuses, "when a new claim", ""},
		{"Tarn's, staged for the pod", pod(staged(there), claimProtection), mounts, "when the kubelet retries", ""},
		{"Tarn's, staged for another", pod(staged(func(g *tarnv1.PavStage) {
			g.Status.Node.Targets[0] = strings.Replace(target, "pod-uid", "other-uid", 1)
		}), claimProtection), refuses, "when a new claim", ""},
		{"Tarn's, staged for the pod elsewhere", pod(staged(func(g *tarnv1.PavStage) { g.Spec.NodeName = "n2" }), claimProtection), refuses, "when a new claim", ""},
		{"Tarn's, being staged for the pod", pod(staged(func(g *tarnv1.PavStage) { g.Status.Node.Phase = tarnv1.StageWaiting }), claimProtection), refuses, "when a new claim", ""},
		{"Tarn's, staged for the pod, protected no more", pod(staged(there), foreign), refuses, "when a new claim", ""},
		{"another driver's, and no node", with(pod(theirs, claimProtection), func(w *world) { unscheduled(w.pod) }), refuses, "when a new claim", ""},
	} {
		t.Run(c.name, c.check)
	}
}

func TestAPodIsMadeAnewWhereNobodyElseDoesSoAndNothingIsLost(t *testing.T) {
	yes := true
	ephemeral := func(p *corev1.Pod) {
		p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
	}
	const replaces, deletes = "kubectl -n shop get pod web -o yaml | kubectl replace --force -f -", "kubectl -n shop delete pod web"
	owned := func(o metav1.OwnerReference) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{o} }
	}
	for name, c := range map[string]struct {
		changes []func(*corev1.Pod)
		want    string
	}{
		"nobody owns it":                              {nil, replaces},
		"a controller owns it":                        {[]func(*corev1.Pod){owned(metav1.OwnerReference{Controller: &yes})}, deletes},
		"one that is no controller owns it":           {[]func(*corev1.Pod){owned(metav1.OwnerReference{})}, replaces},
		"it has a claim of its own, and has not run":  {[]func(*corev1.Pod){ephemeral}, replaces},
		"it has a claim of its own, and has run":      {[]func(*corev1.Pod){ephemeral, runs}, ""},
		"it has a claim that stays, and has run once": {[]func(*corev1.Pod){runs}, replaces},
	} {
		if got := tryAgain(somePod("shop", "web", c.changes...)); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
