package node

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// deletedByHand deletes the only stage as a user would, and waits until the node agent reports that
// it is in use.
func (w *world) deletedByHand() {
	w.Helper()
	stage := w.stages()[0]
	if err := w.client.Delete(w.ctx, &stage); err != nil {
		w.Fatal(err)
	}
	w.eventually("the node agent says that the volume is used", func() error {
		if told := w.stages()[0].Status.Node.InUse; !ptr.Deref(told, false) {
			return fmt.Errorf("it says %v", told)
		}
		return nil
	})
}

func TestAStageThatIsDeletedByHandEndsWithTheLastOfItsTargets(t *testing.T) {
	w := newWorld(t)
	w.start()
	volume := w.volume(w.provisioner(), "pv-"+w.id)
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
	w.mustUnpublish(volume, second)
	w.nothingIsLeft()
}

func TestAStageThatIsDeletedByHandWaitsForNoPodThatIsGone(t *testing.T) {
	w := newWorld(t)
	w.start()
	volume := w.volume(w.provisioner(), "pv-"+w.id)
	pod := w.pod("client")
	if _, err := w.publish(volume, string(pod.UID), func(r *csi.NodePublishVolumeRequest) {
		r.VolumeContext = map[string]string{keyNamespace: pod.Namespace, keyPodName: pod.Name, keyPodUID: string(pod.UID)}
	}); err != nil {
		t.Fatal(err)
	}
	w.deletedByHand()
	if err := w.client.Delete(w.ctx, pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	// The kubelet has forgotten it.
	now := time.Now()
	if !w.agent.stages.ReleaseAbandoned(w.ctx, now) {
		t.Error("a pod that is gone is not noticed")
	}
	w.agent.stages.ReleaseAbandoned(w.ctx, now.Add(6*time.Minute))
	w.eventually("the stage ends", func() error {
		if left := w.stages(); len(left) > 0 {
			return errors.New(left[0].Name)
		}
		return nil
	})
	w.nothingIsLeft()
}
