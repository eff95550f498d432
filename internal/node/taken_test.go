package node

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// judge writes the status that package accept would.
func (w *world) judge(name string, conditions ...metav1.Condition) {
	w.Helper()
	p := &pavv1.PavProvisioner{}
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: name}, p))
	for i := range conditions {
		conditions[i].LastTransitionTime = metav1.Now()
	}
	p.Status.Conditions = conditions
	w.must(w.client.Status().Update(w.ctx, p))
}

func TestADriverWhoseNameIsAnothersIsServedForWhatIsStagedAlone(t *testing.T) {
	w := newWorld(t)
	w.start()
	name := w.provisioner()
	isServed := func() error { return w.served(name) }
	isNot := func() error {
		if isServed() == nil {
			return errors.New("still served")
		}
		return nil
	}
	accepted := testkit.Accepted(metav1.ConditionTrue, "Accepted", "")
	taken := testkit.Accepted(metav1.ConditionFalse, pavv1.ReasonDriverNameTaken, "CSIDriver belongs to something else")
	w.judge(name, taken)
	w.eventually("the driver is not offered any more", isNot)
	w.judge(name, accepted)
	w.eventually("the driver is offered again when the name is free", isServed)

	volume := w.volume(name, "pv-"+w.id)
	target := w.mustPublish(volume, "pod-1")
	going := testkit.Accepted(metav1.ConditionFalse, "Deleting", "deletion is requested")
	notReady := metav1.Condition{Type: pavv1.ConditionReady, Status: metav1.ConditionFalse, Reason: pavv1.ReasonDriverNameTaken}
	w.judge(name, going, notReady)
	w.stop()
	w.start() // the stage, not what was served before, is what keeps it
	if err := isServed(); err != nil {
		t.Error(err)
	}
	w.ends(volume, target)
	w.eventually("the driver ends with its last stage", isNot)
	w.stop()
	w.start()
	if err := isNot(); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

// Until the other driver is removed, the kubelet asks that one about our volumes.
func TestAnAgentIsReadyThoughAnotherDriverHasTheNameOfWhatIsStaged(t *testing.T) {
	w := newWorld(t)
	w.start()
	name := w.provisioner()
	volume := w.volume(name, "pv-"+w.id)
	target := w.mustPublish(volume, "pod-1")
	w.judge(name, testkit.Accepted(metav1.ConditionFalse, pavv1.ReasonDriverNameTaken, "CSIDriver belongs to something else"))
	w.stop()
	socket := filepath.Join(w.kubelet, "plugins_registry", name+"-reg.sock")
	w.must(os.Remove(socket))
	theirs, err := net.Listen("unix", socket)
	w.must(err)
	t.Cleanup(func() { _ = theirs.Close() })
	w.start() // which waits until it is ready
	if w.served(name) == nil {
		t.Error("it is served though the kubelet is told of another")
	}
	w.must(theirs.Close())
	w.eventually("the driver is served when the other one has gone", func() error { return w.served(name) })
	w.ends(volume, target)
}
