//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// Case 138. The reason why a recycling pod does not run is shown on the volume. Once it is
// repaired, recycling continues by itself.
func TestAScrubPodThatFindsNoNodeIsToldAndRunsOnceThereIsOne(t *testing.T) {
	t.Parallel()
	s := begin(t, "scrub-waits")
	s.needsThisMachine()
	folder, label := t.TempDir(), "e2e.tarn.dev/"+s.name
	if err := os.WriteFile(filepath.Join(folder, "note"), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	var node string
	volume := s.recycled(folder, tarn.RecycleFiles, corev1.PersistentVolumeFilesystem, func(vol *corev1.PersistentVolume) {
		here := &vol.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
		node, here.Key, here.Values = here.Values[0], label, []string{"here"}
	})
	t.Cleanup(func() { s.kubectl("label", "node", node, label+"-") })
	s.remove(s.tenant("a", corev1.PersistentVolumeFilesystem))
	s.told(volume, "RecyclerPod", "scrub pod tarn-system/scrub-"+string(volume.UID), "not scheduled")
	if err := s.get(volume); err != nil || volume.Status.Phase == corev1.VolumeAvailable || volume.Annotations[tarn.AnnotationRecycled] != "" {
		t.Errorf("the volume waits for its pod, and is %s with annotations %v (%v)", volume.Status.Phase, volume.Annotations, err)
	}
	if left := entriesOf(t, folder); len(left) != 1 {
		t.Errorf("no pod has run, and on the volume are %q", left)
	}
	s.kubectl("label", "node", node, label+"=here")
	s.certified(volume, tarn.RecycleFiles)
	if left := entriesOf(t, folder); len(left) != 0 {
		t.Errorf("recycled, it holds %q", left)
	}
}

func TestARecyclingPodWithoutItsImageIsToldAndTriedAgain(t *testing.T) {
	t.Parallel()
	shelf := t.TempDir()
	s := begin(t, "recycle-image")
	s.needsThisMachine()
	s.step = 3 * soon // it includes the deadlines of two pods
	sections := shelved(shelf)
	recycling := script{hostDir: shelf, text: "rm -f /host/{{ handle|tobash }}/note"}.section(nil)
	container(recycling)["image"], container(recycling)["imagePullPolicy"] = "tarn.invalid/no-such-image:1", "Never"
	podSpec(recycling)["activeDeadlineSeconds"] = int64(20)
	sections["volumeRecycling"] = recycling
	s.create(s.provisioner(sections))
	s.class(corev1.PersistentVolumeReclaimRetain)
	volume := &corev1.PersistentVolume{}
	a := s.used("a", volume)
	s.asks(volume, tarn.RecycleFiles)
	s.remove(a)
	s.told(volume, "RecyclerPod", "recycling pod", "ErrImageNeverPull", "tarn.invalid/no-such-image:1")
	var last tarn.RecycleFailure
	s.await("two pods to have failed", func() (bool, string) {
		if err := s.get(volume); err != nil {
			return false, err.Error()
		}
		text := volume.Annotations[tarn.AnnotationRecycleFailure]
		if text != "" {
			if err := json.Unmarshal([]byte(text), &last); err != nil {
				t.Fatalf("failure %q: %v", text, err)
			}
		}
		if volume.Spec.ClaimRef == nil {
			t.Fatalf("no pod has recycled it, and it is nobody's: %+v", volume.Status)
		}
		return last.Attempts > 1 && strings.Contains(last.Message, "ErrImageNeverPull"), fmt.Sprintf("it is %s, failures %q", volume.Status.Phase, text)
	})
	if text := readNote(t, shelf, volume.Spec.CSI.VolumeHandle); text != "a\n" {
		t.Errorf("no pod has run, and the note reads %q", text)
	}
	s.told(volume, "VolumeFailedRecycle", "the recycling pod failed", "has not ended within 20s")

	container(recycling)["image"] = "busybox:1.36"
	delete(podSpec(recycling), "activeDeadlineSeconds") // a busy machine may not start a working pod within it
	s.edit(s.provisioner(sections))
	s.verified(s.certified(volume, tarn.RecycleFiles), 0)
	if left := entriesOf(t, filepath.Join(shelf, volume.Spec.CSI.VolumeHandle)); len(left) != 0 {
		t.Errorf("recycled, it holds %q", left)
	}
	s.reclaimed(volume, shelf)
}

// reclaimed gives an unclaimed volume policy Delete and deletes it. It wants nothing to be left on
// its shelf.
func (s *scenario) reclaimed(volume *corev1.PersistentVolume, shelf string) {
	s.t.Helper()
	s.kubectl("patch", "pv", volume.Name, "-p", `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	s.remove(volume)
	if left := entriesOf(s.t, shelf); len(left) != 0 {
		s.t.Errorf("left on the shelf: %q", left)
	}
}
