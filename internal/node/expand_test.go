package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/nodetest"
	"tarn.dev/tarn/internal/testkit"
	words "tarn.dev/tarn/internal/volume"
)

// growing is the pending answer to NodeExpandVolume.
type growing struct {
	answer *csi.NodeExpandVolumeResponse
	err    error
}

// grow calls NodeExpandVolume. The answer comes later.
func (w *world) grow(volume *corev1.PersistentVolume, target string, bytes int64) <-chan growing {
	done := make(chan growing, 1)
	node := w.csi(volume.Spec.CSI.Driver)
	go func() {
		answer, err := node.NodeExpandVolume(w.ctx, &csi.NodeExpandVolumeRequest{
			VolumeId: volume.Spec.CSI.VolumeHandle, VolumePath: target, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
		})
		done <- growing{answer, err}
	}()
	return done
}

// answer waits for a request to grow and answers it as the stage controller does.
func (w *world) answer(attempt int32, bytes int64, phase tarnv1.StageExpansionPhase, message string) {
	w.Helper()
	w.answerTheOne(false, attempt, bytes, phase, message)
}

// answerTheOne is answer for the only stage that is read-only, or is not.
func (w *world) answerTheOne(readOnly bool, attempt int32, bytes int64, phase tarnv1.StageExpansionPhase, message string) {
	w.Helper()
	w.eventually(fmt.Sprintf("attempt %d at growing is asked for, read-only: %v", attempt, readOnly), func() error {
		stages := slices.DeleteFunc(w.stages(), func(s tarnv1.PavStage) bool { return s.Spec.ReadOnly != readOnly })
		if len(stages) != 1 {
			return fmt.Errorf("%d stages", len(stages))
		}
		stage := stages[0].DeepCopy()
		if e := stage.Status.Node.Expansion; e == nil || e.Attempt != attempt || e.Capacity != bytes {
			return fmt.Errorf("asked for: %+v", e)
		}
		stage.Status.Pod.Expansion = &tarnv1.StageExpansion{Attempt: attempt, Phase: phase, Message: message}
		return w.client.Status().Patch(w.ctx, stage, client.MergeFromWithOptions(&stages[0], client.MergeFromWithOptimisticLock{}))
	})
}

// unanswered says whether the request to grow has no answer yet.
func unanswered(stage *tarnv1.PavStage) bool {
	want, have := stage.Status.Node.Expansion, stage.Status.Pod.Expansion
	return want != nil && (have == nil || have.Attempt != want.Attempt)
}

// grow is a node expansion pod with nothing to do.
func (p *player) grow(stage *tarnv1.PavStage) {
	body := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"pod":{"expansion":{"attempt":%d,"phase":%q}}}}`,
		stage.UID, stage.Status.Node.Expansion.Attempt, tarnv1.StageExpansionSucceeded)
	if err := p.w.client.Status().Patch(p.w.ctx, stage, client.RawPatch(types.MergePatchType, body)); err != nil {
		p.wrong = append(p.wrong, fmt.Sprintf("set status.pod.expansion of %s: %v", stage.Name, err))
	}
}

// letGrow gives a provisioner volumeExpansion.
func (w *world) letGrow(provisioner string) {
	w.Helper()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"volumeExpansion": {"nodePodTemplate": {"spec": {}}}}}`))
	w.must(w.client.Patch(w.ctx, &pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: provisioner}}, patch))
	w.until("the driver expands volumes", func() bool { return w.expands(provisioner) })
}

// readsReadOnly makes a template of staging read readOnly, or none.
func (w *world) readsReadOnly(provisioner string, reads bool) {
	w.Helper()
	p := &pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: provisioner}}
	w.must(w.client.Get(w.ctx, client.ObjectKeyFromObject(p), p))
	changed := p.DeepCopy()
	changed.Spec.VolumeStaging, changed.Spec.VolumeExpansion = testkit.PodSection(), nil // the latter shows that the agent has heard of it
	if reads {
		changed.Spec.VolumeStaging, changed.Spec.VolumeExpansion = testkit.Section(`{"podTemplate": {"metadata": {"labels": {"ro": "{{ readOnly }}"}}}}`), testkit.Section("{}")
	}
	w.must(w.client.Patch(w.ctx, changed, client.MergeFrom(p)))
	w.until("the agent has heard of it", func() bool { return w.expands(provisioner) == reads })
}

func (w *world) expands(driver string) bool {
	w.Helper()
	answer, err := w.csi(driver).NodeGetCapabilities(w.ctx, &csi.NodeGetCapabilitiesRequest{})
	w.must(err)
	return slices.ContainsFunc(answer.Capabilities, func(c *csi.NodeServiceCapability) bool {
		return c.GetRpc().GetType() == csi.NodeServiceCapability_RPC_EXPAND_VOLUME
	})
}

func TestAVolumeGrowsWhenTheKubeletAsks(t *testing.T) {
	const larger, largest = 2 << 20, 3 << 20
	w := newWorld(t)
	w.start()
	provisioner := w.provisioner()
	if w.expands(provisioner) {
		t.Error("a provisioner without volumeExpansion expands volumes")
	}
	w.letGrow(provisioner)
	volume := w.volume(provisioner, "pv-"+w.id)
	target := w.mustPublish(volume, "pod-1")
	complaint := filepath.Join(w.state, "stages", string(w.stages()[0].UID), "pav", "error")

	// What the pod has written to /pav/error reaches the kubelet.
	call := w.grow(volume, target, larger)
	w.eventually("growing is asked for", func() error {
		if w.stages()[0].Status.Node.Expansion == nil {
			return errors.New("not yet")
		}
		return os.WriteFile(complaint, []byte("shelf full\n"), 0o600)
	})
	w.answer(1, larger, tarnv1.StageExpansionFailed, "it exited with 1")
	if got := <-call; status.Code(got.err) != codes.Internal || !strings.Contains(got.err.Error(), "shelf full") {
		t.Errorf("a failure is told as %v", got.err)
	}

	// The next call is another attempt, without the error text of the last.
	call = w.grow(volume, target, larger)
	w.answer(2, larger, tarnv1.StageExpansionSucceeded, "")
	if got := <-call; got.err != nil || got.answer.CapacityBytes != larger {
		t.Errorf("a success is told as %v, %v", got.answer, got.err)
	}
	if _, err := os.Lstat(complaint); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old complaint is still there: %v", err)
	}

	// A volume that has grown is not asked again, but may grow further.
	if got := <-w.grow(volume, target, larger); got.err != nil || w.stages()[0].Status.Node.Expansion.Attempt != 2 {
		t.Errorf("asked again for what it has: %v, %+v", got.err, w.stages()[0].Status.Node.Expansion)
	}
	call = w.grow(volume, target, largest)
	w.answer(3, largest, tarnv1.StageExpansionSucceeded, "")
	if got := <-call; got.err != nil || got.answer.CapacityBytes != largest {
		t.Errorf("growing further is told as %v, %v", got.answer, got.err)
	}

	stranger := volume.DeepCopy()
	stranger.Spec.CSI.VolumeHandle = "nobody's"
	if got := <-w.grow(stranger, filepath.Join(w.kubelet, "nowhere"), larger); status.Code(got.err) != codes.NotFound {
		t.Errorf("an unknown volume is told as %v, want NotFound", got.err)
	}
	w.ends(volume, target)
}

// The kubelet asks once per volume, whatever its pods do with it. So one call is for both stages:
// the one written to and the one only read.
func TestBothStagesOfAVolumeGrowWhenTheKubeletAsksForOne(t *testing.T) {
	const larger = 2 << 20
	w := newWorld(t)
	w.start()
	provisioner := w.provisioner()
	w.readsReadOnly(provisioner, true)
	volume := w.volume(provisioner, "pv-"+w.id)
	writable, readOnly := w.mustPublish(volume, "pod-1"), w.mustPublishReadOnly(volume, "pod-2")
	attempts := func(wantWritable, wantReadOnly int32) {
		t.Helper()
		for _, s := range w.stages() {
			want := map[bool]int32{false: wantWritable, true: wantReadOnly}[s.Spec.ReadOnly]
			if e := s.Status.Node.Expansion; e == nil || e.Attempt != want || e.Capacity != larger {
				t.Errorf("the stage that is read-only: %v, was asked for %+v, want attempt %d", s.Spec.ReadOnly, e, want)
			}
		}
	}

	// If one stage has grown, the volume has not yet.
	call := w.grow(volume, writable, larger)
	w.answerTheOne(false, 1, larger, tarnv1.StageExpansionSucceeded, "")
	w.answerTheOne(true, 1, larger, tarnv1.StageExpansionFailed, "the mirror is full")
	if got := <-call; status.Code(got.err) != codes.Internal || !strings.Contains(got.err.Error(), "the mirror is full") {
		t.Errorf("that the read-only stage has not grown is told as %v, %v", got.answer, got.err)
	}
	attempts(1, 1)

	// The next call, by any path, asks only the stage that has failed.
	call = w.grow(volume, readOnly, larger)
	w.answerTheOne(true, 2, larger, tarnv1.StageExpansionSucceeded, "")
	if got := <-call; got.err != nil || got.answer.CapacityBytes != larger {
		t.Errorf("that both have grown is told as %v, %v", got.answer, got.err)
	}
	attempts(1, 2)
	w.ends(volume, writable, readOnly)
}

// enlarge changes the size of a loop device of the tests.
func (w *world) enlarge(device uint64, size int64) {
	w.Helper()
	number := unix.Minor(device)
	backing, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/loop/backing_file", number))
	w.must(err)
	w.must(os.Truncate(strings.TrimSpace(string(backing)), size))
	loop, err := os.Open(fmt.Sprint("/dev/loop", number))
	w.must(err)
	w.must(errors.Join(unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_CAPACITY, 0), loop.Close()))
}

// publishDevice makes and publishes a block volume of 1Mi from the device.
func (w *world) publishDevice(provisioner string, device uint64) (volume *corev1.PersistentVolume, target string) {
	w.Helper()
	w.player.set(func(pav string) (tarnv1.StagePodPhase, string) {
		return played(tarnv1.StagePodSucceeded, unix.Mknod(filepath.Join(pav, "volume"), unix.S_IFBLK|0o600, int(device))) //nolint:gosec // a device number fits
	})
	volume = w.volume(provisioner, "pv-"+w.id, func(v *corev1.PersistentVolume) { v.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) })
	target, err := w.publish(volume, "pod-1", func(r *csi.NodePublishVolumeRequest) {
		r.VolumeCapability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	})
	w.must(err)
	return volume, target
}

func TestABlockDeviceThatStaysTooSmallIsTriedAgain(t *testing.T) {
	const size, larger, largest = 1 << 20, 2 << 20, 3 << 20
	device := nodetest.Loop(t, size)
	w := newWorld(t)
	w.start()
	provisioner := w.provisioner()
	w.letGrow(provisioner)
	volume, target := w.publishDevice(provisioner, device)
	tooSmall := func(call <-chan growing, wanted int64) {
		t.Helper()
		want := fmt.Sprintf("a block device of %s after the expansion, but the claim requests %s; the pods of volumeExpansion must make it", words.Size(size), words.Size(wanted))
		if got := <-call; status.Code(got.err) != codes.Internal || !strings.Contains(got.err.Error(), want) {
			t.Errorf("a device that has not grown is told as %v, %v, want Internal and %q", got.answer, got.err, want)
		}
	}
	has := func(call <-chan growing, wanted int64, attempt int32) {
		t.Helper()
		if got := <-call; got.err != nil || got.answer.CapacityBytes != wanted {
			t.Errorf("growing to %d bytes is told as %v, %v", wanted, got.answer, got.err)
		}
		if got := w.stages()[0].Status.Node.Expansion.Attempt; got != attempt {
			t.Errorf("it is asked for attempt %d, want %d", got, attempt)
		}
	}

	// Each call is another attempt, as after a failed pod.
	for attempt := range int32(2) {
		call := w.grow(volume, target, largest)
		w.answer(attempt+1, largest, tarnv1.StageExpansionSucceeded, "")
		tooSmall(call, largest)
	}
	// A restarted agent reports the result that it finds before it asks again.
	w.stop()
	w.start()
	w.eventually("the driver is served", func() error { return w.served(provisioner) })
	tooSmall(w.grow(volume, target, largest), largest)

	// A size that the volume has is not asked for. A larger one is asked for at once, though it is
	// smaller than the last request.
	has(w.grow(volume, target, size), size, 2)
	call := w.grow(volume, target, larger)
	w.answer(3, larger, tarnv1.StageExpansionSucceeded, "")
	tooSmall(call, larger)
	call = w.grow(volume, target, larger)
	w.eventually("it is asked again", func() error {
		if e := w.stages()[0].Status.Node.Expansion; e.Attempt != 4 {
			return fmt.Errorf("asked for: %+v", e)
		}
		return nil
	})
	w.enlarge(device, larger)
	w.answer(4, larger, tarnv1.StageExpansionSucceeded, "")
	has(call, larger, 4)
	has(w.grow(volume, target, larger), larger, 4)
	w.ends(volume, target)
}

// The work of a pod whose volume is lost meanwhile does not help the volume that is staged again.
func TestAnExpansionThatRunsWhenItsVolumeIsLostIsAskedForAnew(t *testing.T) {
	const larger = 2 << 20
	w := newWorld(t)
	volume := w.startNumbered()
	target := w.mustPublish(volume, "pod-1")
	losses := 0
	lose := func() {
		t.Helper()
		reason := tarnv1.ReasonStaged
		if losses++; losses > 1 {
			reason = tarnv1.ReasonRebound
		}
		w.unmountVolume(w.healthy(metav1.ConditionTrue, reason))
		w.eventually("the loss is over", func() error {
			if l := w.stages()[0].Status.Node.Loss; l == nil || int(l.Number) != losses || l.ReboundTime == nil {
				return fmt.Errorf("loss %+v", l)
			}
			return nil
		})
	}
	call := w.grow(volume, target, larger)
	w.answer(1, larger, tarnv1.StageExpansionRunning, "")
	lose()
	if got := <-call; status.Code(got.err) != codes.Unavailable {
		t.Errorf("a volume that is lost while it grows is told as %v", got.err)
	}
	call = w.grow(volume, target, larger)
	w.answer(2, larger, tarnv1.StageExpansionSucceeded, "")
	if got := <-call; got.err != nil {
		t.Errorf("growing is told as %v", got.err)
	}
	lose()
	if got := <-w.grow(volume, target, larger); got.err != nil || w.stages()[0].Status.Node.Expansion.Attempt != 2 {
		t.Errorf("what had grown before the loss is told as %v, asked for is %+v", got.err, w.stages()[0].Status.Node.Expansion)
	}
	w.ends(volume, target)
}
