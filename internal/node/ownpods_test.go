package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/testkit"
)

// An attacker on a stolen node has the agent's token.
func TestTheAgentReadsNoPodOfAnotherNodeAndNoClaim(t *testing.T) {
	w := newWorld(t)
	w.start()
	own, ok := w.agent.stages.Live.(ownPods)
	if !ok {
		t.Fatalf("pods are read by %T", w.agent.stages.Live)
	}
	here := w.pod("here")
	there := w.pod("there", func(p *corev1.Pod) { p.Spec.NodeName = "of-another" })
	nowhere := w.pod("nowhere", func(p *corev1.Pod) { p.Spec.NodeName = "" })
	claim := testkit.Claim(w.id, "claim", "", w.id)
	w.create(claim)

	got := &corev1.Pod{}
	if err := own.Get(w.ctx, client.ObjectKeyFromObject(here), got); err != nil || got.UID != here.UID || len(got.Spec.Containers) != 1 {
		t.Errorf("reading a pod of its own node: %v, %+v", err, got)
	}
	live := &corev1.Pod{}
	if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(here), live); err != nil || live.ResourceVersion != here.ResourceVersion {
		t.Errorf("the pod that was read has version %s (%v), want %s as before", live.ResourceVersion, err, here.ResourceVersion)
	}
	for _, pod := range []*corev1.Pod{there, nowhere} {
		if err := own.Get(w.ctx, client.ObjectKeyFromObject(pod), &corev1.Pod{}); !apierrors.IsNotFound(err) {
			t.Errorf("reading pod %s of node %q: %v, want NotFound", pod.Name, pod.Spec.NodeName, err)
		}
	}
	// An attacker is not bound to the agent's way of reading.
	for _, o := range []client.Object{here, there, nowhere, claim} {
		if err := own.Reader.Get(w.ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsForbidden(err) {
			t.Errorf("get %T %s: %v, want Forbidden", o, o.GetName(), err)
		}
	}
}
