package pavvolume

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

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
		name string
		view *View
		want string
	}{
		{"case 122: a bound volume is left alone", endingOf(created), ""},
		{"case 122: a volume that Kubernetes calls failed is left alone", endingOf(created, volumeIs(corev1.VolumeFailed, del, false)), ""},
		{"case 122: of policy Recycle it is not deleted", endingOf(created, volumeIs(corev1.VolumeReleased, corev1.PersistentVolumeReclaimRecycle, false)), ""},
		{"case 132: a bound volume that somebody deletes is left alone", endingOf(created, volumeIs(corev1.VolumeBound, del, true)), ""},
		{"case 125: a released volume with policy Delete is deleted", endingOf(created, volumeIs(corev1.VolumeReleased, del, false)), "Release"},
		{"case 122: a released volume with policy Retain is left alone", endingOf(created, volumeIs(corev1.VolumeReleased, retain, false)), ""},
		{"case 132: a retained volume that somebody deletes goes, its storage stays", endingOf(created, volumeIs(corev1.VolumeReleased, retain, true)), "status Created, Keep"},
		{"a released volume that is protected from deletion is kept and told", endingOf(created, volumeIs(corev1.VolumeReleased, del, false), guarded), "status Created"},
		{"a protected volume that was being deleted before keeps its storage", endingOf(created, volumeIs(corev1.VolumeReleased, del, true), guarded), "status Created"},
		{"case 131: a released volume that somebody deletes goes with its storage", endingOf(created, volumeIs(corev1.VolumeReleased, del, true)), "Release"},
		{"a released volume is kept and told while its retention lasts", endingOf(created, volumeIs(corev1.VolumeReleased, del, false), retention(anHour)), "status Created"},
		{"so is one that somebody deletes", endingOf(created, volumeIs(corev1.VolumeReleased, del, true), retention(anHour)), "status Created"},
		{"one whose retention cannot be read is kept and told", endingOf(created, volumeIs(corev1.VolumeReleased, del, false), retention(volume.Retention{Wrong: "soon is no time"})), "status Created"},
		{"one whose retention is over is deleted", endingOf(created, volumeIs(corev1.VolumeReleased, del, false), retention(anHour), func(v *View) {
			v.Volume.Status.LastPhaseTransitionTime = &metav1.Time{Time: now.Add(-time.Hour)}
		}), "Release"},
		{"one that was in the trash is deleted", endingOf(created, volumeIs(corev1.VolumeReleased, del, false), retention(anHour), func(v *View) {
			v.Volume.Annotations = map[string]string{tarnv1.AnnotationTrashedUntil: now.Format(time.RFC3339)}
		}), "Release"},
		{"one that a pool has given up is deleted, whatever its retention", endingOf(created, volumeIs(corev1.VolumeReleased, del, false), retention(anHour), func(v *View) {
			v.Namespace = v.Volume.Spec.ClaimRef.Namespace
		}), "Release"},
		{"Deleting is taken back when the volume gets a retention", endingOf(deleting, withVolume(corev1.VolumeReleased, del), retention(anHour)), "status Created"},
		{"case 133: a volume of an unknown policy is kept and told", endingOf(created, volumeIs(corev1.VolumeReleased, "Burn", false)), "status Created"},
		{"case 133: so is one that somebody deletes", endingOf(created, volumeIs(corev1.VolumeReleased, "Burn", true)), "status Created"},
		{"case 133: one whose policy is put right forgets the word", endingOf(created, volumeIs(corev1.VolumeReleased, retain, false), func(v *View) {
			v.Record.Status = plan(endingOf(created, volumeIs(corev1.VolumeReleased, "Burn", false)), now).Record.Status
		}), "status Created"},
		{"a label of another value protects nothing", endingOf(created, volumeIs(corev1.VolumeReleased, del, false), guarded, func(v *View) {
			v.Volume.Labels[tarnv1.LabelDeletionProtection] = "false"
		}), "Release"},
		{"an available volume that somebody deletes is deleted by its policy", endingOf(created, volumeIs(corev1.VolumeAvailable, del, true)), "Release"},
		{"a volume whose claimRef was cleared is about to be used again", endingOf(created, volumeIs(corev1.VolumeReleased, del, false), func(v *View) { v.Volume.Spec.ClaimRef = nil }), ""},
		{"a volume promised to a claim yet to come is left alone", endingOf(created, volumeIs(corev1.VolumeReleased, del, false), func(v *View) { v.Volume.Spec.ClaimRef.UID = "" }), ""},
		{"a retained volume that has gone takes its record along", endingOf(created, func(v *View) {
			v.Record.Status = plan(endingOf(created, volumeIs(corev1.VolumeReleased, retain, true)), now).Record.Status
			v.Volume = nil
		}), "Keep"},
		{"a record not handed over yet is handed over first", endingOf(created, func(v *View) { v.Record.Status.Conditions = nil }), "HandOver"},
		{"a volume removed by force is told, not destroyed", endingOf(created, func(v *View) { v.Volume = nil }), "confirm absent, status Created"},
		{"a volume removed by force goes with its record", endingOf(created, func(v *View) { v.Volume, v.Record.DeletionTimestamp = nil, &later }), "Release"},

		{"cases 122 and 127: Deleting waits for the stages", endingOf(deleting, func(v *View) { v.Stages = []tarnv1.PavStage{{}} }), "status Deleting"},
		{"Undoing stops what is still creating", endingOf(undoing, func(v *View) { v.Pods = []corev1.Pod{{}} }), "status Undoing, discard"},
		{"Deleting goes on when its claimRef is that of a claim which is gone", endingOf(deleting, withVolume(corev1.VolumeReleased, del)), "Destroy, 1"},
		{"case 128: Deleting is taken back when the volume is bound again", endingOf(deleting, withVolume(corev1.VolumeBound, del)), "status Created"},
		{"Deleting is taken back when the policy is set to Retain", endingOf(deleting, withVolume(corev1.VolumeReleased, retain)), "status Created"},
		{"Deleting is taken back when the volume is protected from deletion", endingOf(deleting, withVolume(corev1.VolumeReleased, del), guarded), "status Created"},
		{"what was taken back after it had begun says so for as long as it is protected", endingOf(created, volumeIs(corev1.VolumeReleased, del, false), guarded, func(v *View) {
			sayDeletable(&v.Record.Status, v.Record, reasonTakenBack, "check its data")
		}), ""},
		{"Deleting that is taken back stops its pod first", endingOf(deleting, withVolume(corev1.VolumeReleased, retain), func(v *View) { v.Pod = &corev1.Pod{} }), "status Deleting, discard"},
		{"the next attempt waits until the pod whose time was up has ended", endingOf(deleting, func(v *View) {
			v.Record.Status.NextDeletionTime, v.Pod = &earlier, &corev1.Pod{}
		}), "status Deleting, discard"},
		{"a provisioner mended since is used at once", endingOf(deleting, func(v *View) {
			v.Record.Status.NextDeletionTime, v.Record.Status.DeletionAttempts = &later, 2
			v.Record.Status.LastError, v.Provisioner.Generation = &tarnv1.PavVolumeError{ProvisionerGeneration: 1}, 2
		}), "Destroy, 3"},
		{"a record deleted by hand says that the storage is gone, where the provisioner is", endingOf(deleting, func(v *View) { v.Provisioner, v.Record.DeletionTimestamp = nil, &later }), "Finish"},
		{"a deletion that is retried begins at once", endingOf(deleting, retriedAfter(2), func(v *View) { v.Record.Status.NextDeletionTime = &later }), "Destroy, 3"},
		{"one that was retried earlier waits", endingOf(deleting, retriedAfter(1), func(v *View) {
			v.Record.Status.NextDeletionTime, v.Record.Status.DeletionAttempts = &later, 2
		}), ""},
		{"one that is retried while its pod waits to start stops that first", endingOf(undoing, observed(steppod.PodStarting), retriedAfter(2), func(v *View) { v.Pod = &corev1.Pod{} }), "status Undoing, discard"},
		{"and goes on when that is gone", endingOf(undoing, retriedAfter(2)), "Destroy, 3"},
		{"one that is retried while its pod runs waits for that", endingOf(undoing, observed(steppod.PodRunning), retriedAfter(2), func(v *View) { v.Pod = &corev1.Pod{} }), ""},
		{"a record that is forgotten goes, whatever stays", endingOf(undoing, forgotten), "Forget"},
		{"so does one that is being made", endingOf(tarnv1.VolumeCreating, forgotten), "Forget"},
		{"so does one of a released volume", endingOf(deleting, withVolume(corev1.VolumeReleased, del), forgotten), "Forget"},
		{"its pods end first", endingOf(undoing, forgotten, observed(steppod.PodRunning), func(v *View) { v.Pods = []corev1.Pod{{}}; v.Pod = &v.Pods[0] }), "status Undoing, discard"},
		{"so do those that are still creating", endingOf(tarnv1.VolumeCreating, forgotten, func(v *View) { v.Pods = []corev1.Pod{{}} }), "status Creating, discard"},
		{"it waits for the stages", endingOf(deleting, forgotten, func(v *View) { v.Stages = []tarnv1.PavStage{{}} }), "status Deleting"},
		{"it waits while a claim has the volume", endingOf(created, forgotten), "status Created"},
		{"it waits while the volume is protected", endingOf(created, volumeIs(corev1.VolumeReleased, del, false), guarded, forgotten), "status Created"},
		{"the word was about an earlier record of the name", endingOf(deleting, forgotten, func(v *View) { v.Record.Annotations[tarnv1.AnnotationForget] = "old" }), "Destroy, 1"},
		{"without a deletion it is not forgotten", endingOf(deleting, forgotten, func(v *View) { v.Record.DeletionTimestamp = nil }), "Destroy, 1"},
		{"Deleting begins the first attempt", endingOf(deleting), "Destroy, 1"},
		{"Deleting repeats an attempt whose pod is not there", endingOf(deleting, func(v *View) { v.Record.Status.DeletionAttempts = 3 }), "Destroy, 3"},
		{"Deleting waits for the next attempt", endingOf(deleting, func(v *View) { v.Record.Status.NextDeletionTime = &later }), ""},
		{"Deleting begins the next attempt when it is due", endingOf(deleting, func(v *View) {
			v.Record.Status.NextDeletionTime, v.Record.Status.DeletionAttempts = &earlier, 2
		}), "Destroy, 3"},
		{"Deleting waits for its pod", endingOf(deleting, observed(steppod.PodRunning)), ""},
		{"Deleting records a failure", endingOf(deleting, observed(steppod.PodFailed)), "status Deleting"},
		{"case 126: Deleting says that its provisioner is gone", endingOf(deleting, func(v *View) { v.Provisioner = nil }), "status Deleting"},
		{"Deleting does not use another provisioner of the name", endingOf(deleting, func(v *View) { v.Provisioner.UID = "new" }), "status Deleting"},
		{"Deleting that is done removes volume and record", endingOf(deleting, observed(steppod.PodSucceeded)), "Finish"},
		{"Undoing that is done gives the record back", endingOf(undoing, observed(steppod.PodSucceeded)), "status Pending"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := told(plan(c.view, now)); got != c.want {
				t.Errorf("plan: %s, want %s", got, c.want)
			}
		})
	}
}

func TestCase133AnUnknownPolicyIsToldOnce(t *testing.T) {
	v := endingOf(tarnv1.VolumeCreated, volumeIs(corev1.VolumeReleased, "Burn", false))
	got := plan(v, now)
	if !strings.Contains(note(got, eventUnknownPolicy), `"Burn"`) {
		t.Errorf("plan = %+v, want %s with the policy's name", got, eventUnknownPolicy)
	}
	v.Record = got.Record
	if again := plan(v, now); len(again.Actions) > 0 {
		t.Errorf("planned again: %+v, want nothing", again)
	}
}

func TestUndoneForgetsTheHandleAndPausesBeforeTheNextAttempt(t *testing.T) {
	undone := func(change func(*tarnv1.PavVolumeStatus)) tarnv1.PavVolumeStatus {
		return plan(endingOf(tarnv1.VolumeUndoing, observed(steppod.PodSucceeded), func(v *View) {
			s := &v.Record.Status
			s.Handle, s.Capacity, s.DeletionAttempts, s.Attempts = "h", 5, 2, 3
			change(s)
		}), now).Record.Status
	}
	got := undone(func(s *tarnv1.PavVolumeStatus) {
		s.LastError = &tarnv1.PavVolumeError{Step: tarnv1.StepCreation, Time: metav1.NewTime(now.Add(-time.Hour))}
	})
	if got.Handle != "" || got.Capacity != 0 || got.DeletionAttempts != 2 {
		t.Errorf("status = %+v, want handle and capacity cleared, and the count of deletions kept", got)
	}
	third := 4 * steppod.FirstRetry
	if pause := got.NextAttemptTime.Sub(now); pause < third*4/5 || pause > third*6/5 {
		t.Errorf("next attempt after %s, want about %s from now, however long ago the failure was", pause, third)
	}
	e := undone(func(s *tarnv1.PavVolumeStatus) {
		s.LastError = &tarnv1.PavVolumeError{Step: tarnv1.StepDeletion, Message: "busy"}
		s.Conditions = []metav1.Condition{{Type: tarnv1.ConditionProvisioned, Status: metav1.ConditionFalse, Reason: "PodFailed", Message: "no room"}}
	}).LastError
	if e.Step != tarnv1.StepCreation || e.Message != "no room" {
		t.Errorf("last error %+v, want that of the creation, as the undoing has succeeded", e)
	}
	if got := undone(func(*tarnv1.PavVolumeStatus) {}); got.NextAttemptTime != nil {
		t.Errorf("next attempt at %s, want at once after what did not fail", got.NextAttemptTime)
	}
}

func TestADeletionAfterAnUndoingHasAPodOfItsOwn(t *testing.T) {
	v := endingOf(tarnv1.VolumeCreated)
	v.Record.Status.DeletionAttempts = 1 // that of the undoing, whose pod may still exist
	if got := deleting(v).Record.Status; got.DeletionAttempts != 2 || got.Phase != tarnv1.VolumeDeleting {
		t.Errorf("deletion attempt %d in %s, want 2 in Deleting", got.DeletionAttempts, got.Phase)
	}
}

func TestCase126AFailedDeletionIsToldAndTriedAgain(t *testing.T) {
	p := plan(endingOf(tarnv1.VolumeDeleting, observed(steppod.PodFailed), func(v *View) { v.Record.Status.DeletionAttempts = 1 }), now)
	got, warning := p.Record.Status, note(p, eventDeleteFailed)
	if want := "Deletion pod failed: busy"; warning != want || got.LastError.Message != want {
		t.Errorf("warning %q, last error %q, want %q", warning, got.LastError.Message, want)
	}
	if got.NextDeletionTime == nil || !got.NextDeletionTime.After(now) {
		t.Errorf("next deletion = %v, want a time after now", got.NextDeletionTime)
	}
}

func TestAnUnchangedWaitIsNotWrittenAgain(t *testing.T) {
	v := endingOf(tarnv1.VolumeDeleting, func(v *View) { v.Stages = []tarnv1.PavStage{{}} })
	v.Record = plan(v, now).Record
	if got := told(plan(v, now.Add(time.Second))); got != "" {
		t.Errorf("plan: %s, want nothing", got)
	}
}

func TestAVolumeTakenBackAfterADeletionHadBegunIsToldToBeChecked(t *testing.T) {
	v := endingOf(tarnv1.VolumeDeleting, withVolume(corev1.VolumeBound, corev1.PersistentVolumeReclaimDelete))
	if got := note(plan(v, now), eventDeleteFailed); got != "" {
		t.Errorf("warning = %q before anything was deleted, want none", got)
	}
	v.Record.Status.DeletionStarted = true
	if note(plan(v, now), eventDeleteFailed) == "" {
		t.Error("no warning though a deletion pod had begun")
	}
}

func TestWhatWaitsIsNotLookedAtInALoop(t *testing.T) {
	earlier := metav1.NewTime(now.Add(-time.Minute))
	v := endingOf(tarnv1.VolumeDeleting, func(v *View) {
		v.Record.Status.NextDeletionTime, v.Provisioner = &earlier, nil
	})
	v.Record = plan(v, now).Record
	p := plan(v, now)
	if at := nextLook(v, p, now); told(p) != "" || !at.IsZero() {
		t.Errorf("plan: %s, next look %s, want none: the provisioner's return is an event", told(p), at)
	}
}
