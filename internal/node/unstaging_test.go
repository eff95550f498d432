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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	words "tarn.dev/tarn/internal/volume"
)

func TestTheTextOfAnUnstagingPodIsTheAttemptsOwn(t *testing.T) {
	w := newWorld(t)
	w.start()
	volume := w.volume(w.provisioner(), "pv-"+w.id)
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
		if err := os.WriteFile(complaint, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
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
	if err := w.client.Status().Update(w.ctx, pod); err != nil {
		w.Fatal(err)
	}
	status := tarnv1.PavStagePodStatus{
		Phase: tarnv1.StagePodUnstaging, Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Staged: true, UnstageAttempts: attempt,
		Message: "container main exited with 1", NextAttemptTime: &metav1.Time{Time: time.Now().Add(time.Hour)},
	}
	part, err := json.Marshal(status)
	if err != nil {
		w.Fatal(err)
	}
	stage := w.stages()[0]
	body := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"pod":%s}}`, stage.UID, part)
	if err := w.client.Status().Patch(w.ctx, &stage, client.RawPatch(types.MergePatchType, body)); err != nil {
		w.Fatal(err)
	}
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
