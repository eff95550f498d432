package reclaim

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
)

// ending is the controller with an API server that has a record being deleted.
type ending struct {
	*reconciler
	t      *testing.T
	store  client.Client
	events *events.FakeRecorder
}

func endingOf(t *testing.T, objects ...client.Object) *ending {
	text := func(of func(client.Object) string) client.IndexerFunc {
		return func(o client.Object) []string { return []string{of(o)} }
	}
	volumeOf := text(func(o client.Object) string { return o.(*tarnv1.PavStage).Spec.VolumeName })
	store := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(objects...).WithStatusSubresource(&tarnv1.PavVolume{}).
		WithIndex(&corev1.PersistentVolume{}, kube.VolumesByHandle, kube.HandleOf).
		WithIndex(&tarnv1.PavVolume{}, kube.RecordsByHandleAwaited, kube.HandleAwaited).
		WithIndex(&corev1.PersistentVolumeClaim{}, kube.ClaimsByVolume, kube.VolumeNamed).
		WithIndex(&tarnv1.PavStage{}, indexStageVolume, volumeOf).
		WithIndex(&tarnv1.PavStage{}, "spec.volumeName", volumeOf).
		WithIndex(&tarnv1.PavVolume{}, "status.handle", text(func(o client.Object) string { return o.(*tarnv1.PavVolume).Status.Handle })).
		Build()
	e := &ending{t: t, store: store, events: events.NewFakeRecorder(100)}
	e.reconciler = &reconciler{
		client: store, reader: store, events: e.events, clock: testclock.NewFakePassiveClock(now),
		handles: kube.Handles{Cached: store, Live: store},
		claims:  kube.Claims{Cached: store, Live: store}, steps: &steppod.Steps{Client: store, Reader: store},
	}
	return e
}

func (e *ending) look() error {
	_, err := e.Reconcile(e.t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "pvc-u1"}})
	return err
}

func (e *ending) status() tarnv1.PavVolumeStatus {
	e.t.Helper()
	record := &tarnv1.PavVolume{}
	if err := e.store.Get(e.t.Context(), client.ObjectKey{Name: "pvc-u1"}, record); err != nil {
		e.t.Fatal(err)
	}
	return record.Status
}

func (e *ending) pods() int {
	e.t.Helper()
	pods := &corev1.PodList{}
	if err := e.store.List(e.t.Context(), pods); err != nil {
		e.t.Fatal(err)
	}
	return len(pods.Items)
}

// byHand is a volume that a user wrote.
func byHand(handle string) *corev1.PersistentVolume {
	vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}}
	vol.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "prov", VolumeHandle: handle}
	return vol
}

func goes(phase tarnv1.VolumePhase, handle string) *tarnv1.PavVolume {
	record := viewOf(phase).Record
	record.Status.Handle, record.Status.DeletionAttempts = handle, 1
	return record
}

func TestAFailedCreationUnderAnothersHandleIsNotUndone(t *testing.T) {
	for _, c := range []struct {
		name       string
		handle     string // the record's handle
		other      client.Object
		wantHolder string // empty if the creation is undone
	}{
		{"a volume written by hand has it", "shelf-7", byHand("shelf-7"), `PersistentVolume "by-hand"`},
		{"one has what would have been its own", "", byHand("pvc-u1"), `PersistentVolume "by-hand"`},
		{"nobody has it", "shelf-7", byHand("shelf-8"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := endingOf(t, goes(tarnv1.VolumeUndoing, c.handle), testkit.Provisioner("prov"), c.other)
			if err := e.look(); err != nil {
				t.Fatal(err)
			}
			status := e.status()
			if c.wantHolder == "" {
				if status.Phase != tarnv1.VolumeUndoing || e.pods() != 1 {
					t.Errorf("the record is %s, with %d pods", status.Phase, e.pods())
				}
				return
			}
			if status.Phase != tarnv1.VolumeDisputed || e.pods() > 0 {
				t.Fatalf("the record is %s, with %d pods", status.Phase, e.pods())
			}
			if last := status.LastError; last.Reason != steppod.ReasonHandleTaken || !strings.Contains(last.Message, c.wantHolder) {
				t.Errorf("its last error is %+v", last)
			}
			if told := <-e.events.Events; !strings.Contains(told, c.wantHolder) {
				t.Errorf("told %q", told)
			}
		})
	}
}

func TestAReleasedVolumeIsNotDeletedUnderAnotherOfItsHandle(t *testing.T) {
	record := goes(tarnv1.VolumeDeleting, "shelf-7")
	vol := testkit.Volume(record)
	vol.Status.Phase, vol.Spec.CSI.VolumeHandle = corev1.VolumeReleased, "shelf-7"
	other := byHand("shelf-7")
	e := endingOf(t, record, vol, other, testkit.Provisioner("prov"))
	for range 2 {
		if err := e.look(); err != nil {
			t.Fatal(err)
		}
	}
	if woken := e.mapHolder(t.Context(), other); len(woken) != 1 || woken[0].Name != "pvc-u1" {
		t.Errorf("the end of the other brings back %v", woken)
	}
	status := e.status()
	condition := meta.FindStatusCondition(status.Conditions, tarnv1.ConditionDeletable)
	if status.Phase != tarnv1.VolumeDeleting || e.pods() > 0 || condition == nil || condition.Status != metav1.ConditionFalse ||
		condition.Reason != steppod.ReasonHandleTaken || !strings.Contains(condition.Message, `PersistentVolume "by-hand"`) {
		t.Errorf("the record is %s, %d pods, condition %+v", status.Phase, e.pods(), condition)
	}
	if told := len(e.events.Events); told != 2 { // one about the volume, one about the record
		t.Errorf("%d Events", told)
	}
	if err := e.store.Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if err := e.look(); err != nil || e.pods() != 1 {
		t.Errorf("after the other is gone: %v, %d deletion pods", err, e.pods())
	}
}

func TestWhatOfSeveralVolumesOfAHandleIsDeletedFirst(t *testing.T) {
	const undoing, deleting = tarnv1.VolumeUndoing, tarnv1.VolumeDeleting
	of := func(name string, going, undoing bool, since time.Duration) kube.Holder {
		return kube.Holder{Name: name, Going: going, Undoing: undoing, Since: metav1.NewTime(now.Add(since))}
	}
	live, dying := of("pvc-u0", false, false, 0), of("pvc-u0", true, false, 0)
	older, younger := of("pvc-u0", true, true, -time.Second), of("pvc-u0", true, true, time.Second)
	before, after := of("pvc-u0", true, true, 0), of("pvc-u2", true, true, 0)
	for _, c := range []struct {
		name       string
		phase      tarnv1.VolumePhase
		holders    []kube.Holder
		wantPhase  tarnv1.VolumePhase // of the status written; empty if the deletion continues
		wantReason string
	}{
		{"a deletion that is alone goes on", deleting, nil, "", ""},
		{"a deletion waits for a volume that is to live", deleting, []kube.Holder{live}, deleting, steppod.ReasonHandleTaken},
		{"a deletion waits for another, which may be taken back", deleting, []kube.Holder{dying}, deleting, steppod.ReasonHandleTaken},
		{"a deletion goes before what is undone", deleting, []kube.Holder{older}, "", ""},
		{"a deletion waits for what is to live, whatever else is undone", deleting, []kube.Holder{older, live}, deleting, steppod.ReasonHandleTaken},
		{"an undoing that is alone goes on", undoing, nil, "", ""},
		{"an undoing is disputed beside a volume that is to live", undoing, []kube.Holder{live}, tarnv1.VolumeDisputed, steppod.ReasonHandleTaken},
		{"so it is whatever else is deleted", undoing, []kube.Holder{dying, live}, tarnv1.VolumeDisputed, steppod.ReasonHandleTaken},
		{"an undoing waits for a deletion", undoing, []kube.Holder{dying}, undoing, steppod.ReasonHandleGoing},
		{"an undoing waits for an older one", undoing, []kube.Holder{older}, undoing, steppod.ReasonHandleGoing},
		{"an undoing goes before a younger one", undoing, []kube.Holder{younger}, "", ""},
		{"of two of one second the first by name goes first", undoing, []kube.Holder{after}, "", ""},
		{"and the other waits", undoing, []kube.Holder{before}, undoing, steppod.ReasonHandleGoing},
		{"an undoing waits for a deletion though a younger one is there", undoing, []kube.Holder{younger, dying}, undoing, steppod.ReasonHandleGoing},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := viewOf(c.phase, func(v *View) { v.Record.CreationTimestamp = metav1.NewTime(now) })
			p, shared := sharedHandle(v, "shelf-7", c.holders, now)
			if shared != (c.wantPhase != "") || (p.Status != nil) != shared {
				t.Fatalf("shared %v, plan %+v", shared, p)
			}
			if !shared {
				return
			}
			if said := meta.FindStatusCondition(p.Status.Conditions, tarnv1.ConditionDeletable); p.Status.Phase != c.wantPhase || said.Status != metav1.ConditionFalse || said.Reason != c.wantReason {
				t.Errorf("phase %s, condition %+v, want %s for %s", p.Status.Phase, said, c.wantPhase, c.wantReason)
			}
			v.Record.Status = *p.Status
			if again, shared := sharedHandle(v, "shelf-7", c.holders, now); c.wantPhase == c.phase && (again.Status != nil || !shared) {
				t.Errorf("it is said again: %+v, shared %v", again, shared)
			}
		})
	}
}

func TestWhatWasMadeUnderTheHandleOfADeletedVolumeIsUndoneAfterIt(t *testing.T) {
	mine, theirs := goes(tarnv1.VolumeUndoing, "shelf-7"), goes(tarnv1.VolumeDeleting, "shelf-7")
	theirs.Name, theirs.UID, theirs.Spec.Claim.UID = "pvc-u2", "record-u2", "u2"
	e := endingOf(t, mine, theirs, testkit.Provisioner("prov"))
	for range 2 {
		if err := e.look(); err != nil {
			t.Fatal(err)
		}
	}
	c := meta.FindStatusCondition(e.status().Conditions, tarnv1.ConditionDeletable)
	if e.status().Phase != tarnv1.VolumeUndoing || e.pods() > 0 || c == nil || c.Reason != steppod.ReasonHandleGoing || !strings.Contains(c.Message, `"pvc-u2"`) {
		t.Fatalf("%d pods, condition %+v", e.pods(), c)
	}
	if _, err := e.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "pvc-u2"}}); err != nil || e.pods() != 1 {
		t.Fatalf("the deletion before it: %v, %d pods", err, e.pods())
	}
	if woken := e.mapHolder(t.Context(), theirs); len(woken) != 1 || woken[0].Name != "pvc-u1" {
		t.Errorf("the end of the other brings back %v", woken)
	}
	if err := e.store.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil {
		t.Fatal(err)
	}
	theirs.Finalizers = nil
	if err := e.store.Update(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	if err := e.store.Delete(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	if err := e.look(); err != nil || e.pods() != 2 {
		t.Errorf("after the other is gone: %v, %d deletion pods in all", err, e.pods())
	}
}
