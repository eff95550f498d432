//go:build integration

package bind

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/testkit"
)

func TestAClaimThatWaitsIsToldOfThePodsThatHaveNoNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.OwnAPIServer(t))
	w.pods = true
	w.class("w", waits)
	elsewhere := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "bind-pods-"}}
	w.must(w.client.Create(w.ctx, elsewhere))
	for _, c := range []struct {
		name, claim, node, namespace string
		ended                        corev1.PodPhase
	}{
		{name: "two", claim: "both"},
		{name: "one", claim: "both"},
		{name: "placed", claim: "both", node: "n"},
		{name: "succeeded", claim: "both", ended: corev1.PodSucceeded},
		{name: "failed", claim: "both", ended: corev1.PodFailed},
		{name: "of-another-claim", claim: "later"},
		{name: "of-another-namespace", claim: "both", namespace: elsewhere.Name},
		{name: "placed-of-none", claim: "none", node: "n"},
	} {
		pod := podOf(c.name, c.claim)
		pod.Spec.NodeName = c.node
		if c.namespace != "" {
			pod.Namespace = c.namespace
		}
		w.must(w.client.Create(w.ctx, pod))
		if c.ended != "" {
			patch := fmt.Sprintf(`{"status":{"phase":%q}}`, c.ended)
			w.must(w.client.Status().Patch(w.ctx, pod, client.RawPatch(types.MergePatchType, []byte(patch))))
		}
	}
	both, none := w.claim("both", "1Gi", ofClass("w")), w.claim("none", "1Gi", ofClass("w"))
	defer w.start(w.config, nil, Options{})()
	w.until(func() string { return w.told(both.UID, reasonPodScheduled) + w.told(none.UID, reasonFirstConsumer) })
	if got, want := w.notes(both.UID), []string{"waiting for pod one, two to be scheduled"}; !slices.Equal(got, want) {
		t.Errorf("case 84: the claim of two pods is told %q, want %q", got, want)
	}

	// Only the pod causes another reconcile of the claim.
	w.must(w.client.Create(w.ctx, podOf("late", "none")))
	w.until(func() string { return w.told(none.UID, reasonPodScheduled) })
	if got, want := w.notes(none.UID), []string{"waiting for a pod that uses the claim, as StorageClass \"w\" requires", "waiting for pod late to be scheduled"}; !slices.Equal(got, want) {
		t.Errorf("case 84: the claim whose pod came later is told %q, want %q", got, want)
	}

	w.must(w.client.Create(w.ctx, podOf("three", "both")))
	w.until(func() string {
		if notes := w.notes(both.UID); !slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, "three") }) {
			return fmt.Sprintf("case 84: of a third pod nothing is told, but %q", notes)
		}
		return ""
	})
}

// notes are the texts of all Events about an object, by time.
func (w *world) notes(about types.UID) []string {
	list := &corev1.EventList{}
	w.must(w.client.List(w.ctx, list, client.InNamespace("default")))
	slices.SortFunc(list.Items, func(a, b corev1.Event) int { return a.EventTime.Compare(b.EventTime.Time) })
	var notes []string
	for i := range list.Items {
		if list.Items[i].InvolvedObject.UID == about {
			notes = append(notes, list.Items[i].Message)
		}
	}
	return notes
}
