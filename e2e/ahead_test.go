//go:build e2e

package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

func TestAVolumeIsStagedAheadOfTheKubeletsCall(t *testing.T) {
	t.Parallel()
	s := begin(t, "ahead")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting, "volumeUnstaging": script{text: "true"}.section(nil)}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	// Staging is not begun ahead on a node that has not yet reported its provisioners.
	s.await("the node to serve the provisioner", func() (bool, string) {
		p := &pav.PavProvisioner{ObjectMeta: named(s.name)}
		err := s.get(p)
		return err == nil && meta.IsStatusConditionTrue(p.Status.Conditions, pav.ConditionReady), fmt.Sprint(err)
	})
	// A slow kubelet may have asked for the volume before it reports that it has accepted the pod.
	var pod *corev1.Pod
	var stage *tarn.PavStage
	for tries := 1; stage == nil || !stage.Status.Node.Taken; tries++ {
		if stage != nil {
			s.remove(pod)
			s.gone(stage)
		}
		if tries > 5 {
			t.Fatal("of five pods none had its volume staged ahead")
		}
		pod = s.consumer("first", claim.Name, "grep -q hello /data/greeting; "+stays)
		s.ready(pod)
		stage = s.stageOf("used by the pod", func(g *tarn.PavStage) bool { return len(g.Status.Node.Targets) == 1 && g.DeletionTimestamp == nil })
	}
	if who := stage.Spec.AheadFor; who == nil || who.UID != pod.UID || who.Name != pod.Name || who.Namespace != pod.Namespace {
		t.Errorf("it was begun for %+v, want pod %s", who, pod.UID)
	}
	second := s.consumer("second", claim.Name, "grep -q hello /data/greeting; "+stays)
	s.ready(second)
	s.remove(pod) // the stage no longer belongs to that pod alone
	s.stageOf("the other pod has it", func(g *tarn.PavStage) bool {
		return g.UID == stage.UID && g.DeletionTimestamp == nil && len(g.Status.Node.Targets) == 1
	})
	s.remove(second)
	s.gone(stage)
	s.remove(claim)
}
