package node

import (
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// has writes conditions of the agent's Node, and creates a missing Node.
func (w *world) has(conditions ...corev1.NodeCondition) {
	w.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.node}}
	w.create(n)
	n.Status.Conditions = conditions
	if err := w.client.Status().Update(w.ctx, n); err != nil {
		w.Fatal(err)
	}
}

var nodeReady = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}

func TestUnderPressureTheKubeletTellsWhetherAPodHasSucceeded(t *testing.T) {
	w := newWorld(t)
	w.options.CRIEndpoint = filepath.Join(w.kubelet, "cri.sock")
	runtime := startRuntime(t, w.options.CRIEndpoint)
	w.has(nodeReady, corev1.NodeCondition{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue})
	w.start()
	stopped := w.pod("stopped") // by SIGTERM, upon which it exits with 0
	w.mustPublishPav(stopped, map[string]string{"handle": "half-made"})
	runtime.exit(stopped, "main", 0)
	runtime.stopped(stopped)
	failed := w.pod("failed")
	w.mustPublishPav(failed, map[string]string{"error": "no room"})
	runtime.exit(failed, "main", 1)
	runtime.stopped(failed)
	w.eventually("what has failed is told at once", func() error { _, err := w.result(failed); return err })
	time.Sleep(100 * time.Millisecond)
	if got, err := w.result(stopped); err == nil {
		t.Errorf("stored of the pod that was stopped: %+v", got)
	}
	if err := w.unpublishPav(stopped); err != nil {
		t.Fatal(err)
	}
	if got, err := w.result(stopped); err != nil || got.Succeeded != nil || *got.Handle != "half-made" {
		t.Errorf("result after unpublish: %+v %v", got, err)
	}
	if err := w.unpublishPav(failed); err != nil {
		t.Fatal(err)
	}
	w.nothingIsLeft()
}
