//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// wrongVolumes makes at /pav/volume something that is no volume for a claim of that name. The pod
// ignores SIGTERM until it is released, so that the stage keeps the message.
const wrongVolumes = `set -e
case {{ pvc.metadata.name }} in
link-out) ln -s / /pav/volume;;
link-nowhere) ln -s /etc /pav/volume;;
file | file-for-device) echo data > /pav/volume;;
directory-for-device) mkdir /pav/volume;;
size) truncate -s 4M /host/image; loop=$(losetup -f --show /host/image); cp -a $loop /pav/volume;;
esac
touch /pav/ready
until [ -e /host/go ]; do sleep 0.5; done
[ -z "$loop" ] || losetup -d $loop`

func TestAVolumeThatIsNotWhatItHasToBeIsToldAndNotHandedOut(t *testing.T) {
	t.Parallel()
	shelf := t.TempDir()
	s := begin(t, "wrong-volume")
	s.needsThisMachine()
	staging := script{hostDir: shelf, privileged: true, text: wrongVolumes}.section(nil)
	seesDevices(staging["podTemplate"])
	staging["podTemplate"].(fields)["spec"].(fields)["terminationGracePeriodSeconds"] = int64(600)
	s.create(s.provisioner(fields{
		"volumeValidation": fields{"volumeModes": []any{"Filesystem", "Block"}},
		"volumeCreation":   asRequested,
		"volumeStaging":    staging,
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	t.Cleanup(func() {
		if err := os.WriteFile(filepath.Join(shelf, "go"), nil, 0o600); err != nil {
			t.Error(err)
		}
	})
	block := corev1.PersistentVolumeBlock
	cases := []struct {
		claim string
		mode  *corev1.PersistentVolumeMode
		want  string
	}{
		{"link-out", nil, "/pav/volume is a symbolic link that leads out of /pav"},
		{"link-nowhere", nil, "/pav/volume is a symbolic link that leads to nothing below /pav"},
		{"file", nil, "/pav/volume is neither a directory nor a block device"},
		{"file-for-device", &block, "/pav/volume is neither a directory nor a block device"},
		{"directory-for-device", &block, "/pav/volume is a directory, but volumeMode is Block"},
		{"size", &block, "/pav/volume is a block device of 4Mi, but the volume's capacity is 8Mi"},
	}
	pods := map[string]*corev1.Pod{}
	for _, c := range cases { // in parallel, because each mostly waits
		claim := s.claimWith(c.claim, func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.VolumeMode = c.mode
			claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("8Mi")
		})
		pods[c.claim] = s.consumer(c.claim, claim.Name, "true", func(pod *corev1.Pod) {
			if c.mode != nil {
				onBlock(pod)
			}
		})
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			sub := &scenario{t: t, ctx: s.ctx, name: s.name}
			claim := sub.bound(&corev1.PersistentVolumeClaim{ObjectMeta: pods[c.claim].ObjectMeta})
			g := sub.stageOf("failed for "+c.claim, func(g *tarn.PavStage) bool {
				return g.Spec.VolumeName == claim.Spec.VolumeName && g.Status.Node.Phase == tarn.StageFailed
			})
			if !strings.Contains(g.Status.Node.Message, c.want) {
				t.Errorf("the stage says %q, want %q", g.Status.Node.Message, c.want)
			}
			sub.await("an Event that tells pod "+c.claim, func() (bool, string) {
				events := sub.events(s.name, c.claim)
				for _, e := range events {
					if e.InvolvedObject.Kind == "Pod" && e.Type == corev1.EventTypeWarning && strings.Contains(e.Message, c.want) {
						return true, ""
					}
				}
				return false, fmt.Sprintf("there are %d: %s", len(events), eventLines(events))
			})
			pod := pods[c.claim]
			if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(pod), pod); err != nil || pod.Status.Phase != corev1.PodPending {
				t.Errorf("the pod is %s, want it not to have begun (%v)", pod.Status.Phase, err)
			}
		})
	}
}
