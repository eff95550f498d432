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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// growing is the answer to a call that lets a volume grow.
type growing struct {
	answer *csi.NodeExpandVolumeResponse
	err    error
}

// grow calls NodeExpandVolume; the answer comes later.
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
	w.eventually(fmt.Sprintf("attempt %d at growing is asked for", attempt), func() error {
		stages := w.stages()
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

func (w *world) expands(driver string) bool {
	w.Helper()
	answer, err := w.csi(driver).NodeGetCapabilities(w.ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		w.Fatal(err)
	}
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
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec": {"volumeExpansion": {"nodePodTemplate": {"spec": {}}}}}`))
	if err := w.client.Patch(w.ctx, &pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: provisioner}}, patch); err != nil {
		t.Fatal(err)
	}
	w.eventually("the driver expands volumes", func() error {
		if !w.expands(provisioner) {
			return errors.New("not yet")
		}
		return nil
	})
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

	// The next call is another attempt, with nothing left of the last complaint.
	call = w.grow(volume, target, larger)
	w.answer(2, larger, tarnv1.StageExpansionSucceeded, "")
	if got := <-call; got.err != nil || got.answer.CapacityBytes != larger {
		t.Errorf("a success is told as %v, %v", got.answer, got.err)
	}
	if _, err := os.Lstat(complaint); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old complaint is still there: %v", err)
	}

	// What has grown is not asked for again, but may grow further.
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
	w.mustUnpublish(volume, target)
	w.nothingIsLeft()
}
