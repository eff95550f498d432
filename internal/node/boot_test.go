package node

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/mounts"
)

// ofAnotherBoot changes a stage's record to one from before the last start of the machine.
func ofAnotherBoot(folder string) error {
	path := filepath.Join(folder, "record.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	record := map[string]any{}
	if err := json.Unmarshal(data, &record); err != nil {
		return err
	}
	if record["boot"] == "" || record["boot"] == nil {
		return errors.New("the record names no boot")
	}
	record["boot"] = "another"
	if data, err = json.Marshal(record); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

// After a boot the record still says Staged. The stage, the directory and the staging pod's files
// are on the disk, but the pod's other work is lost.
func TestWhatWasStagedBeforeTheLastBootIsStagedAnew(t *testing.T) {
	for name, c := range map[string]struct {
		stage func() func(pav string) (tarnv1.StagePodPhase, string)
		// mounted says that the boot ends the volume's mount.
		mounted bool
	}{
		"a mount":                            {numbered, true},
		"a folder, which is there as it was": {func() func(string) (tarnv1.StagePodPhase, string) { return greet }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.start()
			w.player.set(c.stage())
			volume := w.volume(w.provisioner(), "pv-"+w.id)
			target := w.mustPublish(volume, "pod-1")
			stage := w.healthy(metav1.ConditionTrue, tarnv1.ReasonStaged)
			if err := os.WriteFile(filepath.Join(stage.Status.Node.Path, "old"), nil, 0o600); err != nil {
				t.Fatal(err)
			}

			w.stop()
			w.boot(stage, target, c.mounted)
			w.start()
			w.publishedAnew(volume, "pod-1", "old")
			after := w.stages()
			if len(after) != 1 || after[0].UID == stage.UID || after[0].Status.Node.Loss != nil {
				t.Errorf("the stages are %+v, want one that is not the one of before the boot", after)
			}
			w.mustUnpublish(volume, target)
			w.nothingIsLeft()
		})
	}
}

// boot changes a node as a boot does, as far as the agent can see.
func (w *world) boot(stage tarnv1.PavStage, target string, mounted bool) {
	w.Helper()
	gone := []string{target}
	if mounted {
		gone = append(gone, stage.Status.Node.Path)
	}
	for _, path := range gone {
		if err := mounts.UnmountTree(mounts.Kernel{}, path, nil); err != nil {
			w.Fatal(err)
		}
	}
	if err := ofAnotherBoot(filepath.Join(w.state, "stages", string(stage.UID))); err != nil {
		w.Fatal(err)
	}
}

// publishedAnew publishes as the kubelet does, with a retry after each rejection. The new volume
// must not contain a file of the earlier one.
func (w *world) publishedAnew(volume *corev1.PersistentVolume, pod, old string) {
	w.Helper()
	w.eventually("the volume is published", func() error {
		target, err := w.publish(volume, pod)
		if err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(target, old)); !errors.Is(err, os.ErrNotExist) {
			w.Fatalf("what was staged before the boot was handed out (%v)", err)
		}
		if _, err := os.Stat(filepath.Join(target, "greeting")); err != nil {
			w.Fatalf("what was handed out was not staged: %v", err)
		}
		return nil
	})
}
