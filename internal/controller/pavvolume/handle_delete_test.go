package pavvolume

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
)

// ending is a record whose storage is to be deleted.
func ending(phase tarnv1.VolumePhase, handle string) *tarnv1.PavVolume {
	record := endingOf(phase).Record
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
		{"a volume written by hand has it", "shelf-7", handMade("prov", "shelf-7"), `PersistentVolume "by-hand"`},
		{"one has what would have been its own", "", handMade("prov", "pvc-u1"), `PersistentVolume "by-hand"`},
		{"nobody has it", "shelf-7", handMade("prov", "shelf-8"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, ending(tarnv1.VolumeUndoing, c.handle), testkit.Provisioner("prov"), c.other)
			w.look("u1")
			status := w.status()
			if c.wantHolder == "" {
				if status.Phase != tarnv1.VolumeUndoing || len(w.pods()) != 1 {
					t.Errorf("the record is %s, with %d pods", status.Phase, len(w.pods()))
				}
				return
			}
			if status.Phase != tarnv1.VolumeDisputed || len(w.pods()) > 0 {
				t.Fatalf("the record is %s, with %d pods", status.Phase, len(w.pods()))
			}
			if last := status.LastError; last.Reason != steppod.ReasonHandleTaken || !strings.Contains(last.Message, c.wantHolder) {
				t.Errorf("its last error is %+v", last)
			}
			if told := <-w.events.Events; !strings.Contains(told, c.wantHolder) {
				t.Errorf("told %q", told)
			}
		})
	}
}

func TestAReleasedVolumeIsNotDeletedUnderAnotherOfItsHandle(t *testing.T) {
	record := ending(tarnv1.VolumeDeleting, "shelf-7")
	vol := testkit.Volume(record)
	vol.Status.Phase, vol.Spec.CSI.VolumeHandle = corev1.VolumeReleased, "shelf-7"
	other := handMade("prov", "shelf-7")
	w := newWorld(t, record, vol, other, testkit.Provisioner("prov"))
	for range 2 {
		w.look("u1")
	}
	if woken := w.r.mapHolder(t.Context(), other); len(woken) != 1 || woken[0].Name != "pvc-u1" {
		t.Errorf("the end of the other brings back %v", woken)
	}
	status := w.status()
	condition := w.deletable()
	if status.Phase != tarnv1.VolumeDeleting || len(w.pods()) > 0 || condition.Status != metav1.ConditionFalse ||
		condition.Reason != steppod.ReasonHandleTaken || !strings.Contains(condition.Message, `PersistentVolume "by-hand"`) {
		t.Errorf("the record is %s, %d pods, condition %+v", status.Phase, len(w.pods()), condition)
	}
	if told := len(w.events.Events); told != 2 { // one about the volume, one about the record
		t.Errorf("%d Events", told)
	}
	if err := w.store.Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if w.look("u1"); len(w.pods()) != 1 {
		t.Errorf("after the other is gone: %d deletion pods", len(w.pods()))
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
			v := endingOf(c.phase, func(v *View) { v.Record.CreationTimestamp = metav1.NewTime(now) })
			p, shared := sharedHandle(v, "shelf-7", c.holders, now)
			if shared != (c.wantPhase != "") || (p.Record != nil) != shared {
				t.Fatalf("shared %v, plan %+v", shared, p)
			}
			if !shared {
				return
			}
			if said := conditionOf(p.Record.Status, tarnv1.ConditionDeletable); p.Record.Status.Phase != c.wantPhase || said.Status != metav1.ConditionFalse || said.Reason != c.wantReason {
				t.Errorf("phase %s, condition %+v, want %s for %s", p.Record.Status.Phase, said, c.wantPhase, c.wantReason)
			}
			v.Record = p.Record
			if again, shared := sharedHandle(v, "shelf-7", c.holders, now); c.wantPhase == c.phase && (again.Record != nil || !shared) {
				t.Errorf("it is said again: %+v, shared %v", again, shared)
			}
		})
	}
}

func TestWhatWasMadeUnderTheHandleOfADeletedVolumeIsUndoneAfterIt(t *testing.T) {
	mine, theirs := ending(tarnv1.VolumeUndoing, "shelf-7"), ending(tarnv1.VolumeDeleting, "shelf-7")
	theirs.Name, theirs.UID, theirs.Spec.Claim.UID = "pvc-u2", "record-u2", "u2"
	w := newWorld(t, mine, theirs, testkit.Provisioner("prov"))
	for range 2 {
		w.look("u1")
	}
	c := w.deletable()
	if w.status().Phase != tarnv1.VolumeUndoing || len(w.pods()) > 0 || c.Reason != steppod.ReasonHandleGoing || !strings.Contains(c.Message, `"pvc-u2"`) {
		t.Fatalf("%d pods, condition %+v", len(w.pods()), c)
	}
	if w.look("u2"); len(w.pods()) != 1 {
		t.Fatalf("the deletion before it: %d pods", len(w.pods()))
	}
	if woken := w.r.mapHolder(t.Context(), theirs); len(woken) != 1 || woken[0].Name != "pvc-u1" {
		t.Errorf("the end of the other brings back %v", woken)
	}
	w.removed(theirs)
	if w.look("u1"); len(w.pods()) != 2 {
		t.Errorf("after the other is gone: %d deletion pods in all", len(w.pods()))
	}
}
