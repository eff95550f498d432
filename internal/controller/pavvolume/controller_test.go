package pavvolume

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

type volumeWith = func(*corev1.PersistentVolume)

func nobodys(vol *corev1.PersistentVolume)  { vol.Spec.ClaimRef = nil }
func promised(vol *corev1.PersistentVolume) { vol.Spec.ClaimRef.UID = "" }
func going(vol *corev1.PersistentVolume)    { vol.DeletionTimestamp = &metav1.Time{Time: now} }
func finalized(vol *corev1.PersistentVolume) {
	vol.Finalizers = []string{volume.FinalizerExternal}
}
func protectedFromDeletion(vol *corev1.PersistentVolume) {
	vol.Labels = map[string]string{tarnv1.LabelDeletionProtection: "true"}
}
func longReleased(vol *corev1.PersistentVolume) {
	vol.Status.LastPhaseTransitionTime = &metav1.Time{Time: now.Add(-365 * 24 * time.Hour)}
}

func TestTheUpdatesThatMayEndAVolumePassAndThoseOfABindDoNot(t *testing.T) {
	const bound, available, released = corev1.VolumeBound, corev1.VolumeAvailable, corev1.VolumeReleased
	is := func(changes ...volumeWith) []volumeWith { return changes }
	for _, c := range []struct {
		name        string
		before, now []volumeWith
		want        bool
	}{
		{"a volume is offered", is(nobodys, ofPhase(corev1.VolumePending)), is(nobodys, ofPhase(available)), false},
		{"it is pointed at a claim", is(nobodys, ofPhase(available)), is(ofPhase(available), marked(volume.AnnBoundByController, volume.AnnYes)), false},
		{"it is called Bound", is(ofPhase(available)), is(ofPhase(bound)), false},
		{"one that was made for a claim is called Bound", is(ofPhase(corev1.VolumePending), finalized), is(ofPhase(bound), finalized), false},
		{"a bound one gets a retention", is(ofPhase(bound)), is(ofPhase(bound), marked(tarnv1.AnnotationRetention, "1h")), false},
		{"a bound one gets another policy", is(ofPhase(bound)), is(ofPhase(bound), ofPolicy(corev1.PersistentVolumeReclaimRetain)), false},
		{"somebody deletes a bound one", is(ofPhase(bound)), is(ofPhase(bound), going), false},
		{"somebody deletes one that is to be had", is(nobodys, ofPhase(available)), is(nobodys, ofPhase(available), going), true},
		{"the claim of a deleted one goes", is(ofPhase(bound), going), is(going), true},
		{"the claim goes", is(ofPhase(bound)), is(), true},
		{"the binder has seen late that the claim has gone", is(ofPhase(available)), is(), true},
		{"a released one is bound again", is(), is(ofPhase(bound)), true},
		{"a released one is nobody's", is(), is(nobodys), true},
		{"a released one is promised", is(), is(promised), true},
		{"one could not be deleted", is(), is(ofPhase(corev1.VolumeFailed)), true},
		{"one that could not be deleted is released again", is(ofPhase(corev1.VolumeFailed)), is(), true},
		{"a released one gets another policy", is(ofPolicy(corev1.PersistentVolumeReclaimRetain)), is(), true},
		{"a released one is protected no more", is(protectedFromDeletion), is(), true},
		{"a released one gets a retention", is(), is(marked(tarnv1.AnnotationRetention, "1h")), true},
		{"one comes out of the trash", is(marked(tarnv1.AnnotationReclaimPolicy, "Delete")), is(marked(tarnv1.AnnotationTrashedUntil, "2026-01-02T00:00:00Z")), true},
		{"a released one gets another class", is(), is(func(vol *corev1.PersistentVolume) { vol.Spec.StorageClassName = "keeps" }), true},
		{"a released one is put into a set", is(), is(func(vol *corev1.PersistentVolume) { vol.Labels = map[string]string{"a": "b"} }), true},
		{"a released one has another provisioner", is(), is(marked(volume.AnnProvisionedBy, "other.example.com")), true},
		{"a released one goes back to a pool", is(), is(marked(tarnv1.AnnotationPoolFilling, "u")), true},
		{"a released one is pointed at another claim", is(), is(func(vol *corev1.PersistentVolume) { vol.Spec.ClaimRef.Namespace = "tarn-system" }), true},
		{"a released one was released earlier", is(), is(longReleased), true},
		{"a deleted one loses a finalizer", is(going, finalized), is(going), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, now := local(c.before...), local(c.now...)
			old.ResourceVersion, now.ResourceVersion = "1", "2"
			passes := whatMayEnd()
			if got := passes.Update(event.UpdateEvent{ObjectOld: old, ObjectNew: now}); got != c.want {
				t.Errorf("it passes: %t, want %t", got, c.want)
			}
			if !passes.Update(event.UpdateEvent{ObjectOld: now, ObjectNew: now}) || !passes.Create(event.CreateEvent{Object: now}) || !passes.Delete(event.DeleteEvent{Object: now}) {
				t.Error("that it is there, is shown again, or is gone does not pass")
			}
		})
	}
}

// everyWord gives a volume everything that a plan checks for some volumes.
func everyWord(vol *corev1.PersistentVolume) {
	protectedFromDeletion(vol)
	longReleased(vol)
	vol.Finalizers, vol.Spec.StorageClassName = nil, "fast"
	for _, word := range []string{tarnv1.AnnotationRetention, tarnv1.AnnotationTrashedUntil, tarnv1.AnnotationReclaimPolicy, tarnv1.AnnotationPoolFilling, volume.AnnMigratedTo} {
		vol.Annotations[word] = "1h"
	}
	vol.Annotations[volume.AnnProvisionedBy] = "kubernetes.io/host-path"
}

// everyVolume returns every state of a volume, with everything else that a plan may check.
func everyVolume() []*corev1.PersistentVolume {
	var all []*corev1.PersistentVolume
	for _, phase := range []corev1.PersistentVolumePhase{"", corev1.VolumePending, corev1.VolumeAvailable, corev1.VolumeBound, corev1.VolumeReleased, corev1.VolumeFailed} {
		for _, ref := range []volumeWith{ofPhase(phase), promised, nobodys} {
			for _, end := range []volumeWith{ofPhase(phase), going} {
				for _, other := range []volumeWith{ofPhase(phase), ofPolicy(corev1.PersistentVolumeReclaimRetain), ofPolicy("Burn"), csi, everyWord} {
					all = append(all, local(ofPhase(phase), marked(tarnv1.AnnotationRecord, "r"), finalized, ref, end, other))
				}
			}
		}
	}
	return all
}

// everyRecord returns every state of a record, with every reason and pod that it may have.
func everyRecord() []*View {
	var all []*View
	for _, phase := range []tarnv1.VolumePhase{"", tarnv1.VolumePending, tarnv1.VolumeValidating, tarnv1.VolumeCreating, tarnv1.VolumeCreated, tarnv1.VolumeUndoing, tarnv1.VolumeDeleting, tarnv1.VolumeDisputed} {
		for _, word := range []string{"", reasonTakenBack, reasonKept, reasonRetained, reasonVolumeLost} {
			for _, change := range []func(*View){
				func(*View) {}, observed(steppod.PodFailed), observed(steppod.PodSucceeded), func(v *View) { v.Stages = []tarnv1.PavStage{{}} },
				func(v *View) { v.Pod = &corev1.Pod{} }, func(v *View) { v.Pods = []corev1.Pod{{}} },
				func(v *View) { v.Record.DeletionTimestamp = &metav1.Time{Time: now} }, func(v *View) { v.Record.Status.DeletionStarted = true },
				func(v *View) { v.Record.Status.Conditions = nil }, func(v *View) { v.Provisioner = nil }, forgotten, retriedAfter(1),
			} {
				v := endingOf(phase, change)
				if word != "" {
					meta.SetStatusCondition(&v.Record.Status.Conditions, metav1.Condition{Type: tarnv1.ConditionDeletable, Status: metav1.ConditionFalse, Reason: word})
				}
				all = append(all, v)
			}
		}
	}
	return all
}

// timeless is the plan for a record and a volume, without the times of conditions and without what
// Events are about.
func timeless(v View, vol *corev1.PersistentVolume) Plan {
	v.Volume = vol
	p := plan(&v, now)
	if p.Record != nil {
		for i := range p.Record.Status.Conditions {
			p.Record.Status.Conditions[i].LastTransitionTime = metav1.Time{}
		}
	}
	p.Actions = slices.DeleteFunc(p.Actions, func(a action.Action) bool {
		e, ok := a.(action.Emit)
		return ok && e.About == vol
	})
	return p
}

// quietVolumes are volumes between any two of which whatMayEnd drops an update.
func quietVolumes(t *testing.T) []*corev1.PersistentVolume {
	t.Helper()
	all, passes := everyVolume(), whatMayEnd()
	var quiet []*corev1.PersistentVolume
	isQuiet := map[*corev1.PersistentVolume]bool{}
	drops := func(old, now *corev1.PersistentVolume) bool {
		before := *old
		before.ResourceVersion = "0"
		return !passes.Update(event.UpdateEvent{ObjectOld: &before, ObjectNew: now})
	}
	for _, vol := range all {
		if drops(vol, vol) {
			quiet, isQuiet[vol] = append(quiet, vol), true
		}
	}
	if len(quiet) == 0 || len(quiet) == len(all) {
		t.Fatalf("of %d volumes %d are quiet, want some", len(all), len(quiet))
	}
	for _, old := range all {
		for _, now := range all {
			if drops(old, now) && !(isQuiet[old] && isQuiet[now]) {
				t.Fatalf("an update does not pass from %s\nto %s", saying(old), saying(now))
			}
		}
	}
	return quiet
}

// whatMayEnd relies on this. If a plan comes to depend on more of a volume that is not released,
// this test fails, and whatMayEnd must pass those changes.
func TestOfAVolumeThatIsNotReleasedNothingElseCounts(t *testing.T) {
	quiet := quietVolumes(t)
	for _, v := range everyRecord() {
		want := timeless(*v, quiet[0])
		for _, vol := range quiet[1:] {
			if got := timeless(*v, vol); !reflect.DeepEqual(got, want) {
				t.Fatalf("a record in %q with %v: the plan for %s is\n%+v, and for %s\n%+v", v.Record.Status.Phase, v.Record.Status.Conditions, saying(quiet[0]), want, saying(vol), got)
			}
		}
	}
	// The reconciler has no client, so any read would fail.
	r := &reconciler{ownBinder: true}
	for _, vol := range quiet {
		v := &View{Volume: vol, OwnBinder: true}
		if err := r.gatherStranger(t.Context(), v); err != nil || !reflect.DeepEqual(plan(v, now), Plan{}) {
			t.Errorf("without a record, %s: %+v, %v", saying(vol), plan(v, now), err)
		}
	}
}

func saying(vol *corev1.PersistentVolume) string {
	return fmt.Sprintf("%s, %s, claimRef %v, deleted %v, %v %v", vol.Status.Phase, vol.Spec.PersistentVolumeReclaimPolicy, vol.Spec.ClaimRef, vol.DeletionTimestamp, vol.Labels, vol.Annotations)
}
