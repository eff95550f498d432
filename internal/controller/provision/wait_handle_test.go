package provision

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
)

// named is a provisioner whose creation, with or without a pod, returns a handle made from the name
// of the class.
func named(pod bool, changes ...testkit.With[*pavv1.PavProvisioner]) *pavv1.PavProvisioner {
	text := `{"handle": "{{ sc.metadata.name }}-7"}`
	if pod {
		text = strings.TrimSuffix(text, "}") + `, "podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}`
	}
	return testkit.Provisioner("prov", append(changes, func(p *pavv1.PavProvisioner) { p.Spec.VolumeCreation = testkit.Section(text) })...)
}

func (w *world) waits(when string, phase tarnv1.VolumePhase) {
	w.t.Helper()
	status := w.record("u1").Status
	c := meta.FindStatusCondition(status.Conditions, tarnv1.ConditionProvisioned)
	if status.Phase != phase || status.Handle != "prov-7" || status.LastError != nil || c == nil || c.Reason != steppod.ReasonHandleGoing || !strings.Contains(c.Message, `"pvc-u2"`) {
		w.t.Fatalf("%s: the record is %+v, want it to wait in %s", when, status, phase)
	}
}

func TestACreationWaitsWhileTheHolderOfItsHandleIsDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		provisioner *pavv1.PavProvisioner
		phase       tarnv1.VolumePhase
		pods        int // when the creation continues
	}{
		"with a pod":          {named(true), tarnv1.VolumePending, 1},
		"without a pod":       {named(false), tarnv1.VolumePending, 0},
		"on a node":           {named(true, func(p *pavv1.PavProvisioner) { p.Spec.Topology = pavv1.TopologyNode }), tarnv1.VolumePending, 1},
		"once validated":      {named(true), tarnv1.VolumeValidating, 1},
		"validated on a node": {named(true, func(p *pavv1.PavProvisioner) { p.Spec.Topology = pavv1.TopologyNode }), tarnv1.VolumeValidating, 1},
	} {
		t.Run(name, func(t *testing.T) {
			claim := testkit.Claim("ns", "data", "u1", "prov", func(c *corev1.PersistentVolumeClaim) { c.Annotations[annSelectedNode] = "n1" })
			record := testkit.Record(claim, "prov", c.phase, func(r *tarnv1.PavVolume) { r.Spec.WaitsForNode, r.Status.PodNamespace = true, "default" })
			_, other := made("u2", "prov-7", tarnv1.VolumeDeleting)
			w := newWorld(t, claim, record, other, c.provisioner, testkit.Class("prov"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
			look := func() { w.look("u1") }
			if c.phase == tarnv1.VolumeValidating {
				look = func() {
					v := w.view()
					v.Observed = steppod.Observation{State: steppod.PodSucceeded}
					if _, err := w.r.apply(t.Context(), v, decide(v, now)); err != nil {
						t.Fatal(err)
					}
				}
			}
			look()
			w.waits("first", c.phase)
			version := w.record("u1").ResourceVersion
			look()
			w.waits("looked at again", c.phase)
			if again := w.record("u1").ResourceVersion; again != version {
				t.Error("it is written again though nothing has changed, which would have it looked at for ever")
			}
			if len(w.pods()) > 0 || w.volume("u1") != nil || len(w.events.Events) != 1 {
				t.Fatalf("%d pods, volume %v, %d Events, want one Event alone", len(w.pods()), w.volume("u1"), len(w.events.Events))
			}
			w.must(w.store.Delete(t.Context(), other))
			w.gone(other)
			look()
			if status := w.record("u1").Status; len(w.pods()) != c.pods || status.Handle != "prov-7" || (c.pods == 0) != (w.volume("u1") != nil) {
				t.Errorf("when the other is gone: %d pods, volume %v, record %+v", len(w.pods()), w.volume("u1"), status)
			}
		})
	}
}

// view is what the controller gathers about the claim's volume.
func (w *world) view() *View {
	w.t.Helper()
	v, err := w.r.gather(w.t.Context(), client.ObjectKey{Name: "pvc-u1"})
	w.must(err)
	return v
}

// gone removes the finalizers of an object that is being deleted.
func (w *world) gone(record *tarnv1.PavVolume) {
	w.t.Helper()
	now := w.record(record.Spec.Claim.UID)
	now.Finalizers = nil
	w.must(w.store.Update(w.t.Context(), now))
}

func TestAWaitForAHandleEndsWithTheClaim(t *testing.T) {
	claim := testkit.Claim("ns", "data", "u1", "prov")
	_, other := made("u2", "prov-7", tarnv1.VolumeDeleting)
	w := newWorld(t, claim, testkit.Record(claim, "prov", tarnv1.VolumePending), other, named(true), testkit.Class("prov"))
	w.look("u1")
	w.waits("first", tarnv1.VolumePending)
	w.must(w.store.Delete(t.Context(), claim))
	w.look("u1")
	if record := w.record("u1"); record != nil || w.record("u2") == nil {
		t.Errorf("the record is %+v, that of the other %v", record, w.record("u2"))
	}
}

// A holder's deletion may begin between the controller's first check and its record of the
// creation's begin. Then the holder's deletion has not seen that record, or waits for it.
func TestACreationWaitsForAHolderWhoseDeletionHasJustBegun(t *testing.T) {
	claim := testkit.Claim("ns", "data", "u1", "prov")
	theirClaim, other := made("u2", "prov-7", tarnv1.VolumeCreated)
	w := newWorld(t, claim, testkit.Record(claim, "prov", tarnv1.VolumePending), other, theirClaim, named(true), testkit.Class("prov"))
	var said []tarnv1.VolumePhase
	w.r.client = interceptor.NewClient(w.store, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			record := o.(*tarnv1.PavVolume)
			if said = append(said, record.Status.Phase); record.Status.Phase == tarnv1.VolumeCreating {
				if record.Status.Handle != "prov-7" {
					t.Errorf("the creation begins with handle %q in its record", record.Status.Handle)
				}
				other.Status.Phase = tarnv1.VolumeDeleting
				w.must(w.store.Status().Update(ctx, other))
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	})
	w.look("u1")
	w.waits("after "+string(tarnv1.VolumeCreating), tarnv1.VolumePending)
	if len(said) != 2 || len(w.pods()) > 0 {
		t.Errorf("phases %v, %d pods, want Creating, Pending and no pod", said, len(w.pods()))
	}
}

// A creation pod that does not exist may have run.
func TestACreationIsNotStartedAgainWhileTheHolderOfItsHandleIsDeleted(t *testing.T) {
	for name, handle := range map[string]string{"begun with the handle": "prov-7", "begun with another": "former", "begun with none": ""} {
		t.Run(name, func(t *testing.T) {
			claim := testkit.Claim("ns", "data", "u1", "prov")
			record := testkit.Record(claim, "prov", tarnv1.VolumeCreating, func(r *tarnv1.PavVolume) { r.Status.Handle, r.Status.PodNamespace = handle, "default" })
			_, other := made("u2", "prov-7", tarnv1.VolumeDeleting)
			w := newWorld(t, claim, record, other, named(true), testkit.Class("prov"))
			w.look("u1")
			w.waits("first", tarnv1.VolumeUndoing)
			if len(w.pods()) > 0 {
				t.Errorf("%d pods", len(w.pods()))
			}
		})
	}
}

func TestARecordWithoutStorageHasNoHandle(t *testing.T) {
	claim := testkit.Claim("ns", "data", "u1", "prov")
	record := testkit.Record(claim, "prov", tarnv1.VolumePending)
	w := newWorld(t, claim, record, named(true), testkit.Class("prov"))
	for range 2 {
		w.look("u1")
		w.born()
	}
	if status := w.record("u1").Status; status.Phase != tarnv1.VolumeCreating || status.Handle != "prov-7" {
		t.Fatalf("the record is %+v", status)
	}
	pod := w.pods()[0]
	pod.CreationTimestamp = metav1.NewTime(now.AddDate(0, 0, -1)) // and never got a node
	w.must(w.store.Update(t.Context(), &pod))
	w.look("u1")
	if status := w.record("u1").Status; status.Phase != tarnv1.VolumePending || status.Handle != "" {
		t.Errorf("the record is %+v", status)
	}
}
