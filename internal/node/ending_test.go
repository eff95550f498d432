package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/mounts"
	words "tarn.dev/tarn/internal/volume"
)

// deletedByHand deletes the only stage as a user would, and waits until the node agent reports that
// it is in use.
func (w *world) deletedByHand() {
	w.Helper()
	stage := w.stages()[0]
	w.must(w.client.Delete(w.ctx, &stage))
	w.eventually("the node agent says that the volume is used", func() error {
		if told := w.stages()[0].Status.Node.InUse; !ptr.Deref(told, false) {
			return fmt.Errorf("it says %v", told)
		}
		return nil
	})
}

func TestAStageThatIsDeletedByHandEndsWithTheLastOfItsTargets(t *testing.T) {
	w, volume := serving(t)
	first, second := w.mustPublish(volume, "pod-1"), w.mustPublish(volume, "pod-2")
	w.deletedByHand()
	w.mustUnpublish(volume, first) // which does not wait for the end of the stage
	w.wantFile(filepath.Join(second, "greeting"), "hello")
	begun := time.Now()
	if _, err := w.publish(volume, "pod-3"); status.Code(err) != codes.Unavailable || time.Since(begun) > 20*time.Second {
		t.Errorf("after %s another pod gets %v, want to be told Unavailable while the kubelet may still take the volume from others", time.Since(begun), err)
	}
	w.stop()
	w.start()
	if stages := w.stages(); len(stages) != 1 || !ptr.Deref(stages[0].Status.Node.InUse, false) || stages[0].Status.Pod.Phase != tarnv1.StagePodSucceeded {
		t.Errorf("under a pod there is %+v, want the stage as it was, and used", stages)
	}
	w.wantFile(filepath.Join(second, "greeting"), "hello")
	w.ends(volume, second)
}

func TestAStageThatIsDeletedByHandWaitsForNoPodThatIsGone(t *testing.T) {
	w, volume := serving(t)
	pod := w.pod("client")
	_, err := w.publish(volume, string(pod.UID), of(pod))
	w.must(err)
	w.deletedByHand()
	w.must(w.client.Delete(w.ctx, pod, client.GracePeriodSeconds(0)))
	// The kubelet has forgotten it.
	now := time.Now()
	if !w.agent.stages.ReleaseAbandoned(w.ctx, now) {
		t.Error("a pod that is gone is not noticed")
	}
	w.agent.stages.ReleaseAbandoned(w.ctx, now.Add(6*time.Minute))
	w.stageEnds()
	w.nothingIsLeft()
}

func TestTheTextOfAnUnstagingPodIsTheAttemptsOwn(t *testing.T) {
	w, volume := serving(t)
	w.player.set(func(pav string) (tarnv1.StagePodPhase, string) {
		_ = os.WriteFile(filepath.Join(pav, "error"), []byte("left by staging"), 0o644)
		return greet(pav)
	})
	target := w.mustPublish(volume, "pod-1")
	complaint := filepath.Join(w.state, "stages", string(w.stages()[0].UID), "pav", "error")
	w.player.hold(true)
	unpublished := make(chan error, 1)
	go func() { unpublished <- w.unpublish(volume, target) }()
	w.eventually("the volume is unmounted", func() error {
		if phase := w.stages()[0].Status.Node.Phase; phase != tarnv1.StageUnmounted {
			return errors.New(string(phase))
		}
		return nil
	})
	if _, err := os.Lstat(complaint); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the unstaging pod begins with what the staging pod has left in /pav/error (%v)", err)
	}
	w.player.mu.Lock() // the test is the stage controller now
	resume := sync.OnceFunc(w.player.mu.Unlock)
	defer resume()

	write := func(text string) {
		w.must(os.WriteFile(complaint, []byte(text), 0o644))
	}
	// A pod starts before it writes, and its status has the start in whole seconds.
	before := func() time.Time { return time.Now().Add(-time.Second) }
	write("  the lock is held\n")
	first := w.failsUnstaging(1, before())
	w.says(words.UnstagingWord(first, "the lock is held"))
	// The error text of this pod must not be taken for that of the next one, which writes nothing.
	w.failsUnstaging(2, time.Now().Add(2*time.Second))
	w.says("")
	write("still held")
	third := w.failsUnstaging(3, before())
	w.says(words.UnstagingWord(third, "still held"))

	resume()
	w.player.hold(false)
	if err := <-unpublished; err != nil {
		t.Errorf("unpublish: %v", err)
	}
	w.nothingIsLeft()
}

// failsUnstaging makes the stage's unstaging pod of an attempt fail; the kubelet started it at a
// given time.
func (w *world) failsUnstaging(attempt int32, started time.Time) tarnv1.PavStagePodStatus {
	w.Helper()
	pod := consumer(w, fmt.Sprintf("unstaging-%d", attempt), corev1.PodFailed)
	pod.Status.StartTime = &metav1.Time{Time: started}
	w.must(w.client.Status().Update(w.ctx, pod))
	status := tarnv1.PavStagePodStatus{
		Phase: tarnv1.StagePodUnstaging, Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Staged: true, UnstageAttempts: attempt,
		Message: "container main exited with 1", NextAttemptTime: &metav1.Time{Time: time.Now().Add(time.Hour)},
	}
	part, err := json.Marshal(status)
	w.must(err)
	stage := w.stages()[0]
	body := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"pod":%s}}`, stage.UID, part)
	w.must(w.client.Status().Patch(w.ctx, &stage, client.RawPatch(types.MergePatchType, body)))
	return status
}

// says waits until the agent's message is the given one.
func (w *world) says(want string) {
	w.Helper()
	w.eventually("the agent says "+want, func() error {
		if got := w.stages()[0].Status.Node.Message; got != want {
			return errors.New("it says " + got)
		}
		return nil
	})
}

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
			w.must(os.WriteFile(filepath.Join(stage.Status.Node.Path, "old"), nil, 0o600))

			w.stop()
			w.boot(stage, target, c.mounted)
			w.start()
			w.publishedAnew(volume, "pod-1", "old")
			after := w.stages()
			if len(after) != 1 || after[0].UID == stage.UID || after[0].Status.Node.Loss != nil {
				t.Errorf("the stages are %+v, want one that is not the one of before the boot", after)
			}
			w.ends(volume, target)
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
		w.must(mounts.UnmountTree(mounts.Kernel{}, path, nil))
	}
	w.must(ofAnotherBoot(filepath.Join(w.state, "stages", string(stage.UID))))
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
