package explain

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// below adds a claim of a class that does not exist, over which the volume lies.
func below(w *world) {
	claim := testkit.Claim(tarnv1.StepNamespace, "pvc-claim-uid-backing", "below-uid", "disk")
	claim.CreationTimestamp, claim.Status.Phase, claim.Annotations = began, corev1.ClaimPending, nil
	w.volumeView.Backing = []*claimView{{Object: Object{Claim, claim.Namespace, claim.Name}, Claim: claim, Classes: w.claimView.Classes, Volume: &volumeView{Name: "pvc-below-uid"}}}
}

func TestTheClaimBelowAVolumeIsFollowed(t *testing.T) {
	const want = `claim tarn-volumes/pvc-claim-uid-backing, over which the volume lies: StorageClass "disk" does not exist`
	for name, w := range map[string]*world{
		"its creation pod waits": with(newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation), below),
		"it has no pod":          with(newWorld().recorded(tarnv1.VolumeCreating), below),
	} {
		if e := chain(w.view); !strings.Contains(e.Verdict, want) {
			t.Errorf("%s: %q, want %q", name, e.Verdict, want)
		}
	}
}
