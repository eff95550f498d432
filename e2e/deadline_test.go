//go:build e2e

package e2e

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

// A claim whose creation pod does not end fails after a limited time, with a message. The case of a
// pod that cannot pull its image is in TestACreationPodThatCannotPullItsImageIsToldAtItsDeadline.
func TestACreationPodThatComesToNoEndFailsAtItsDeadline(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		edit       func(spec fields)
		// want is in the claim's message, beside the deadline that passed.
		want []string
		// undone says that the deletion pod runs, for anything the creation pod may have made.
		undone bool
	}{
		// Only the controller can end it, because the kubelet does not know of it.
		{"unscheduled", "true", func(spec fields) {
			spec["activeDeadlineSeconds"], spec["nodeSelector"] = int64(1), fields{"no-such": "node"}
		}, []string{"has not ended within 1s", "not scheduled: 0/", "nodes are available"}, false},
		// The kubelet ends it, after it has started the container at least once.
		{"crash-looping", "exit 7", func(spec fields) {
			spec["activeDeadlineSeconds"], spec["restartPolicy"] = int64(30), "OnFailure"
		}, []string{"has not ended within 30s", "container main"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := begin(t, "late-"+c.name)
			s.step = soon + time.Minute // the deadline is part of it
			creation := script{text: c.text}.section(asRequested)
			c.edit(podSpec(creation))
			s.create(s.provisioner(fields{"volumeCreation": creation, "volumeDeletion": script{text: "true"}.section(nil), "volumeStaging": greeting}))
			s.class(corev1.PersistentVolumeReclaimDelete)
			claim := s.claim("data")
			s.told(claim, "ProvisioningFailed", c.want...)
			s.refusedFor(claim, tarn.StepCreation, "PodDeadlineExceeded")
			if phase := s.phase(claim); phase != corev1.ClaimPending {
				t.Errorf("the claim is %s, want Pending", phase)
			}
			if c.undone {
				s.await("what the creation pod may have made to be undone", func() (bool, string) {
					return suite.news.of(s.name).pods[tarn.StepDeletion] > 0, "there is no deletion pod"
				})
			}
			s.remove(claim)
			s.remove(&pav.PavProvisioner{ObjectMeta: named(s.name)})
		})
	}
}
