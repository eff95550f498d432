//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

func TestAProvisionerThatIsDeletedNamesWhatItWaitsForAsLongAsItDoes(t *testing.T) {
	t.Parallel()
	s := begin(t, "holder")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	pod := s.consumer("reader", claim.Name, stays)
	s.ready(pod)
	stage := s.stageOf("staged", healthy(tarn.ReasonStaged))

	provisioner := &pav.PavProvisioner{ObjectMeta: named(s.name)}
	s.delete(provisioner)
	volume := "PavVolume " + claim.Spec.VolumeName + " (reclaim policy Delete)"
	s.waitsFor(provisioner, []string{volume, "PavStage " + stage.Name + " (volume " + claim.Spec.VolumeName + " on node "}, nil)

	// Pods that have ended are no longer named, and the others are.
	s.remove(pod)
	s.waitsFor(provisioner, []string{volume}, []string{"PavStage"})
	s.remove(claim)
	s.gone(provisioner)
}

// waitsFor waits until a provisioner in deletion names all objects of named that it waits for, and
// none of unnamed.
func (s *scenario) waitsFor(provisioner *pav.PavProvisioner, named, unnamed []string) {
	s.t.Helper()
	now := provisioner.DeepCopy()
	s.await(fmt.Sprintf("the condition to name %q and not %q", named, unnamed), func() (bool, string) {
		if err := s.get(now); err != nil {
			return false, err.Error()
		}
		c := condition(now, pav.ConditionAccepted)
		_, waited, _ := strings.Cut(c.Message, "waiting for the deletion of ")
		is := c.Status == metav1.ConditionFalse && c.Reason == "Deleting" && containsAll(waited, named)
		for _, text := range unnamed {
			is = is && !strings.Contains(waited, text)
		}
		return is, fmt.Sprintf("it is %s %s: %s", c.Status, c.Reason, c.Message)
	})
}
