package reclaim

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func viewOf(phase tarnv1.VolumePhase, changes ...func(*View)) *View {
	claim := testkit.Claim("ns", "data", "u1", "prov")
	v := &View{Record: testkit.Record(claim, "prov", phase), Provisioner: testkit.Provisioner("prov"), Observed: steppod.Observation{State: steppod.PodAbsent}}
	if phase == tarnv1.VolumeCreated {
		meta.SetStatusCondition(&v.Record.Status.Conditions, metav1.Condition{Type: tarnv1.ConditionProvisioned, Status: metav1.ConditionTrue, Reason: "Provisioned"})
		v.Volume = testkit.Volume(v.Record)
	}
	for _, change := range changes {
		change(v)
	}
	return v
}

func volumeIs(phase corev1.PersistentVolumePhase, policy corev1.PersistentVolumeReclaimPolicy, going bool) func(*View) {
	return func(v *View) {
		v.Volume.Status.Phase, v.Volume.Spec.PersistentVolumeReclaimPolicy = phase, policy
		if going {
			v.Volume.DeletionTimestamp = &metav1.Time{Time: now}
		}
	}
}

// withVolume gives a record its PersistentVolume.
func withVolume(phase corev1.PersistentVolumePhase, policy corev1.PersistentVolumeReclaimPolicy) func(*View) {
	return func(v *View) {
		v.Volume = testkit.Volume(v.Record)
		volumeIs(phase, policy, false)(v)
	}
}

func guarded(v *View) { v.Volume.Labels = map[string]string{tarnv1.LabelDeletionProtection: "true"} }

func retention(said volume.Retention) func(*View) {
	return func(v *View) { v.Retention = said }
}

// retriedAfter makes the given attempt the current one, and asks for a retry after it without a
// pause.
func retriedAfter(attempt int32) func(*View) {
	return func(v *View) {
		v.Record.Status.DeletionAttempts = attempt
		v.Record.Annotations = map[string]string{tarnv1.AnnotationRetry: steppod.RetryAfter(tarnv1.StepDeletion, attempt, false)}
	}
}

func forgotten(v *View) {
	v.Record.DeletionTimestamp = &metav1.Time{Time: now}
	v.Record.Annotations = map[string]string{tarnv1.AnnotationForget: string(v.Record.UID)}
}

func observed(state steppod.PodState) func(*View) {
	return func(v *View) {
		v.Observed = steppod.Observation{State: state}
		if state == steppod.PodFailed {
			v.Observed.Reason, v.Observed.Message = steppod.ReasonPodFailed, "busy"
		}
	}
}

func TestAVolumeEndsBy(t *testing.T) {
	const del, retain = corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain
	later := metav1.NewTime(now.Add(time.Minute))
	earlier := metav1.NewTime(now.Add(-time.Minute))
	created, undoing, deleting := tarnv1.VolumeCreated, tarnv1.VolumeUndoing, tarnv1.VolumeDeleting
	anHour := volume.Retention{Text: "1h", Time: time.Hour}
	for _, c := range []struct {
		name        string
		view        *View
		wantAct     Act
		wantPhase   tarnv1.VolumePhase
		wantAttempt int32
	}{
		{"a record that is being made is left to provision", viewOf(tarnv1.VolumeCreating), ActNone, "", 0},
		{"case 122: a bound volume is left alone", viewOf(created), ActNone, "", 0},
		{"case 122: a volume that Kubernetes calls failed is left alone", viewOf(created, volumeIs(corev1.VolumeFailed, del, false)), ActNone, "", 0},
		{"case 122: of policy Recycle it is not deleted", viewOf(created, volumeIs(corev1.VolumeReleased, corev1.PersistentVolumeReclaimRecycle, false)), ActNone, "", 0},
		{"case 132: a bound volume that somebody deletes is left alone", viewOf(created, volumeIs(corev1.VolumeBound, del, true)), ActNone, "", 0},
		{"case 125: a released volume with policy Delete is deleted", viewOf(created, volumeIs(corev1.VolumeReleased, del, false)), ActDelete, deleting, 0},
		{"case 122: a released volume with policy Retain is left alone", viewOf(created, volumeIs(corev1.VolumeReleased, retain, false)), ActNone, "", 0},
		{"case 132: a retained volume that somebody deletes goes, its storage stays", viewOf(created, volumeIs(corev1.VolumeReleased, retain, true)), ActKeep, "", 0},
		{"a released volume that is protected from deletion is kept and told", viewOf(created, volumeIs(corev1.VolumeReleased, del, false), guarded), ActStatus, created, 0},
		{"a protected volume that was being deleted before keeps its storage", viewOf(created, volumeIs(corev1.VolumeReleased, del, true), guarded), ActStatus, created, 0},
		{"case 131: a released volume that somebody deletes goes with its storage", viewOf(created, volumeIs(corev1.VolumeReleased, del, true)), ActDelete, deleting, 0},
		{"a released volume is kept and told while its retention lasts", viewOf(created, volumeIs(corev1.VolumeReleased, del, false), retention(anHour)), ActStatus, created, 0},
		{"so is one that somebody deletes", viewOf(created, volumeIs(corev1.VolumeReleased, del, true), retention(anHour)), ActStatus, created, 0},
		{"one whose retention cannot be read is kept and told", viewOf(created, volumeIs(corev1.VolumeReleased, del, false), retention(volume.Retention{Wrong: "soon is no time"})), ActStatus, created, 0},
		{"one whose retention is over is deleted", viewOf(created, volumeIs(corev1.VolumeReleased, del, false), retention(anHour), func(v *View) {
			v.Volume.Status.LastPhaseTransitionTime = &metav1.Time{Time: now.Add(-time.Hour)}
		}), ActDelete, deleting, 0},
		{"one that was in the trash is deleted", viewOf(created, volumeIs(corev1.VolumeReleased, del, false), retention(anHour), func(v *View) {
			v.Volume.Annotations = map[string]string{tarnv1.AnnotationTrashedUntil: now.Format(time.RFC3339)}
		}), ActDelete, deleting, 0},
		{"one that a pool has given up is deleted, whatever its retention", viewOf(created, volumeIs(corev1.VolumeReleased, del, false), retention(anHour), func(v *View) {
			v.Namespace = v.Volume.Spec.ClaimRef.Namespace
		}), ActDelete, deleting, 0},
		{"Deleting is taken back when the volume gets a retention", viewOf(deleting, withVolume(corev1.VolumeReleased, del), retention(anHour)), ActStatus, created, 0},
		{"case 133: a volume of an unknown policy is kept and told", viewOf(created, volumeIs(corev1.VolumeReleased, "Burn", false)), ActStatus, created, 0},
		{"case 133: so is one that somebody deletes", viewOf(created, volumeIs(corev1.VolumeReleased, "Burn", true)), ActStatus, created, 0},
		{"case 133: one whose policy is put right forgets the word", viewOf(created, volumeIs(corev1.VolumeReleased, retain, false), func(v *View) {
			v.Record.Status = *decide(viewOf(created, volumeIs(corev1.VolumeReleased, "Burn", false)), now).Status
		}), ActStatus, created, 0},
		{"a label of another value protects nothing", viewOf(created, volumeIs(corev1.VolumeReleased, del, false), guarded, func(v *View) {
			v.Volume.Labels[tarnv1.LabelDeletionProtection] = "false"
		}), ActDelete, deleting, 0},
		{"an available volume that somebody deletes is deleted by its policy", viewOf(created, volumeIs(corev1.VolumeAvailable, del, true)), ActDelete, deleting, 0},
		{"a volume whose claimRef was cleared is about to be used again", viewOf(created, volumeIs(corev1.VolumeReleased, del, false), func(v *View) { v.Volume.Spec.ClaimRef = nil }), ActNone, "", 0},
		{"a volume promised to a claim yet to come is left alone", viewOf(created, volumeIs(corev1.VolumeReleased, del, false), func(v *View) { v.Volume.Spec.ClaimRef.UID = "" }), ActNone, "", 0},
		{"a retained volume that has gone takes its record along", viewOf(created, func(v *View) {
			v.Record.Status = *decide(viewOf(created, volumeIs(corev1.VolumeReleased, retain, true)), now).Status
			v.Volume = nil
		}), ActKeep, "", 0},
		{"a record not handed over yet is left to provision", viewOf(created, func(v *View) { v.Record.Status.Conditions = nil }), ActNone, "", 0},
		{"a volume removed by force is told, not destroyed", viewOf(created, func(v *View) { v.Volume = nil }), ActLost, created, 0},
		{"a volume removed by force goes with its record", viewOf(created, func(v *View) { v.Volume, v.Record.DeletionTimestamp = nil, &later }), ActDelete, deleting, 0},

		{"cases 122 and 127: Deleting waits for the stages", viewOf(deleting, func(v *View) { v.Stages = []tarnv1.PavStage{{}} }), ActStatus, deleting, 0},
		{"Undoing stops what is still creating", viewOf(undoing, func(v *View) { v.Others = []corev1.Pod{{}} }), ActStop, undoing, 0},
		{"Deleting goes on when its claimRef is that of a claim which is gone", viewOf(deleting, withVolume(corev1.VolumeReleased, del)), ActRun, "", 1},
		{"case 128: Deleting is taken back when the volume is bound again", viewOf(deleting, withVolume(corev1.VolumeBound, del)), ActStatus, created, 0},
		{"Deleting is taken back when the policy is set to Retain", viewOf(deleting, withVolume(corev1.VolumeReleased, retain)), ActStatus, created, 0},
		{"Deleting is taken back when the volume is protected from deletion", viewOf(deleting, withVolume(corev1.VolumeReleased, del), guarded), ActStatus, created, 0},
		{"what was taken back after it had begun says so for as long as it is protected", viewOf(created, volumeIs(corev1.VolumeReleased, del, false), guarded, func(v *View) {
			condition(&v.Record.Status, v.Record, metav1.ConditionFalse, reasonTakenBack, "check its data")
		}), ActNone, "", 0},
		{"Deleting that is taken back stops its pod first", viewOf(deleting, withVolume(corev1.VolumeReleased, retain), func(v *View) { v.Pod = &corev1.Pod{} }), ActStop, deleting, 0},
		{"the next attempt waits until the pod whose time was up has ended", viewOf(deleting, func(v *View) {
			v.Record.Status.NextDeletionTime, v.Pod = &earlier, &corev1.Pod{}
		}), ActStop, deleting, 0},
		{"a provisioner mended since is used at once", viewOf(deleting, func(v *View) {
			v.Record.Status.NextDeletionTime, v.Record.Status.DeletionAttempts = &later, 2
			v.Record.Status.LastError, v.Provisioner.Generation = &tarnv1.PavVolumeError{ProvisionerGeneration: 1}, 2
		}), ActRun, "", 3},
		{"a record deleted by hand says that the storage is gone, where the provisioner is", viewOf(deleting, func(v *View) { v.Provisioner, v.Record.DeletionTimestamp = nil, &later }), ActDeleted, "", 0},
		{"a deletion that is retried begins at once", viewOf(deleting, retriedAfter(2), func(v *View) { v.Record.Status.NextDeletionTime = &later }), ActRun, "", 3},
		{"one that was retried earlier waits", viewOf(deleting, retriedAfter(1), func(v *View) {
			v.Record.Status.NextDeletionTime, v.Record.Status.DeletionAttempts = &later, 2
		}), ActNone, "", 0},
		{"one that is retried while its pod waits to start stops that first", viewOf(undoing, observed(steppod.PodStarting), retriedAfter(2), func(v *View) { v.Pod = &corev1.Pod{} }), ActStop, undoing, 0},
		{"and goes on when that is gone", viewOf(undoing, retriedAfter(2)), ActRun, "", 3},
		{"one that is retried while its pod runs waits for that", viewOf(undoing, observed(steppod.PodRunning), retriedAfter(2), func(v *View) { v.Pod = &corev1.Pod{} }), ActNone, "", 0},
		{"a record that is forgotten goes, whatever stays", viewOf(undoing, forgotten), ActForget, "", 0},
		{"so does one that is being made", viewOf(tarnv1.VolumeCreating, forgotten), ActForget, "", 0},
		{"so does one of a released volume", viewOf(deleting, withVolume(corev1.VolumeReleased, del), forgotten), ActForget, "", 0},
		{"its pods end first", viewOf(undoing, forgotten, observed(steppod.PodRunning), func(v *View) { v.Pod = &corev1.Pod{} }), ActStop, undoing, 0},
		{"so do those that are still creating", viewOf(tarnv1.VolumeCreating, forgotten, func(v *View) { v.Others = []corev1.Pod{{}} }), ActStop, tarnv1.VolumeCreating, 0},
		{"it waits for the stages", viewOf(deleting, forgotten, func(v *View) { v.Stages = []tarnv1.PavStage{{}} }), ActStatus, deleting, 0},
		{"it waits while a claim has the volume", viewOf(created, forgotten), ActStatus, created, 0},
		{"it waits while the volume is protected", viewOf(created, volumeIs(corev1.VolumeReleased, del, false), guarded, forgotten), ActStatus, created, 0},
		{"the word was about an earlier record of the name", viewOf(deleting, forgotten, func(v *View) { v.Record.Annotations[tarnv1.AnnotationForget] = "old" }), ActRun, "", 1},
		{"without a deletion it is not forgotten", viewOf(deleting, forgotten, func(v *View) { v.Record.DeletionTimestamp = nil }), ActRun, "", 1},
		{"Deleting begins the first attempt", viewOf(deleting), ActRun, "", 1},
		{"Deleting repeats an attempt whose pod is not there", viewOf(deleting, func(v *View) { v.Record.Status.DeletionAttempts = 3 }), ActRun, "", 3},
		{"Deleting waits for the next attempt", viewOf(deleting, func(v *View) { v.Record.Status.NextDeletionTime = &later }), ActNone, "", 0},
		{"Deleting begins the next attempt when it is due", viewOf(deleting, func(v *View) {
			v.Record.Status.NextDeletionTime, v.Record.Status.DeletionAttempts = &earlier, 2
		}), ActRun, "", 3},
		{"Deleting waits for its pod", viewOf(deleting, observed(steppod.PodRunning)), ActNone, "", 0},
		{"Deleting records a failure", viewOf(deleting, observed(steppod.PodFailed)), ActStatus, deleting, 0},
		{"case 126: Deleting says that its provisioner is gone", viewOf(deleting, func(v *View) { v.Provisioner = nil }), ActStatus, deleting, 0},
		{"Deleting does not use another provisioner of the name", viewOf(deleting, func(v *View) { v.Provisioner.UID = "new" }), ActStatus, deleting, 0},
		{"Deleting that is done removes volume and record", viewOf(deleting, observed(steppod.PodSucceeded)), ActDeleted, "", 0},
		{"Undoing that is done gives the record back", viewOf(undoing, observed(steppod.PodSucceeded)), ActUndone, tarnv1.VolumePending, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := decide(c.view, now)
			if got.Act != c.wantAct || got.Attempt != c.wantAttempt {
				t.Fatalf("decide = %s attempt %d, want %s attempt %d", got.Act, got.Attempt, c.wantAct, c.wantAttempt)
			}
			if c.wantPhase != "" && got.Status.Phase != c.wantPhase {
				t.Errorf("phase = %s, want %s", got.Status.Phase, c.wantPhase)
			}
		})
	}
}

func TestCase133AnUnknownPolicyIsToldOnce(t *testing.T) {
	v := viewOf(tarnv1.VolumeCreated, volumeIs(corev1.VolumeReleased, "Burn", false))
	got := decide(v, now)
	if got.WarningReason != eventUnknownPolicy || !strings.Contains(got.Warning, `"Burn"`) {
		t.Errorf("plan = %+v, want %s with the policy's name", got, eventUnknownPolicy)
	}
	v.Record.Status = *got.Status
	if again := decide(v, now); again.Act != ActNone || again.Warning != "" {
		t.Errorf("planned again: %+v, want nothing", again)
	}
}

func TestUndoneForgetsTheHandleAndPausesBeforeTheNextAttempt(t *testing.T) {
	undoing := func(v *View) {
		v.Record.Status.Handle, v.Record.Status.Capacity, v.Record.Status.DeletionAttempts, v.Record.Status.Attempts = "h", 5, 2, 3
	}
	failed := func(v *View) {
		v.Record.Status.LastError = &tarnv1.PavVolumeError{Step: tarnv1.StepCreation, Time: metav1.NewTime(now.Add(-time.Hour))}
	}
	got := decide(viewOf(tarnv1.VolumeUndoing, observed(steppod.PodSucceeded), undoing, failed), now).Status
	if got.Handle != "" || got.Capacity != 0 || got.DeletionAttempts != 2 {
		t.Errorf("status = %+v, want handle and capacity cleared, and the count of deletions kept", got)
	}
	third := 4 * steppod.FirstRetry
	if pause := got.NextAttemptTime.Sub(now); pause < third*4/5 || pause > third*6/5 {
		t.Errorf("next attempt after %s, want about %s from now, however long ago the failure was", pause, third)
	}
	resisted := func(v *View) {
		v.Record.Status.LastError = &tarnv1.PavVolumeError{Step: tarnv1.StepDeletion, Message: "busy"}
		v.Record.Status.Conditions = []metav1.Condition{{Type: tarnv1.ConditionProvisioned, Status: metav1.ConditionFalse, Reason: "PodFailed", Message: "no room"}}
	}
	if e := decide(viewOf(tarnv1.VolumeUndoing, observed(steppod.PodSucceeded), undoing, resisted), now).Status.LastError; e.Step != tarnv1.StepCreation || e.Message != "no room" {
		t.Errorf("last error %+v, want that of the creation, as the undoing has succeeded", e)
	}
	if got := decide(viewOf(tarnv1.VolumeUndoing, observed(steppod.PodSucceeded), undoing), now).Status; got.NextAttemptTime != nil {
		t.Errorf("next attempt at %s, want at once after what did not fail", got.NextAttemptTime)
	}
}

func TestADeletionAfterAnUndoingHasAPodOfItsOwn(t *testing.T) {
	v := viewOf(tarnv1.VolumeCreated, volumeIs(corev1.VolumeReleased, corev1.PersistentVolumeReclaimDelete, false))
	v.Record.Status.DeletionAttempts = 1 // that of the undoing, whose pod may still exist
	if got := decide(v, now); got.Status.DeletionAttempts != 2 {
		t.Errorf("deletion attempt = %d, want 2", got.Status.DeletionAttempts)
	}
}

func TestCase126AFailedDeletionIsToldAndTriedAgain(t *testing.T) {
	got := decide(viewOf(tarnv1.VolumeDeleting, observed(steppod.PodFailed), func(v *View) { v.Record.Status.DeletionAttempts = 1 }), now)
	if want := "Deletion pod failed: busy"; got.Warning != want || got.Status.LastError.Message != want {
		t.Errorf("warning %q, last error %q, want %q", got.Warning, got.Status.LastError.Message, want)
	}
	if got.Status.NextDeletionTime == nil || !got.Status.NextDeletionTime.After(now) {
		t.Errorf("next deletion = %v, want a time after now", got.Status.NextDeletionTime)
	}
}

func TestAnUnchangedWaitIsNotWrittenAgain(t *testing.T) {
	v := viewOf(tarnv1.VolumeDeleting, func(v *View) { v.Stages = []tarnv1.PavStage{{}} })
	v.Record.Status = *decide(v, now).Status
	if got := decide(v, now.Add(time.Second)); got.Act != ActNone {
		t.Errorf("decide = %s, want None", got.Act)
	}
}

func TestAVolumeTakenBackAfterADeletionHadBegunIsToldToBeChecked(t *testing.T) {
	v := viewOf(tarnv1.VolumeDeleting, withVolume(corev1.VolumeBound, corev1.PersistentVolumeReclaimDelete))
	if got := decide(v, now); got.Warning != "" {
		t.Errorf("warning = %q before anything was deleted, want none", got.Warning)
	}
	v.Record.Status.DeletionStarted = true
	if got := decide(v, now); got.Warning == "" {
		t.Error("no warning though a deletion pod had begun")
	}
}

func TestWhatWaitsIsNotLookedAtInALoop(t *testing.T) {
	earlier := metav1.NewTime(now.Add(-time.Minute))
	v := viewOf(tarnv1.VolumeDeleting, func(v *View) {
		v.Record.Status.NextDeletionTime, v.Provisioner = &earlier, nil
	})
	v.Record.Status = *decide(v, now).Status
	p := decide(v, now)
	if at := nextLook(v, p, now); p.Act != ActNone || !at.IsZero() {
		t.Errorf("act %s, next look %s, want none: the provisioner's return is an event", p.Act, at)
	}
}
