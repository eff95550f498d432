package explain

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// below adds a claim of a class that does not exist, over which the volume lies.
func below(class string) func(*world) {
	return func(w *world) {
		claim := testkit.Claim(tarnv1.StepNamespace, "pvc-claim-uid-backing", "below-uid", class)
		claim.CreationTimestamp, claim.Status.Phase, claim.Annotations = began, corev1.ClaimPending, nil
		claim.Labels = map[string]string{tarnv1.LabelRecord: "record-uid"}
		w.volumeView.Backing = []*claimView{{Object: Object{Claim, claim.Namespace, claim.Name}, Claim: claim, Classes: w.claimView.Classes, Volume: &volumeView{Name: "pvc-below-uid"}}}
	}
}

func TestTheClaimBelowAVolumeIsFollowed(t *testing.T) {
	const over = `claim tarn-volumes/pvc-claim-uid-backing, over which the volume lies: StorageClass "`
	for _, c := range []answer{
		{"its creation pod waits", with(newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, unscheduled), below("disk")), over + `disk" does not exist`, "or the class of the volume above is created again", ""},
		{"it has no pod", with(newWorld().recorded(tarnv1.VolumeCreating), below("disk")), over + `disk" does not exist`, "when StorageClass disk is created", ""},
		{"a ready class", with(newWorld().recorded(tarnv1.VolumeCreating), below("xfs")), over + `xfs" does not exist`, "when StorageClass xfs is created", "tarn provisioner install xfs"},
	} {
		t.Run(c.name, c.check)
	}
	w := newWorld().bound()
	w.record.Status.Claims = []tarnv1.MadeClaim{{Namespace: tarnv1.StepNamespace, Name: "pvc-claim-uid-backing"}}
	if e := chain(w.view); !e.Healthy || !strings.Contains(e.Verdict, "over claim tarn-volumes/pvc-claim-uid-backing") {
		t.Errorf("healthy %t: %s", e.Healthy, e.Verdict)
	}
}
