//go:build e2e

package e2e

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// aStagingPodOutlivesItsConsumersInAShutdown, so a consumer's last writes reach the volume before
// its staging pod is asked to end. The embedded cluster stops as a machine is shut down.
func aStagingPodOutlivesItsConsumersInAShutdown(t *testing.T) {
	s, shelf := begin(t, "shutdown"), t.TempDir()
	s.step = 3 * soon // it waits until a whole cluster is up again
	s.create(s.provisioner(fields{
		"volumeCreation": asRequested,
		"volumeStaging": script{hostDir: shelf, text: `mkdir /pav/volume
trap 'cat /pav/volume/last > /host/seen; exit' TERM
touch /pav/ready
sleep 1d & wait`}.section(nil),
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	pod := s.consumer("writer", claim.Name, "trap 'sleep 2; echo written > /data/last; exit' TERM; echo began; sleep 1d & wait")
	s.ready(pod)
	s.prints(pod, "began")

	for _, command := range [][]string{{"down", "--keep-data"}, strings.Split(os.Getenv(apart), "\n")} {
		if out, err := suite.machine.run(command...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if text := s.onShelf(shelf, "seen"); text != "written" {
		t.Errorf("as it was asked to end, the staging pod found %q in the volume, want what its consumer wrote last", text)
	}
	s.remove(pod)
	s.remove(claim)
}
