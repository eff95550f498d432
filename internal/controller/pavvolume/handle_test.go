package pavvolume

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
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
			condition := w.provisioned()
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
	c := w.provisioned()
	if status.Phase != phase || status.Handle != "prov-7" || status.LastError != nil || c.Reason != steppod.ReasonHandleGoing || !strings.Contains(c.Message, `"pvc-u2"`) {
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
			claim := testkit.Claim("ns", "data", "u1", "prov", func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n1" })
			record := testkit.Record(claim, "prov", c.phase, func(r *tarnv1.PavVolume) { r.Spec.WaitsForNode, r.Status.PodNamespace = true, "default" })
			_, other := made("u2", "prov-7", tarnv1.VolumeDeleting)
			w := newWorld(t, claim, record, other, c.provisioner, testkit.Class("prov"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
			look := func() { w.look("u1") }
			if c.phase == tarnv1.VolumeValidating {
				look = func() {
					v := w.view()
					v.Observed = steppod.Observation{State: steppod.PodSucceeded}
					if _, err := w.r.apply(t.Context(), v, plan(v, now)); err != nil {
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
			w.removed(other)
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
	w.through(interceptor.NewClient(w.store, interceptor.Funcs{
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
	}))
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
