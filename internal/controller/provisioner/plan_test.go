package provisioner

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/steppod"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

const ownUID = types.UID("uid-of-slow")

// slow is an accepted provisioner with its finalizer.
func slow(change ...func(*pavv1.PavProvisioner)) *pavv1.PavProvisioner {
	p := &pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{
		Name: "slow", UID: ownUID, Generation: 3, Finalizers: []string{tarnv1.FinalizerProvisioner},
	}}
	for _, c := range change {
		c(p)
	}
	return p
}

func toGo(p *pavv1.PavProvisioner) { p.DeletionTimestamp = &metav1.Time{Time: noon} }

func unheld(p *pavv1.PavProvisioner) { p.Finalizers = nil }

// reported gives a provisioner the status that the plan for the view would write.
func reported(v View) View {
	for _, a := range plan(v, noon.Add(-time.Hour)).Actions {
		if w, ok := a.(action.PatchStatus); ok {
			v.Provisioner = w.To.(*pavv1.PavProvisioner)
		}
	}
	return v
}

func names(p Plan) string {
	var parts []string
	for _, a := range p.Actions {
		parts = append(parts, strings.TrimPrefix(fmt.Sprintf("%T", a), "action."))
	}
	return strings.Join(parts, " ")
}

func statusOf(p Plan) *pavv1.PavProvisionerStatus {
	for _, a := range p.Actions {
		if w, ok := a.(action.PatchStatus); ok {
			return &w.To.(*pavv1.PavProvisioner).Status
		}
	}
	return nil
}

func noteOf(p Plan) string {
	for _, a := range p.Actions {
		if w, ok := a.(action.Emit); ok {
			return w.Reason + ": " + w.Note
		}
	}
	return ""
}

func record(name string, phase tarnv1.VolumePhase) tarnv1.PavVolume {
	return tarnv1.PavVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       tarnv1.PavVolumeSpec{Provisioner: tarnv1.ProvisionerReference{Name: "slow", UID: ownUID}},
		Status:     tarnv1.PavVolumeStatus{Phase: phase},
	}
}

// annotated is the volume v of a claim, with policy Retain and an annotation.
func annotated(phase corev1.PersistentVolumePhase, key, value string) *corev1.PersistentVolume {
	vol := pv(phase, corev1.PersistentVolumeReclaimRetain, true)
	vol.Name, vol.Annotations = "v", map[string]string{key: value}
	return vol
}

func pv(phase corev1.PersistentVolumePhase, policy corev1.PersistentVolumeReclaimPolicy, claimed bool) *corev1.PersistentVolume {
	vol := &corev1.PersistentVolume{}
	vol.Status.Phase, vol.Spec.PersistentVolumeReclaimPolicy = phase, policy
	if claimed {
		vol.Spec.ClaimRef = &corev1.ObjectReference{Name: "c"}
	}
	return vol
}

func TestPlanAccepts(t *testing.T) {
	syntax := steppod.Problem{Field: "spec.volumeStaging.podTemplate.spec", Line: 2, Column: 5, Message: "unexpected end"}
	shape := steppod.Problem{Field: "spec.volumeCreation", Message: "is missing"}
	foreign := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "slow", UID: "theirs"}}
	for _, c := range []struct {
		name         string
		view         View
		wantActions  string
		wantAccepted metav1.ConditionStatus
		wantReason   string
		wantMessage  string
		wantNote     string
		wantReady    metav1.ConditionStatus
	}{
		{
			name: "a new provisioner is held first, then gets its driver, then is accepted", view: View{Provisioner: slow(unheld)},
			wantActions: "AddFinalizer Create PatchStatus", wantAccepted: "True", wantReason: "Accepted", wantReady: "False",
		},
		{
			name:        "one that a node serves is ready",
			view:        View{Provisioner: slow(), Driver: wantDriver(slow()), Nodes: 2},
			wantActions: "PatchStatus", wantAccepted: "True", wantReason: "Accepted", wantReady: "True",
		},
		{
			name:        "a template that does not parse is named with field, line and column, before the rest",
			view:        View{Provisioner: slow(unheld), Problems: []steppod.Problem{syntax, shape}},
			wantActions: "AddFinalizer PatchStatus Emit", wantAccepted: "False", wantReason: "TemplateInvalid", wantReady: "False",
			wantMessage: "spec.volumeStaging.podTemplate.spec: line 2, column 5: unexpected end; spec.volumeCreation: is missing",
			wantNote:    "TemplateInvalid: spec.volumeStaging.podTemplate.spec: line 2, column 5: unexpected end; spec.volumeCreation: is missing",
		},
		{
			name:        "a wrong shape is a matter of the spec",
			view:        View{Provisioner: slow(), Problems: []steppod.Problem{shape}},
			wantActions: "PatchStatus Emit", wantAccepted: "False", wantReason: "SpecInvalid", wantReady: "False",
			wantMessage: "spec.volumeCreation: is missing", wantNote: "SpecInvalid: spec.volumeCreation: is missing",
		},
		{
			name:        "a driver of its name that is not ours is left alone",
			view:        View{Provisioner: slow(), Driver: foreign},
			wantActions: "PatchStatus Emit", wantAccepted: "False", wantReason: "DriverNameTaken", wantReady: "False",
			wantMessage: `CSIDriver "slow" belongs to something else; remove that driver, or give this PavProvisioner another name`,
			wantNote:    `DriverNameTaken: CSIDriver "slow" belongs to something else; remove that driver, or give this PavProvisioner another name`,
		},
		{
			name:        "whose name is taken is told what else is wrong",
			view:        View{Provisioner: slow(), Driver: foreign, Problems: []steppod.Problem{syntax, shape}},
			wantActions: "PatchStatus Emit", wantAccepted: "False", wantReason: "DriverNameTaken", wantReady: "False",
			wantMessage: `CSIDriver "slow" belongs to something else; remove that driver, or give this PavProvisioner another name; ` +
				"spec.volumeStaging.podTemplate.spec: line 2, column 5: unexpected end; spec.volumeCreation: is missing",
			wantNote: `DriverNameTaken: CSIDriver "slow" belongs to something else; remove that driver, or give this PavProvisioner another name; ` +
				"spec.volumeStaging.podTemplate.spec: line 2, column 5: unexpected end; spec.volumeCreation: is missing",
		},
		{
			name:        "one whose name is taken is not ready, though nodes have a driver of the name",
			view:        View{Provisioner: slow(), Driver: foreign, Nodes: 2},
			wantActions: "PatchStatus Emit", wantAccepted: "False", wantReason: "DriverNameTaken", wantReady: "False",
			wantNote: `DriverNameTaken: CSIDriver "slow" belongs to something else; remove that driver, or give this PavProvisioner another name`,
		},
		{
			name:        "an accepted one that was broken keeps the driver its volumes need",
			view:        View{Provisioner: slow(), Driver: wantDriver(slow()), Problems: []steppod.Problem{shape}},
			wantActions: "PatchStatus Emit", wantAccepted: "False", wantReason: "SpecInvalid", wantReady: "False",
			wantMessage: "spec.volumeCreation: is missing", wantNote: "SpecInvalid: spec.volumeCreation: is missing",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := plan(c.view, noon)
			if got := names(p); got != c.wantActions {
				t.Fatalf("got actions %q, want %q", got, c.wantActions)
			}
			status := statusOf(p)
			accepted := meta.FindStatusCondition(status.Conditions, pavv1.ConditionAccepted)
			if accepted.Status != c.wantAccepted || accepted.Reason != c.wantReason || c.wantMessage != "" && accepted.Message != c.wantMessage {
				t.Errorf("got Accepted %+v", accepted)
			}
			if ready := meta.FindStatusCondition(status.Conditions, pavv1.ConditionReady); ready.Status != c.wantReady {
				t.Errorf("got Ready %+v, want %s", ready, c.wantReady)
			}
			if accepted.ObservedGeneration != 3 || status.ObservedGeneration != 3 || !accepted.LastTransitionTime.Time.Equal(noon) {
				t.Errorf("got generation %d and time %v", status.ObservedGeneration, accepted.LastTransitionTime)
			}
			if got := noteOf(p); got != c.wantNote {
				t.Errorf("got Event %q, want %q", got, c.wantNote)
			}
			again := reported(c.view)
			again.Provisioner.Finalizers = []string{tarnv1.FinalizerProvisioner}
			if got := names(plan(again, noon)); strings.Contains(got, "PatchStatus") || strings.Contains(got, "Emit") {
				t.Errorf("with that status written it plans %q", got)
			}
		})
	}
}

func TestPlanCountsVolumesThatWereMade(t *testing.T) {
	undone := record("e", tarnv1.VolumeUndoing)
	undone.Status.Handle = "h"
	v := View{Provisioner: slow(), Nodes: 4, Records: []tarnv1.PavVolume{
		record("a", tarnv1.VolumePending), record("b", tarnv1.VolumeCreating), record("c", tarnv1.VolumeCreated),
		record("d", tarnv1.VolumeUndoing), undone, record("f", tarnv1.VolumeDeleting),
	}}
	if s := statusOf(plan(v, noon)); s.Volumes != 3 || s.Nodes != 4 {
		t.Errorf("got %d volumes on %d nodes, want 3 on 4", s.Volumes, s.Nodes)
	}
}

// The node agents rely on it, so it stays when Accepted has the deletion as its reason.
func TestPlanSaysAsLongAsTheNameIsTaken(t *testing.T) {
	foreign := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "slow", UID: "theirs"}}
	kept := []tarnv1.PavVolume{record("a", tarnv1.VolumeDeleting)}
	for name, c := range map[string]struct {
		view  View
		want  string
		nodes int32
	}{
		"taken":                        {View{Provisioner: slow(), Driver: foreign, Nodes: 2}, ReasonDriverNameTaken, 0},
		"taken, and it is to go":       {View{Provisioner: slow(toGo), Driver: foreign, Nodes: 2, Records: kept}, ReasonDriverNameTaken, 0},
		"its own, and it is to go":     {View{Provisioner: slow(toGo), Driver: wantDriver(slow()), Nodes: 2, Records: kept}, ReasonRegistered, 2},
		"the other has gone":           {View{Provisioner: slow(), Nodes: 2}, ReasonRegistered, 2},
		"the other has gone, unserved": {View{Provisioner: slow()}, ReasonNoNode, 0},
	} {
		t.Run(name, func(t *testing.T) {
			status := statusOf(plan(c.view, noon))
			ready := meta.FindStatusCondition(status.Conditions, pavv1.ConditionReady)
			if ready.Reason != c.want || (ready.Status == metav1.ConditionTrue) != (c.want == ReasonRegistered) || status.Nodes != c.nodes {
				t.Errorf("got Ready %+v on %d nodes, want reason %s on %d", ready, status.Nodes, c.want, c.nodes)
			}
		})
	}
}

func TestPlanMendsItsDriver(t *testing.T) {
	for _, c := range []struct {
		name        string
		drift       func(*storagev1.CSIDriver)
		wantActions string
	}{
		{"one that is right is left", func(*storagev1.CSIDriver) {}, ""},
		{"what the API server fills in is no drift", func(d *storagev1.CSIDriver) {
			d.Spec.SELinuxMount, d.Spec.StorageCapacity = ptr.To(false), ptr.To(false)
		}, ""},
		{"labels and annotations of others are left", func(d *storagev1.CSIDriver) {
			d.Labels["team"], d.Annotations = "a", map[string]string{"x": "y"}
		}, ""},
		{"a lost label is put back", func(d *storagev1.CSIDriver) { d.Labels = nil }, "Update"},
		{"a lost owner is put back", func(d *storagev1.CSIDriver) { d.OwnerReferences = nil }, "Update"},
		{"the owner of an earlier provisioner of the name is replaced", func(d *storagev1.CSIDriver) { d.OwnerReferences[0].UID = "old" }, "Update"},
		{"pod information is switched on again", func(d *storagev1.CSIDriver) { d.Spec.PodInfoOnMount = nil }, "Update"},
		{"the group policy is set again", func(d *storagev1.CSIDriver) {
			d.Spec.FSGroupPolicy = ptr.To(storagev1.NoneFSGroupPolicy)
		}, "Update"},
		{"SELinux mounts are switched off", func(d *storagev1.CSIDriver) { d.Spec.SELinuxMount = ptr.To(true) }, "Update"},
		{"storage capacity is switched off", func(d *storagev1.CSIDriver) { d.Spec.StorageCapacity = ptr.To(true) }, "Update"},
		{"token requests are taken out", func(d *storagev1.CSIDriver) { d.Spec.TokenRequests = []storagev1.TokenRequest{{}} }, "Update"},
		{"attachment cannot be changed, so it is made anew", func(d *storagev1.CSIDriver) { d.Spec.AttachRequired = ptr.To(true) }, "Delete Create"},
		{"lifecycle modes cannot be changed, so it is made anew", func(d *storagev1.CSIDriver) {
			d.Spec.VolumeLifecycleModes = append(d.Spec.VolumeLifecycleModes, storagev1.VolumeLifecycleEphemeral)
		}, "Delete Create"},
		{"one that is going is waited for", func(d *storagev1.CSIDriver) {
			d.DeletionTimestamp, d.Spec.AttachRequired = &metav1.Time{Time: noon}, ptr.To(true)
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := wantDriver(slow())
			c.drift(d)
			v := reported(View{Provisioner: slow(), Driver: d})
			p := plan(v, noon)
			if got := names(p); got != c.wantActions {
				t.Fatalf("got %q, want %q", got, c.wantActions)
			}
			if update, ok := append(p.Actions, nil)[0].(action.Update); ok {
				if left := planDriver(View{Provisioner: slow(), Driver: update.To.(*storagev1.CSIDriver)}); left != nil {
					t.Errorf("the mended driver is mended again: %s", cmp.Diff(d, update.To))
				}
			}
		})
	}
}

func TestPlanLetsGoOfWhatNothingNeeds(t *testing.T) {
	stage := tarnv1.PavStage{ObjectMeta: metav1.ObjectMeta{Name: "stage-1"}, Spec: tarnv1.PavStageSpec{VolumeName: "pv", NodeName: "n1"}}
	for _, c := range []struct {
		name    string
		records []tarnv1.PavVolume
		volume  *corev1.PersistentVolume
		stages  []tarnv1.PavStage
		// wantHolder is part of the message; empty if nothing keeps the provisioner.
		wantHolder string
	}{
		{name: "nothing"},
		{name: "a claim that waits, until its record is dropped", records: []tarnv1.PavVolume{record("v", tarnv1.VolumePending)}, wantHolder: "PavVolume v (about to be deleted)"},
		{name: "a claim that has just come", records: []tarnv1.PavVolume{record("v", "")}, wantHolder: "PavVolume v (about to be deleted)"},
		{name: "a claim being checked", records: []tarnv1.PavVolume{record("v", tarnv1.VolumeValidating)}, wantHolder: "PavVolume v (Validating)"},
		{name: "a volume being made", records: []tarnv1.PavVolume{record("v", tarnv1.VolumeCreating)}, wantHolder: "PavVolume v (Creating)"},
		{name: "not a volume that is disputed", records: []tarnv1.PavVolume{record("v", tarnv1.VolumeDisputed)}},
		{name: "a volume being undone", records: []tarnv1.PavVolume{record("v", tarnv1.VolumeUndoing)}, wantHolder: "PavVolume v (Undoing)"},
		{name: "a volume being deleted", records: []tarnv1.PavVolume{record("v", tarnv1.VolumeDeleting)}, wantHolder: "PavVolume v (Deleting)"},
		{
			name: "a volume not handed over yet", records: []tarnv1.PavVolume{record("v", tarnv1.VolumeCreated)},
			wantHolder: "PavVolume v (without a PersistentVolume)",
		},
		{
			name: "a bound volume that is to be kept", records: []tarnv1.PavVolume{record("v", tarnv1.VolumeCreated)},
			volume: pv(corev1.VolumeBound, corev1.PersistentVolumeReclaimRetain, true), wantHolder: "PavVolume v (in use by its claim)",
		},
		{
			name: "a volume about to be bound", records: []tarnv1.PavVolume{record("v", tarnv1.VolumeCreated)},
			volume: pv(corev1.VolumeAvailable, corev1.PersistentVolumeReclaimRetain, true), wantHolder: "PavVolume v (in use by its claim)",
		},
		{
			name: "a released volume that will be deleted", records: []tarnv1.PavVolume{record("v", tarnv1.VolumeCreated)},
			volume: pv(corev1.VolumeReleased, corev1.PersistentVolumeReclaimDelete, true), wantHolder: "PavVolume v (reclaim policy Delete)",
		},
		{
			name: "a released volume that is kept", records: []tarnv1.PavVolume{record("v", tarnv1.VolumeCreated)},
			volume: pv(corev1.VolumeReleased, corev1.PersistentVolumeReclaimRetain, true),
		},
		{
			name: "a released volume in the trash", records: []tarnv1.PavVolume{record("v", tarnv1.VolumeCreated)},
			volume: annotated(corev1.VolumeReleased, tarnv1.AnnotationReclaimPolicy, "Delete"), wantHolder: "PavVolume v (in the trash; tarn trash purge v deletes it)",
		},
		{
			name: "a bound one that will be there", records: []tarnv1.PavVolume{record("v", tarnv1.VolumeCreated)},
			volume: annotated(corev1.VolumeBound, tarnv1.AnnotationReclaimPolicy, "Delete"), wantHolder: "PavVolume v (in use by its claim)",
		},
		{
			name: "one that is kept once its retention is over", records: []tarnv1.PavVolume{record("v", tarnv1.VolumeCreated)},
			volume: annotated(corev1.VolumeReleased, tarnv1.AnnotationReclaimPolicy, "Retain"),
		},
		{
			name: "a volume being added to a pool", records: []tarnv1.PavVolume{record("v", tarnv1.VolumeCreated)},
			volume: annotated(corev1.VolumeReleased, tarnv1.AnnotationPoolFilling, "uid"), wantHolder: "PavVolume v (being added to a pool)",
		},
		{
			name: "a kept volume that was set free", records: []tarnv1.PavVolume{record("v", tarnv1.VolumeCreated)},
			volume: pv(corev1.VolumeAvailable, corev1.PersistentVolumeReclaimRetain, false),
		},
		{name: "a stage", stages: []tarnv1.PavStage{stage}, wantHolder: "PavStage stage-1 (volume pv on node n1)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := View{
				Provisioner: slow(toGo), Driver: wantDriver(slow()), Records: c.records, Stages: c.stages,
				Volumes: map[string]*corev1.PersistentVolume{"v": c.volume}, Live: true,
			}
			p := plan(v, noon)
			if c.wantHolder == "" {
				if got := names(p); got != "Delete RemoveFinalizer" {
					t.Fatalf("got %q, want the driver deleted and the finalizer off", got)
				}
				if v.Live = false; names(plan(v, noon)) != "" {
					t.Errorf("a view from the cache made it plan %q", names(plan(v, noon)))
				}
				return
			}
			if got := names(p); got != "PatchStatus Emit" {
				t.Fatalf("got %q, want it to wait and say so", got)
			}
			accepted := meta.FindStatusCondition(statusOf(p).Conditions, pavv1.ConditionAccepted)
			if accepted.Status != "False" || accepted.Reason != "Deleting" || !strings.HasSuffix(accepted.Message, "waiting for the deletion of "+c.wantHolder) {
				t.Errorf("got %+v, want it to wait for %q", accepted, c.wantHolder)
			}
		})
	}
}

func TestPlanLeavesADriverThatIsNotOursWhenItGoes(t *testing.T) {
	v := View{Provisioner: slow(toGo), Driver: &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "slow"}}, Live: true}
	if got := names(plan(v, noon)); got != "RemoveFinalizer" {
		t.Errorf("got %q, want LetGo alone", got)
	}
}

func TestPlanSaysSoWhenOthersHoldAProvisionerBack(t *testing.T) {
	v := View{Provisioner: slow(unheld, toGo)}
	p := plan(v, noon)
	if got := meta.FindStatusCondition(statusOf(p).Conditions, pavv1.ConditionAccepted); got.Reason != "Deleting" || names(p) != "PatchStatus Emit" {
		t.Errorf("got %q with %+v", names(p), got)
	}
}

func TestPlanWarnsOncePerCause(t *testing.T) {
	v := View{Provisioner: slow(), Driver: wantDriver(slow()), Problems: []steppod.Problem{{Field: "spec.a", Message: "is wrong"}}}
	v = reported(v)
	v.Nodes = 1
	if p := plan(v, noon); names(p) != "PatchStatus" {
		t.Errorf("a node more gives %q, want no Warning", names(p))
	}
	v.Problems[0].Message = "is still wrong"
	if p := plan(v, noon); noteOf(p) != "SpecInvalid: spec.a: is still wrong" {
		t.Errorf("another problem gives %q", noteOf(p))
	}
	v = View{Provisioner: slow(toGo), Records: []tarnv1.PavVolume{record("a", tarnv1.VolumeDeleting), record("b", tarnv1.VolumeDeleting)}}
	v = reported(v)
	v.Records = v.Records[1:]
	if p := plan(v, noon); names(p) != "PatchStatus" {
		t.Errorf("progress of a deletion gives %q, want no Warning", names(p))
	}
}

func TestPlanNamesTheFirstFewAndCountsTheRest(t *testing.T) {
	v := View{Provisioner: slow(toGo)}
	for _, name := range strings.Split("abcdefg", "") {
		v.Records = append(v.Records, record(name, tarnv1.VolumeDeleting))
	}
	message := statusOf(plan(v, noon)).Conditions[0].Message
	if !strings.HasSuffix(message, "PavVolume e (Deleting) and 2 more") {
		t.Errorf("got %q", message)
	}
}

func TestMessagesAreCutToWhatTheAPITakes(t *testing.T) {
	v := View{Provisioner: slow(), Problems: []steppod.Problem{{Field: "spec", Message: strings.Repeat("é", maxMessage)}}}
	p := plan(v, noon)
	message := statusOf(p).Conditions[0].Message
	if len(message) > maxMessage || len(message) < maxMessage-4 || !strings.HasSuffix(message, "é...") {
		t.Errorf("got a message of %d bytes that ends %q", len(message), message[len(message)-8:])
	}
}
