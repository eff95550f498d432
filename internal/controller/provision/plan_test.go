package provision

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// viewOf is a waiting claim with everything in place; the changes make the case.
func viewOf(changes ...func(*View)) *View {
	claim := testkit.Claim("ns", "data", "u1", "prov")
	v := &View{VolumeName: "pvc-u1", Claim: claim, Class: testkit.Class("prov"), Provisioner: testkit.Provisioner("prov")}
	for _, change := range changes {
		change(v)
	}
	return v
}

func record(phase tarnv1.VolumePhase, changes ...testkit.With[*tarnv1.PavVolume]) func(*View) {
	return func(v *View) {
		claim := testkit.Claim("ns", "data", "u1", "prov")
		v.Record = testkit.Record(claim, "prov", phase, changes...)
	}
}

func pod(o steppod.Observation) func(*View) {
	return func(v *View) {
		v.Observed = o
		if o.State != steppod.PodAbsent {
			v.Pod = &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n1"}}
		}
	}
}

// waiting makes the pod the first of an attempt, without a node.
func waiting(o steppod.Observation) func(*View) {
	o.Inputs.First = true
	return again(o)
}

// again makes the pod one without a node that replaces a pod that may have run.
func again(o steppod.Observation) func(*View) {
	return func(v *View) { v.Observed, v.Pod = o, &corev1.Pod{} }
}

// overdue makes the pod the first of an attempt, past its deadline for the given time. The kubelet
// has reported nothing since.
func overdue(since time.Duration) func(*View) {
	return func(v *View) {
		unstarted(true)(v)
		start := metav1.NewTime(now.Add(-10*time.Minute - since))
		v.Pod.Status = corev1.PodStatus{Phase: corev1.PodPending, StartTime: &start}
	}
}

// unstarted makes the pod one that the kubelet ended before a container of it ran.
func unstarted(first bool) func(*View) {
	return func(v *View) {
		v.Observed = steppod.Observation{State: steppod.PodFailed, Reason: steppod.ReasonPodDeadline, Inputs: tarnv1.PodInputs{First: first}}
		v.Pod = &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: corev1.PodFailed}}
	}
}

func noClaim(v *View) { v.Claim = nil }

func handed(r *tarnv1.PavVolume) {
	say(&r.Status, r, reasonProvisioned, "made")
}

// onNode makes a record that waits for the scheduler and was tried on a node.
func onNode(name string) testkit.With[*tarnv1.PavVolume] {
	return func(r *tarnv1.PavVolume) { r.Spec.WaitsForNode, r.Status.NodeName = true, name }
}

// tied makes the provisioner's volumes node-local, and selects a node.
func tied(selected string) func(*View) {
	return func(v *View) {
		v.Provisioner.Spec.Topology = pavv1.TopologyNode
		v.Claim.Annotations[annSelectedNode] = selected
	}
}

func condition(status metav1.ConditionStatus, reason, message string) func(*View) {
	return func(v *View) {
		v.Provisioner.Status.Conditions = []metav1.Condition{testkit.Accepted(status, reason, message)}
	}
}

// sized makes the claim request a size with a limit.
func sized(request, limit string) func(*View) {
	return func(v *View) {
		v.Claim.Spec.Resources = corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(request)},
			Limits:   corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(limit)},
		}
	}
}

func TestAClaimGetsARecordWhen(t *testing.T) {
	for _, c := range []struct {
		name        string
		view        *View
		wantAct     Act
		wantWarning string
	}{
		{"case 117: the binder has asked an accepted provisioner", viewOf(), ActRecord, ""},
		{"case 117: not when the claim is bound already", viewOf(func(v *View) { v.Claim.Spec.VolumeName = "other" }), ActNone, ""},
		{"not when the claim is being deleted", viewOf(func(v *View) { v.Claim.DeletionTimestamp = &metav1.Time{Time: now} }), ActNone, ""},
		{"case 117: not when the binder has not asked anybody", viewOf(func(v *View) { v.Claim.Annotations = nil }), ActNone, ""},
		{"not when its PersistentVolume is there", viewOf(func(v *View) { v.Volume = &corev1.PersistentVolume{} }), ActNone, ""},
		{"not when its class is gone", viewOf(func(v *View) { v.Class = nil }), ActNone, ""},
		{"case 117: not when its class names another provisioner now", viewOf(func(v *View) { v.Class.Provisioner = "other" }), ActNone, ""},
		{"case 117: not before a node is selected, where the class waits for one",
			viewOf(func(v *View) { v.Class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer) }), ActNone, ""},
		{"case 117: a node is selected", viewOf(func(v *View) {
			v.Class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
			v.Claim.Annotations[annSelectedNode] = "n1"
		}), ActRecord, ""},
		{"case 117: another driver's claim is left alone", viewOf(func(v *View) { v.Provisioner, v.DriverKnown = nil, true }), ActNone, ""},
		{"a name no PavProvisioner can have is left alone", viewOf(func(v *View) {
			v.Provisioner, v.Claim.Annotations[annProvisioner] = nil, "rancher.io/local-path"
		}), ActNone, ""},
		{"a missing provisioner is told", viewOf(func(v *View) { v.Provisioner = nil }), ActNone, `there is no PavProvisioner "prov"`},
		{"a provisioner under deletion is told", viewOf(func(v *View) { v.Provisioner.DeletionTimestamp = &metav1.Time{Time: now} }), ActNone, "under deletion"},
		{"a provisioner that is not accepted is told", viewOf(condition(metav1.ConditionFalse, "TemplateInvalid", "line 3")), ActNone, "not accepted: line 3"},
		{"not before the provisioner was judged since its last change, of which nobody need hear", viewOf(func(v *View) { v.Provisioner.Generation = 2 }), ActNone, ""},
		{"a Static provisioner is told", viewOf(func(v *View) { v.Provisioner.Spec.ProvisioningModes = []pavv1.ProvisioningMode{pavv1.ModeStatic} }), ActNone, "does not have Dynamic"},
		{"a claim that was bound once is Lost and gets no other volume", viewOf(func(v *View) { v.Claim.Annotations["pv.kubernetes.io/bind-completed"] = "yes" }), ActNone, ""},
		{"a claim is left to its populator", viewOf(func(v *View) { v.Claim.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "Backup"} }), ActNone, ""},
		{"a data source is told", viewOf(func(v *View) { v.Claim.Spec.DataSource = &corev1.TypedLocalObjectReference{} }), ActNone, "again without spec.dataSource"},
		{"a selector is told", viewOf(func(v *View) { v.Claim.Spec.Selector = &metav1.LabelSelector{} }), ActNone, "again without spec.selector"},
		{"a VolumeAttributesClass is told", viewOf(func(v *View) { v.Claim.Spec.VolumeAttributesClassName = ptr.To("fast") }), ActNone, `again without spec.volumeAttributesClassName "fast"`},
		{"a request beyond the claim's own limit is told", viewOf(sized("2Gi", "1Gi")), ActNone, "requests.storage is 2Gi, more than its spec.resources.limits.storage, 1Gi; create the claim again with a limit of at least 2Gi"},
		{"a request at the claim's own limit, in whole bytes", viewOf(sized("500m", "1")), ActRecord, ""},
		{"a Secret of its class that nobody reads is told", viewOf(func(v *View) {
			v.Class.Parameters = map[string]string{"csi.storage.k8s.io/node-stage-secret-name": "key"}
		}), ActNone, `has parameter "csi.storage.k8s.io/node-stage-secret-name" with value "key", which no template of PavProvisioner "prov" reads`},
		{"a Secret of its class is read", viewOf(func(v *View) {
			v.Class.Parameters = map[string]string{"csi.storage.k8s.io/node-stage-secret-name": "key"}
			v.Provisioner.Spec.VolumeStaging = testkit.Section(`"{{ params['csi.storage.k8s.io/node-stage-secret-name'] }}"`)
		}), ActRecord, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := decide(c.view, now)
			if got.Act != c.wantAct || !strings.Contains(got.Warning, c.wantWarning) || (c.wantWarning == "") != (got.Warning == "") {
				t.Errorf("decide = %s %q, want %s with %q", got.Act, got.Warning, c.wantAct, c.wantWarning)
			}
		})
	}
}

func TestARecordGoesOnBy(t *testing.T) {
	later := metav1.NewTime(now.Add(time.Minute))
	succeeded := steppod.Observation{State: steppod.PodSucceeded, Result: &tarnv1.PodResult{Capacity: ptr.To("2Gi"), Handle: ptr.To("h")}}
	broken := steppod.Observation{State: steppod.PodFailed, Reason: steppod.ReasonPodFailed, Message: "no room", Inputs: tarnv1.PodInputs{Handle: "chosen"}}
	for _, c := range []struct {
		name      string
		view      *View
		wantAct   Act
		wantPhase tarnv1.VolumePhase
		wantNext  time.Time
	}{
		{"Pending begins an attempt", viewOf(record(tarnv1.VolumePending)), ActBegin, "", time.Time{}},
		{"a record without a phase begins an attempt", viewOf(record("")), ActBegin, "", time.Time{}},
		{"Pending waits until its next attempt is due", viewOf(record(tarnv1.VolumePending, func(r *tarnv1.PavVolume) { r.Status.NextAttemptTime = &later })), ActNone, "", later.Time},
		{"Pending begins its next attempt at once when it is retried", viewOf(record(tarnv1.VolumePending, func(r *tarnv1.PavVolume) {
			r.Status.NextAttemptTime, r.Status.Attempts, r.Annotations = &later, 2, map[string]string{tarnv1.AnnotationRetry: "creation-2"}
		})), ActBegin, "", time.Time{}},
		{"Pending that was retried earlier waits", viewOf(record(tarnv1.VolumePending, func(r *tarnv1.PavVolume) {
			r.Status.NextAttemptTime, r.Status.Attempts, r.Annotations = &later, 3, map[string]string{tarnv1.AnnotationRetry: "creation-2"}
		})), ActNone, "", later.Time},
		{"Pending that is forgotten is reclaim's", viewOf(record(tarnv1.VolumePending, func(r *tarnv1.PavVolume) {
			r.DeletionTimestamp, r.Annotations = &later, map[string]string{tarnv1.AnnotationForget: string(r.UID)}
		})), ActNone, "", time.Time{}},
		{"Pending is dropped without its claim", viewOf(record(tarnv1.VolumePending), noClaim), ActDrop, "", time.Time{}},
		{"Pending is dropped when the claim got another volume", viewOf(record(tarnv1.VolumePending), func(v *View) { v.Claim.Spec.VolumeName = "other" }), ActDrop, "", time.Time{}},
		{"Pending is dropped when somebody deletes it", viewOf(record(tarnv1.VolumePending, func(r *tarnv1.PavVolume) { r.DeletionTimestamp = &later })), ActDrop, "", time.Time{}},
		{"Pending is dropped when another provisioner has the name", viewOf(record(tarnv1.VolumePending), func(v *View) { v.Provisioner.UID = "new" }), ActDrop, "", time.Time{}},
		{"Pending is dropped when its provisioner is being deleted", viewOf(record(tarnv1.VolumePending), func(v *View) { v.Provisioner.DeletionTimestamp = &later }), ActDrop, "", time.Time{}},
		{"case 124: Pending is dropped when its class was made anew, however long it was to wait", viewOf(record(tarnv1.VolumePending, func(r *tarnv1.PavVolume) { r.Status.NextAttemptTime = &later }), func(v *View) { v.Class.UID = "new" }), ActDrop, "", time.Time{}},
		{"Pending goes on when its class is gone", viewOf(record(tarnv1.VolumePending), func(v *View) { v.Class = nil }), ActBegin, "", time.Time{}},
		{"Pending says that its provisioner is not accepted", viewOf(record(tarnv1.VolumePending), condition(metav1.ConditionFalse, "X", "why")), ActStatus, tarnv1.VolumePending, time.Time{}},

		{"case 119: Pending gives its node back after a failure there", viewOf(record(tarnv1.VolumePending, onNode("n1")), tied("n1")), ActReschedule, "", time.Time{}},
		{"case 119: Pending waits for the scheduler to select a node again", viewOf(record(tarnv1.VolumePending, onNode("")), tied("")), ActNone, "", time.Time{}},
		{"case 119: Pending begins on the node that is selected", viewOf(record(tarnv1.VolumePending, onNode("")), tied("n2")), ActBegin, "", time.Time{}},
		{"case 119: Pending of a volume for every node keeps the selected node", viewOf(record(tarnv1.VolumePending, onNode("")), func(v *View) { v.Claim.Annotations[annSelectedNode] = "n1" }), ActBegin, "", time.Time{}},

		{"Validating starts a pod that is not there", viewOf(record(tarnv1.VolumeValidating), pod(steppod.Observation{State: steppod.PodAbsent})), ActRevalidate, "", time.Time{}},
		{"Validating waits for a running pod", viewOf(record(tarnv1.VolumeValidating), pod(steppod.Observation{State: steppod.PodRunning, CheckAt: later.Time})), ActNone, "", later.Time},
		{"Validating goes on to creation", viewOf(record(tarnv1.VolumeValidating), pod(succeeded)), ActCreate, "", time.Time{}},
		{"Validating that fails goes back to Pending: nothing is undone", viewOf(record(tarnv1.VolumeValidating), pod(broken)), ActStatus, tarnv1.VolumePending, time.Time{}},
		{"Validating is dropped without its claim", viewOf(record(tarnv1.VolumeValidating), noClaim, pod(steppod.Observation{State: steppod.PodRunning})), ActDrop, "", time.Time{}},
		{"Validating is dropped when somebody deletes it", viewOf(record(tarnv1.VolumeValidating, func(r *tarnv1.PavVolume) { r.DeletionTimestamp = &later }), pod(steppod.Observation{State: steppod.PodRunning})), ActDrop, "", time.Time{}},
		{"Validating fails when its provisioner vanishes", viewOf(record(tarnv1.VolumeValidating), func(v *View) { v.Provisioner = nil }, pod(succeeded)), ActStatus, tarnv1.VolumePending, time.Time{}},

		{"Creating starts a pod that is not there", viewOf(record(tarnv1.VolumeCreating), pod(steppod.Observation{State: steppod.PodAbsent})), ActRecreate, "", time.Time{}},
		{"case 118: Creating waits for a running pod, even without its claim", viewOf(record(tarnv1.VolumeCreating), noClaim, pod(steppod.Observation{State: steppod.PodRunning})), ActNone, "", time.Time{}},
		{"Creating waits for the results", viewOf(record(tarnv1.VolumeCreating), pod(steppod.Observation{State: steppod.PodSettling})), ActNone, "", time.Time{}},
		{"Creating that succeeds records the volume", viewOf(record(tarnv1.VolumeCreating), pod(succeeded)), ActStatus, tarnv1.VolumeCreated, time.Time{}},
		{"case 118: Creating that succeeds without its claim records it all the same, to be undone", viewOf(record(tarnv1.VolumeCreating), noClaim, pod(succeeded)), ActStatus, tarnv1.VolumeCreated, time.Time{}},
		{"case 118: Creating that fails is undone", viewOf(record(tarnv1.VolumeCreating), pod(broken)), ActStatus, tarnv1.VolumeUndoing, time.Time{}},
		{"Creating whose pod vanished together with the claim is undone", viewOf(record(tarnv1.VolumeCreating), noClaim, pod(steppod.Observation{State: steppod.PodAbsent})), ActStatus, tarnv1.VolumeUndoing, time.Time{}},
		{"Creating that no node was found for waits as long as its claim does", viewOf(record(tarnv1.VolumeCreating), waiting(steppod.Observation{State: steppod.PodStarting, CheckAt: later.Time})), ActNone, "", later.Time},
		{"Creating that no node was found for is taken back with its claim", viewOf(record(tarnv1.VolumeCreating), noClaim, waiting(steppod.Observation{State: steppod.PodStarting})), ActWithdraw, tarnv1.VolumePending, time.Time{}},
		{"Creating that no node was found for is taken back when somebody deletes it", viewOf(record(tarnv1.VolumeCreating, func(r *tarnv1.PavVolume) { r.DeletionTimestamp = &later }), waiting(steppod.Observation{State: steppod.PodStarting})), ActWithdraw, tarnv1.VolumePending, time.Time{}},
		{"Creating that found no node in its time is not undone", viewOf(record(tarnv1.VolumeCreating), waiting(steppod.Observation{State: steppod.PodFailed, Reason: steppod.ReasonPodDeadline})), ActWithdraw, tarnv1.VolumePending, time.Time{}},
		{"Creating that is started again and finds no node waits as long as its claim does", viewOf(record(tarnv1.VolumeCreating), again(steppod.Observation{State: steppod.PodStarting, CheckAt: later.Time})), ActNone, "", later.Time},
		{"Creating that is started again and finds no node is undone with its claim", viewOf(record(tarnv1.VolumeCreating), noClaim, again(steppod.Observation{State: steppod.PodStarting})), ActStatus, tarnv1.VolumeUndoing, time.Time{}},
		{"Creating that is started again and finds no node in its time is undone", viewOf(record(tarnv1.VolumeCreating), again(steppod.Observation{State: steppod.PodFailed, Reason: steppod.ReasonPodDeadline})), ActStatus, tarnv1.VolumeUndoing, time.Time{}},
		{"Creating on a node that takes long waits for it, even without its claim", viewOf(record(tarnv1.VolumeCreating), noClaim, pod(steppod.Observation{State: steppod.PodStarting})), ActNone, "", time.Time{}},
		{"Creating whose containers never started goes back to Pending: nothing is undone", viewOf(record(tarnv1.VolumeCreating), unstarted(true)), ActStatus, tarnv1.VolumePending, time.Time{}},
		{"Creating whose time is up waits for the kubelet to say that its containers never started", viewOf(record(tarnv1.VolumeCreating), overdue(time.Minute)), ActNone, "", now.Add(2 * time.Minute)},
		{"Creating whose time is up and whose kubelet stays silent is undone", viewOf(record(tarnv1.VolumeCreating), overdue(3*time.Minute)), ActStatus, tarnv1.VolumeUndoing, time.Time{}},
		{"Creating that is started again, and whose containers never start then, is undone", viewOf(record(tarnv1.VolumeCreating), unstarted(false)), ActStatus, tarnv1.VolumeUndoing, time.Time{}},
		{"Creating that gives too little is undone", viewOf(record(tarnv1.VolumeCreating), pod(steppod.Observation{State: steppod.PodSucceeded, Result: &tarnv1.PodResult{Capacity: ptr.To("1Mi")}})), ActStatus, tarnv1.VolumeUndoing, time.Time{}},

		{"Created writes the PersistentVolume", viewOf(record(tarnv1.VolumeCreated)), ActVolume, "", time.Time{}},
		{"Created settles once it is there", viewOf(record(tarnv1.VolumeCreated), func(v *View) { v.Volume = testkit.Volume(v.Record) }), ActSettle, "", time.Time{}},
		{"Created does not take another claim's PersistentVolume for its own", viewOf(record(tarnv1.VolumeCreated), func(v *View) {
			v.Volume = testkit.Volume(v.Record, func(p *corev1.PersistentVolume) { p.Spec.ClaimRef.UID = "other" })
		}), ActVolume, "", time.Time{}},
		{"Created and handed over is reclaim's", viewOf(record(tarnv1.VolumeCreated, handed)), ActNone, "", time.Time{}},
		{"Created and handed over still removes its pod", viewOf(record(tarnv1.VolumeCreated, handed), pod(succeeded)), ActSettle, "", time.Time{}},
		{"a handed-over volume whose PersistentVolume is gone is never made anew", viewOf(record(tarnv1.VolumeCreated, handed), noClaim), ActNone, "", time.Time{}},

		{"Undoing is reclaim's", viewOf(record(tarnv1.VolumeUndoing)), ActNone, "", time.Time{}},
		{"Deleting is reclaim's", viewOf(record(tarnv1.VolumeDeleting)), ActNone, "", time.Time{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := decide(c.view, now)
			if got.Act != c.wantAct || !got.Next.Equal(c.wantNext) {
				t.Fatalf("decide = %s, next %s, want %s, next %s", got.Act, got.Next, c.wantAct, c.wantNext)
			}
			if c.wantPhase != "" && got.Status.Phase != c.wantPhase {
				t.Errorf("phase = %s, want %s", got.Status.Phase, c.wantPhase)
			}
		})
	}
}

func TestAFailedCreationKeepsTheWordsAndTheHandle(t *testing.T) {
	o := steppod.Observation{State: steppod.PodFailed, Reason: steppod.ReasonPodFailed, Message: "no room", Inputs: tarnv1.PodInputs{Handle: "chosen"}}
	got := decide(viewOf(record(tarnv1.VolumeCreating), pod(o)), now)
	if want := "Creation pod failed: no room"; got.Warning != want || got.Status.LastError.Message != want {
		t.Errorf("warning %q, last error %q, want %q", got.Warning, got.Status.LastError.Message, want)
	}
	if got.Status.Handle != "chosen" {
		t.Errorf("handle = %q, want the one the pod was given, so that undoing speaks of the same volume", got.Status.Handle)
	}
	if at := got.Status.NextAttemptTime; at != nil {
		t.Errorf("next attempt at %s, want none before this one is undone", at)
	}
	refused := decide(viewOf(record(tarnv1.VolumeValidating), pod(o)), now) // there is nothing to undo
	if pause := refused.Status.NextAttemptTime.Sub(now); pause < steppod.FirstRetry*4/5 || pause > steppod.FirstRetry*6/5 {
		t.Errorf("next attempt after %s, want about %s", pause, steppod.FirstRetry)
	}
	if c := meta.FindStatusCondition(got.Status.Conditions, tarnv1.ConditionProvisioned); c == nil || c.Reason != steppod.ReasonPodFailed {
		t.Errorf("condition = %+v, want reason %s", c, steppod.ReasonPodFailed)
	}
}

func TestWhatThePodWroteGoesBeforeTheSection(t *testing.T) {
	o := steppod.Observation{State: steppod.PodSucceeded, Inputs: tarnv1.PodInputs{Handle: "field", Capacity: 1 << 30},
		Result: &tarnv1.PodResult{Handle: ptr.To("file"), Capacity: ptr.To("3Gi")}}
	got := decide(viewOf(record(tarnv1.VolumeCreating), pod(o)), now)
	if got.Status.Handle != "file" || got.Status.Capacity != 3<<30 {
		t.Errorf("handle %q, capacity %d, want file and 3Gi", got.Status.Handle, got.Status.Capacity)
	}
}

func TestAVolumeOfOneNodeIsTiedToTheNodeItsPodRanOn(t *testing.T) {
	o := steppod.Observation{State: steppod.PodSucceeded, Result: &tarnv1.PodResult{Capacity: ptr.To("1Gi")}}
	v := viewOf(record(tarnv1.VolumeCreating), pod(o), tied(""))
	v.Pod.Spec.NodeName = "n7"
	if got := decide(v, now).Status.NodeName; got != "n7" {
		t.Errorf("node = %q, want n7", got)
	}
	v.Provisioner.Spec.Topology = pavv1.TopologyCluster
	if got := decide(v, now).Status.NodeName; got != "" {
		t.Errorf("node of a volume for every node = %q, want none", got)
	}
}

func TestWhatAPodThatWasStartedAgainLeavesBehindIsUndoneOnItsNode(t *testing.T) {
	v := viewOf(record(tarnv1.VolumeCreating, onNode("n1")), again(steppod.Observation{State: steppod.PodFailed, Reason: steppod.ReasonPodDeadline}), tied("n1"))
	if got := decide(v, now).Status.NodeName; got != "n1" {
		t.Errorf("node of the deletion pod = %q, want n1, where the first creation pod may have run", got)
	}
}
