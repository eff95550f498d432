package pavvolume

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// world is an API server and the controller. The controller's cache shows what the API server has,
// unless the test gives it another.
type world struct {
	t      *testing.T
	store  client.WithWatch
	r      *reconciler
	events *events.FakeRecorder
}

func build(objects ...client.Object) client.WithWatch {
	b := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(objects...).
		WithStatusSubresource(&tarnv1.PavVolume{}, &pavv1.PavProvisioner{}).
		WithIndex(&corev1.PersistentVolume{}, kube.VolumesByHandle, kube.HandleOf).
		WithIndex(&tarnv1.PavVolume{}, kube.RecordsByHandleAwaited, kube.HandleAwaited).
		WithIndex(&tarnv1.PavVolume{}, "status.handle", func(o client.Object) []string { return []string{o.(*tarnv1.PavVolume).Status.Handle} }).
		WithIndex(&tarnv1.PavVolume{}, indexSourceStorage, storageCopied).
		WithIndex(&corev1.PersistentVolumeClaim{}, kube.ClaimsByVolume, kube.VolumeNamed).
		WithIndex(&tarnv1.PavStage{}, indexStageVolume, volumeOfStage).
		WithIndex(&tarnv1.PavStage{}, "spec.volumeName", volumeOfStage)
	for name, key := range claimIndexes() {
		b = b.WithIndex(&corev1.PersistentVolumeClaim{}, name, key)
	}
	return b.Build()
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	w := &world{t: t, store: build(objects...), events: events.NewFakeRecorder(100)}
	w.r = &reconciler{
		reader: w.store, clock: testclock.NewFakePassiveClock(now),
		handles: kube.Handles{Cached: w.store, Live: w.store}, claims: kube.Claims{Cached: w.store, Live: w.store},
	}
	w.through(w.store)
	return w
}

// through makes the controller write, and read its cache, through a client.
func (w *world) through(c client.Client) {
	w.r.client, w.r.steps = c, &steppod.Steps{Client: c, Reader: w.store}
	w.r.runner = action.Runner{Client: c, Events: w.events, Live: w.store, Steps: w.r.steps}
}

// remembering makes the controller's cache show the given objects, whatever the API server has.
func (w *world) remembering(objects ...client.Object) {
	seen := build(objects...)
	w.through(&cached{Client: w.store, seen: seen})
	w.r.handles.Cached = seen
}

// cached reads from a given cache and writes to the API server.
type cached struct {
	client.Client
	seen client.Reader
}

func (c *cached) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	return c.seen.Get(ctx, key, into, opts...)
}

func (c *cached) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.seen.List(ctx, list, opts...)
}

// look reconciles the volume of the claim with a UID.
func (w *world) look(uid types.UID) reconcile.Result {
	w.t.Helper()
	result, err := w.r.Reconcile(w.t.Context(), request(volumeName(uid)))
	w.must(err)
	return result
}

// settle reconciles until nothing changes, or the record is gone.
func (w *world) settle() {
	w.t.Helper()
	for range 5 {
		w.look("u1")
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// record reads a record, nil if it is gone.
func (w *world) record(uid types.UID) *tarnv1.PavVolume {
	w.t.Helper()
	record, err := kube.Get(w.t.Context(), w.store, client.ObjectKey{Name: volumeName(uid)}, &tarnv1.PavVolume{})
	w.must(err)
	return record
}

func (w *world) status() tarnv1.PavVolumeStatus { return w.record("u1").Status }

func (w *world) volume(uid types.UID) *corev1.PersistentVolume {
	w.t.Helper()
	vol, err := kube.Get(w.t.Context(), w.store, client.ObjectKey{Name: volumeName(uid)}, &corev1.PersistentVolume{})
	w.must(err)
	return vol
}

func (w *world) pods() []corev1.Pod {
	w.t.Helper()
	pods := &corev1.PodList{}
	w.must(w.store.List(w.t.Context(), pods))
	return pods.Items
}

// deletable is the condition Deletable of the record, empty without it.
func (w *world) deletable() metav1.Condition {
	return conditionOf(w.status(), tarnv1.ConditionDeletable)
}

func (w *world) provisioned() metav1.Condition {
	return conditionOf(w.status(), tarnv1.ConditionProvisioned)
}

func conditionOf(status tarnv1.PavVolumeStatus, which string) metav1.Condition {
	if c := meta.FindStatusCondition(status.Conditions, which); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// removed ends the deletion of a record, as its finalizers keep it.
func (w *world) removed(record *tarnv1.PavVolume) {
	w.t.Helper()
	live := w.record(record.Spec.Claim.UID)
	live.Finalizers = nil
	w.must(w.store.Update(w.t.Context(), live))
	w.must(client.IgnoreNotFound(w.store.Delete(w.t.Context(), live)))
}

// viewOf is a waiting claim with everything in place; the changes make the case.
func viewOf(changes ...func(*View)) *View {
	claim := testkit.Claim("ns", "data", "u1", "prov")
	v := &View{Name: "pvc-u1", Claim: claim, Class: testkit.Class("prov"), Provisioner: testkit.Provisioner("prov")}
	for _, change := range changes {
		change(v)
	}
	return v
}

// recordIn gives the view a record.
func recordIn(phase tarnv1.VolumePhase, changes ...testkit.With[*tarnv1.PavVolume]) func(*View) {
	return func(v *View) {
		v.Record = testkit.Record(testkit.Claim("ns", "data", "u1", "prov"), "prov", phase, changes...)
	}
}

// endingOf is a volume without its claim. In phase Created it is handed over and has its
// PersistentVolume.
func endingOf(phase tarnv1.VolumePhase, changes ...func(*View)) *View {
	return viewOf(append([]func(*View){noClaim, recordIn(phase), observed(steppod.PodAbsent), func(v *View) {
		if phase == tarnv1.VolumeCreated {
			handed(v.Record)
			v.Volume = testkit.Volume(v.Record)
		}
	}}, changes...)...)
}

func noClaim(v *View) { v.Claim, v.Class = nil, nil }

func handed(r *tarnv1.PavVolume) { sayProvisioned(&r.Status, r, reasonProvisioned, "made") }

// told describes a plan: one word for each action but Events, in order, and the act.
func told(p Plan) string {
	var words []string
	for _, a := range p.Actions {
		switch a := a.(type) {
		case action.Confirm:
			words = append(words, "confirm")
		case action.ConfirmAbsent:
			words = append(words, "confirm absent")
		case action.UpdateStatus:
			words = append(words, "status "+string(a.To.(*tarnv1.PavVolume).Status.Phase))
		case action.DiscardPods:
			words = append(words, "discard")
		case action.RemoveFinalizer:
			words = append(words, "release")
		case action.Delete:
			words = append(words, strings.Replace(fmt.Sprintf("delete %T", a.Object), "*", "", 1))
		case action.PatchStatus:
			words = append(words, "fail")
		}
	}
	if p.Act != ActNone {
		words = append(words, string(p.Act))
	}
	if p.Attempt > 0 {
		words = append(words, fmt.Sprint(p.Attempt))
	}
	return strings.Join(words, ", ")
}

// note is the text of the plan's first Event with a reason, empty for none.
func note(p Plan, reason string) string {
	for _, a := range p.Actions {
		if e, ok := a.(action.Emit); ok && e.Reason == reason {
			return e.Note
		}
	}
	return ""
}

// storageCopied is how the API server selects records by spec.source.storage.
func storageCopied(o client.Object) []string {
	if s := o.(*tarnv1.PavVolume).Spec.Source; s != nil {
		return []string{s.Storage}
	}
	return []string{""}
}
