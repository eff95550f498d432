package provision

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
)

// made is a claim and its record, whose creation returned a handle.
func made(uid types.UID, handle string, phase tarnv1.VolumePhase) (*corev1.PersistentVolumeClaim, *tarnv1.PavVolume) {
	claim := testkit.Claim("ns", "claim-"+string(uid), uid, "prov")
	record := testkit.Record(claim, "prov", phase)
	record.Status.Handle, record.Status.Capacity = handle, 1<<30
	return claim, record
}

// handMade is a volume that a user wrote.
func handMade(driver, handle string) *corev1.PersistentVolume {
	vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}}
	vol.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}
	return vol
}

func TestAHandleThatAnotherVolumeHasIsAPersonsToDecideAbout(t *testing.T) {
	theirClaim, theirs := made("u2", "shelf-7", tarnv1.VolumeCreated)
	_, deleting := made("u2", "shelf-7", tarnv1.VolumeDeleting)
	_, undoing := made("u2", "shelf-7", tarnv1.VolumeUndoing)
	_, disputed := made("u2", "shelf-7", tarnv1.VolumeDisputed)
	_, elsewhere := made("u2", "shelf-7", tarnv1.VolumeCreated)
	elsewhere.Spec.Provisioner.Name = "other"
	for _, c := range []struct {
		name   string
		others []client.Object
		// want names the holder; empty if there is none.
		want string
		// undone says that the holder is being deleted, so that the created volume is undone after
		// it.
		undone bool
	}{
		{"a volume written by hand", []client.Object{handMade("prov", "shelf-7")}, `PersistentVolume "by-hand"`, false},
		{"a record whose volume is made", []client.Object{theirs, theirClaim}, `PavVolume "pvc-u2" of claim ns/claim-u2`, false},
		{"a record whose volume is made, and its claim is gone", []client.Object{theirs}, `PavVolume "pvc-u2" of claim ns/claim-u2`, true},
		{"a record whose volume is being deleted", []client.Object{deleting}, `PavVolume "pvc-u2"`, true},
		{"a record whose volume is being undone", []client.Object{undoing}, `PavVolume "pvc-u2"`, true},
		{"one that is being deleted, and one that is to live", []client.Object{deleting, handMade("prov", "shelf-7")}, `PersistentVolume "by-hand"`, false},
		{"a record that is disputed itself has nothing", []client.Object{disputed}, "", false},
		{"that of another driver", []client.Object{handMade("other", "shelf-7")}, "", false},
		{"that of another provisioner's record", []client.Object{elsewhere}, "", false},
		{"another handle", []client.Object{handMade("prov", "shelf-8")}, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			claim, record := made("u1", "shelf-7", tarnv1.VolumeCreated)
			w := newWorld(t, append(c.others, claim, record, testkit.Provisioner("prov"))...)
			w.look("u1")
			status := w.record("u1").Status
			if c.want == "" {
				if w.volume("u1") == nil || status.Phase != tarnv1.VolumeCreated {
					t.Errorf("the record is %s, the volume %v", status.Phase, w.volume("u1"))
				}
				return
			}
			condition := meta.FindStatusCondition(status.Conditions, tarnv1.ConditionProvisioned)
			told := <-w.events.Events
			texts, advice := []string{condition.Message, told}, "tarn explain volume pvc-u2"
			wantPhase, wantReason, wantEvent := tarnv1.VolumeUndoing, steppod.ReasonHandleGoing, "Normal HandleGoing"
			if !c.undone {
				wantPhase, wantReason, wantEvent = tarnv1.VolumeDisputed, steppod.ReasonHandleTaken, "Warning ProvisioningFailed"
				texts, advice = append(texts, status.LastError.Message), "kubectl delete pavvolume pvc-u1"
			}
			if status.Phase != wantPhase || status.Handle != "shelf-7" || w.volume("u1") != nil {
				t.Fatalf("the record is %s with handle %q, the volume %v", status.Phase, status.Handle, w.volume("u1"))
			}
			for _, text := range texts {
				if !strings.Contains(text, c.want) || !strings.Contains(text, `"shelf-7"`) || !strings.Contains(text, advice) {
					t.Errorf("it is told %q, want it to name %s", text, c.want)
				}
			}
			if condition.Status != metav1.ConditionFalse || condition.Reason != wantReason || !strings.HasPrefix(told, wantEvent) {
				t.Errorf("condition %+v, Event %q", condition, told)
			}
		})
	}
}

func TestAVolumeThatOnlyTheCacheHasHoldsNoHandle(t *testing.T) {
	claim, record := made("u1", "shelf-7", tarnv1.VolumeCreated)
	w := newWorld(t, claim, record, testkit.Provisioner("prov"))
	w.remembering(claim, record, testkit.Provisioner("prov"), handMade("prov", "shelf-7"))
	w.look("u1")
	if w.volume("u1") == nil {
		t.Errorf("the volume is not made; the record is %+v", w.record("u1").Status)
	}
}

func TestOfTwoCreationsThatGiveOneHandleAtOnceAtMostOneIsUsed(t *testing.T) {
	oneClaim, one := made("u1", "shelf-7", tarnv1.VolumeCreated)
	otherClaim, other := made("u2", "shelf-7", tarnv1.VolumeCreated)
	w := newWorld(t, oneClaim, one, otherClaim, other, testkit.Provisioner("prov"))
	// Neither cache shows the other's record.
	w.remembering(oneClaim, one, testkit.Provisioner("prov"))
	w.look("u1")
	w.remembering(otherClaim, other, testkit.Provisioner("prov"))
	w.look("u2")
	used := 0
	for _, uid := range []types.UID{"u1", "u2"} {
		switch phase := w.record(uid).Status.Phase; {
		case w.volume(uid) != nil:
			used++
		case phase != tarnv1.VolumeDisputed:
			t.Errorf("the record of %s is %s", uid, phase)
		}
	}
	if used != 1 {
		t.Errorf("%d volumes are used, want the one that looked when the other had given way", used)
	}
}

func TestAVolumeThatWasHandedOverBeforeACrashStays(t *testing.T) {
	_, deleting := made("u2", "shelf-7", tarnv1.VolumeDeleting)
	for _, other := range []client.Object{handMade("prov", "shelf-7"), deleting} {
		claim, record := made("u1", "shelf-7", tarnv1.VolumeCreated)
		vol := testkit.Volume(record)
		w := newWorld(t, claim, record, vol, testkit.Provisioner("prov"), other)
		w.remembering(claim, record, testkit.Provisioner("prov"), other) // but not the volume
		w.look("u1")
		if phase := w.record("u1").Status.Phase; phase != tarnv1.VolumeCreated {
			t.Errorf("beside %s the record is %s, want Created", other.GetName(), phase)
		}
	}
}

func TestADisputedRecordEndsWithItsClaimOrByHandAndRunsNothing(t *testing.T) {
	for _, c := range []struct {
		name     string
		change   func(*world, *corev1.PersistentVolumeClaim, *tarnv1.PavVolume)
		wantGone bool
	}{
		{"it waits", func(*world, *corev1.PersistentVolumeClaim, *tarnv1.PavVolume) {}, false},
		{"the claim is deleted", func(w *world, claim *corev1.PersistentVolumeClaim, _ *tarnv1.PavVolume) {
			w.must(w.store.Delete(w.t.Context(), claim))
		}, true},
		{"the record is deleted", func(w *world, _ *corev1.PersistentVolumeClaim, record *tarnv1.PavVolume) {
			w.must(w.store.Delete(w.t.Context(), record))
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			claim, record := made("u1", "shelf-7", tarnv1.VolumeDisputed)
			w := newWorld(t, claim, record, testkit.Provisioner("prov"), handMade("prov", "shelf-7"))
			c.change(w, claim, record)
			w.look("u1")
			if gone := w.record("u1") == nil; gone != c.wantGone || len(w.pods()) > 0 {
				t.Errorf("the record is gone: %t, want %t; pods %v", gone, c.wantGone, w.pods())
			}
		})
	}
}

func TestADisputeThatReclaimFoundIsToldToTheClaimOnce(t *testing.T) {
	claim, record := made("u1", "shelf-7", tarnv1.VolumeDisputed)
	record.Status.LastError = &tarnv1.PavVolumeError{Step: tarnv1.StepCreation, Reason: steppod.ReasonHandleTaken, Message: "taken"}
	w := newWorld(t, claim, record, testkit.Provisioner("prov"))
	for range 2 {
		w.look("u1")
	}
	if len(w.events.Events) != 1 {
		t.Errorf("%d Events, want one", len(w.events.Events))
	}
}

// Nothing may begin that no provisioner can remove again.
func TestAnAttemptBeginsOnlyWhileItsProvisionerStands(t *testing.T) {
	for name, c := range map[string]struct {
		live     *pavv1.PavProvisioner
		wantPods int
	}{
		"it stands":                {testkit.Provisioner("prov"), 1},
		"it is gone":               {nil, 0},
		"another one has its name": {testkit.Provisioner("prov", func(p *pavv1.PavProvisioner) { p.UID = "another" }), 0},
		"it is being deleted": {testkit.Provisioner("prov", func(p *pavv1.PavProvisioner) {
			p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: now}, []string{tarnv1.FinalizerProvisioner}
		}), 0},
	} {
		t.Run(name, func(t *testing.T) {
			claim := testkit.Claim("ns", "data", "u1", "prov")
			record := testkit.Record(claim, "prov", tarnv1.VolumePending)
			objects := []client.Object{claim, record}
			if c.live != nil {
				objects = append(objects, c.live)
			}
			w := newWorld(t, objects...)
			seen := w.record("u1") // in the current version
			w.remembering(claim, seen, testkit.Provisioner("prov"))
			result := w.look("u1")
			if len(w.pods()) != c.wantPods {
				t.Errorf("%d pods were made, want %d", len(w.pods()), c.wantPods)
			}
			if status := w.record("u1").Status; c.wantPods == 0 && (status.Phase != tarnv1.VolumePending || status.Attempts != 1 || result.RequeueAfter == 0) {
				t.Errorf("the record is %s at attempt %d, and looked at again after %s", status.Phase, status.Attempts, result.RequeueAfter)
			}
		})
	}
}
