package pavvolume

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

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

// onNode makes a record that waits for the scheduler and was tried on a node.
func onNode(name string) testkit.With[*tarnv1.PavVolume] {
	return func(r *tarnv1.PavVolume) { r.Spec.WaitsForNode, r.Status.NodeName = true, name }
}

// onOne makes the provisioner's volumes node-local, and selects a node.
func onOne(selected string) func(*View) {
	return func(v *View) {
		v.Provisioner.Spec.Topology = pavv1.TopologyNode
		v.Claim.Annotations[volume.AnnSelectedNode] = selected
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

const dropped = "confirm, discard, release, delete v1alpha1.PavVolume"

func TestAClaimGetsARecordWhen(t *testing.T) {
	for _, c := range []struct {
		name        string
		view        *View
		want        string
		wantWarning string
	}{
		{"case 117: the binder has asked an accepted provisioner", viewOf(), "Record", ""},
		{"case 117: not when the claim is bound already", viewOf(func(v *View) { v.Claim.Spec.VolumeName = "other" }), "", ""},
		{"not when the claim is being deleted", viewOf(func(v *View) { v.Claim.DeletionTimestamp = &metav1.Time{Time: now} }), "", ""},
		{"case 117: not when the binder has not asked anybody", viewOf(func(v *View) { v.Claim.Annotations = nil }), "", ""},
		{"not when its PersistentVolume is there", viewOf(func(v *View) { v.Volume = &corev1.PersistentVolume{} }), "", ""},
		{"not when its class is gone", viewOf(func(v *View) { v.Class = nil }), "", ""},
		{"case 117: not when its class names another provisioner now", viewOf(func(v *View) { v.Class.Provisioner = "other" }), "", ""},
		{"case 117: not before a node is selected, where the class waits for one",
			viewOf(func(v *View) { v.Class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer) }), "", ""},
		{"case 117: a node is selected", viewOf(func(v *View) {
			v.Class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
			v.Claim.Annotations[volume.AnnSelectedNode] = "n1"
		}), "Record", ""},
		{"case 117: another driver's claim is left alone", viewOf(func(v *View) { v.Provisioner, v.DriverKnown = nil, true }), "", ""},
		{"a name no PavProvisioner can have is left alone", viewOf(func(v *View) {
			v.Provisioner, v.Claim.Annotations[volume.AnnProvisioner] = nil, "rancher.io/local-path"
		}), "", ""},
		{"a missing provisioner is told", viewOf(func(v *View) { v.Provisioner = nil }), "", `there is no PavProvisioner "prov"`},
		{"a provisioner under deletion is told", viewOf(func(v *View) { v.Provisioner.DeletionTimestamp = &metav1.Time{Time: now} }), "", "under deletion"},
		{"a provisioner that is not accepted is told", viewOf(condition(metav1.ConditionFalse, "TemplateInvalid", "line 3")), "", "not accepted: line 3"},
		{"not before the provisioner was judged since its last change, of which nobody need hear", viewOf(func(v *View) { v.Provisioner.Generation = 2 }), "", ""},
		{"a Static provisioner is told", viewOf(func(v *View) { v.Provisioner.Spec.ProvisioningModes = []pavv1.ProvisioningMode{pavv1.ModeStatic} }), "", "does not have Dynamic"},
		{"a claim that was bound once is Lost and gets no other volume", viewOf(func(v *View) { v.Claim.Annotations["pv.kubernetes.io/bind-completed"] = "yes" }), "", ""},
		{"a claim is left to its populator", viewOf(func(v *View) { v.Claim.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "Backup"} }), "", ""},
		{"a data source is told", viewOf(func(v *View) { v.Claim.Spec.DataSource = &corev1.TypedLocalObjectReference{} }), "", "again without spec.dataSource"},
		{"a selector is told", viewOf(func(v *View) { v.Claim.Spec.Selector = &metav1.LabelSelector{} }), "", "again without spec.selector"},
		{"a VolumeAttributesClass is told", viewOf(func(v *View) { v.Claim.Spec.VolumeAttributesClassName = ptr.To("fast") }), "", `again without spec.volumeAttributesClassName "fast"`},
		{"a request beyond the claim's own limit is told", viewOf(sized("2Gi", "1Gi")), "", "requests.storage is 2Gi, more than its spec.resources.limits.storage, 1Gi; create the claim again with a limit of at least 2Gi"},
		{"a request at the claim's own limit, in whole bytes", viewOf(sized("500m", "1")), "Record", ""},
		{"a Secret of its class that nobody reads is told", viewOf(func(v *View) {
			v.Class.Parameters = map[string]string{"csi.storage.k8s.io/node-stage-secret-name": "key"}
		}), "", `has parameter "csi.storage.k8s.io/node-stage-secret-name" with value "key", which no template of PavProvisioner "prov" reads`},
		{"a Secret that the claim does not name is told", viewOf(func(v *View) {
			v.Class.Parameters = map[string]string{steppod.SecretNameParameter: "${pvc.annotations['key']}", steppod.SecretNamespaceParameter: "${pvc.namespace}"}
		}), "", `the claim has no annotation "key"; set it to the name of a Secret`},
		{"a Secret of each claim is told to a pool", viewOf(func(v *View) {
			v.Class.Parameters = map[string]string{steppod.SecretNameParameter: "key", steppod.SecretNamespaceParameter: "${pvc.namespace}"}
			v.Claim.Labels = map[string]string{tarnv1.LabelPoolUID: "u"}
		}), "", "a PersistentVolumeSet cannot make its volumes ahead"},
		{"a Secret of its class is read", viewOf(func(v *View) {
			v.Class.Parameters = map[string]string{"csi.storage.k8s.io/node-stage-secret-name": "key"}
			v.Provisioner.Spec.VolumeStaging = testkit.Section(`"{{ params['csi.storage.k8s.io/node-stage-secret-name'] }}"`)
		}), "Record", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := plan(c.view, now)
			got, warning := told(p), note(p, eventFailed)
			if got != c.want || !strings.Contains(warning, c.wantWarning) || (c.wantWarning == "") != (warning == "") {
				t.Errorf("plan: %s %q, want %s with %q", got, warning, c.want, c.wantWarning)
			}
		})
	}
}

func TestARecordGoesOnBy(t *testing.T) {
	later := metav1.NewTime(now.Add(time.Minute))
	succeeded := steppod.Observation{State: steppod.PodSucceeded, Result: &tarnv1.PodResult{Capacity: ptr.To("2Gi"), Handle: ptr.To("h")}}
	broken := steppod.Observation{State: steppod.PodFailed, Reason: steppod.ReasonPodFailed, Message: "no room", Inputs: tarnv1.PodInputs{Handle: "chosen"}}
	for _, c := range []struct {
		name     string
		view     *View
		want     string
		wantNext time.Time
	}{
		{"Pending begins an attempt", viewOf(recordIn(tarnv1.VolumePending)), "Begin", time.Time{}},
		{"a record without a phase begins an attempt", viewOf(recordIn("")), "Begin", time.Time{}},
		{"Pending waits until its next attempt is due", viewOf(recordIn(tarnv1.VolumePending, func(r *tarnv1.PavVolume) { r.Status.NextAttemptTime = &later })), "", later.Time},
		{"Pending begins its next attempt at once when it is retried", viewOf(recordIn(tarnv1.VolumePending, func(r *tarnv1.PavVolume) {
			r.Status.NextAttemptTime, r.Status.Attempts, r.Annotations = &later, 2, map[string]string{tarnv1.AnnotationRetry: "creation-2"}
		})), "Begin", time.Time{}},
		{"Pending that was retried earlier waits", viewOf(recordIn(tarnv1.VolumePending, func(r *tarnv1.PavVolume) {
			r.Status.NextAttemptTime, r.Status.Attempts, r.Annotations = &later, 3, map[string]string{tarnv1.AnnotationRetry: "creation-2"}
		})), "", later.Time},
		{"Pending that is forgotten goes", viewOf(recordIn(tarnv1.VolumePending, func(r *tarnv1.PavVolume) {
			r.DeletionTimestamp, r.Annotations = &later, map[string]string{tarnv1.AnnotationForget: string(r.UID)}
		})), "Forget", time.Time{}},
		{"Pending is dropped without its claim", viewOf(recordIn(tarnv1.VolumePending), noClaim), dropped, time.Time{}},
		{"Pending is dropped when the claim got another volume", viewOf(recordIn(tarnv1.VolumePending), func(v *View) { v.Claim.Spec.VolumeName = "other" }), dropped, time.Time{}},
		{"Pending is dropped when somebody deletes it", viewOf(recordIn(tarnv1.VolumePending, func(r *tarnv1.PavVolume) { r.DeletionTimestamp = &later })), dropped, time.Time{}},
		{"Pending is dropped when another provisioner has the name", viewOf(recordIn(tarnv1.VolumePending), func(v *View) { v.Provisioner.UID = "new" }), dropped, time.Time{}},
		{"Pending is dropped when its provisioner is being deleted", viewOf(recordIn(tarnv1.VolumePending), func(v *View) { v.Provisioner.DeletionTimestamp = &later }), dropped, time.Time{}},
		{"case 124: Pending is dropped when its class was made anew, however long it was to wait", viewOf(recordIn(tarnv1.VolumePending, func(r *tarnv1.PavVolume) { r.Status.NextAttemptTime = &later }), func(v *View) { v.Class.UID = "new" }), dropped, time.Time{}},
		{"Pending goes on when its class is gone", viewOf(recordIn(tarnv1.VolumePending), func(v *View) { v.Class = nil }), "Begin", time.Time{}},
		{"Pending says that its provisioner is not accepted", viewOf(recordIn(tarnv1.VolumePending), condition(metav1.ConditionFalse, "X", "why")), "status Pending", time.Time{}},

		{"case 119: Pending gives its node back after a failure there", viewOf(recordIn(tarnv1.VolumePending, onNode("n1")), onOne("n1")), "Reschedule", time.Time{}},
		{"case 119: Pending waits for the scheduler to select a node again", viewOf(recordIn(tarnv1.VolumePending, onNode("")), onOne("")), "", time.Time{}},
		{"case 119: Pending begins on the node that is selected", viewOf(recordIn(tarnv1.VolumePending, onNode("")), onOne("n2")), "Begin", time.Time{}},
		{"case 119: Pending of a volume for every node keeps the selected node", viewOf(recordIn(tarnv1.VolumePending, onNode("")), func(v *View) { v.Claim.Annotations[volume.AnnSelectedNode] = "n1" }), "Begin", time.Time{}},

		{"Validating starts a pod that is not there", viewOf(recordIn(tarnv1.VolumeValidating), pod(steppod.Observation{State: steppod.PodAbsent})), "Restart", time.Time{}},
		{"Validating waits for a running pod", viewOf(recordIn(tarnv1.VolumeValidating), pod(steppod.Observation{State: steppod.PodRunning, CheckAt: later.Time})), "", later.Time},
		{"Validating goes on to creation", viewOf(recordIn(tarnv1.VolumeValidating), pod(succeeded)), "Create", time.Time{}},
		{"Validating that fails goes back to Pending: nothing is undone", viewOf(recordIn(tarnv1.VolumeValidating), pod(broken)), "status Pending", time.Time{}},
		{"Validating is dropped without its claim", viewOf(recordIn(tarnv1.VolumeValidating), noClaim, pod(steppod.Observation{State: steppod.PodRunning})), dropped, time.Time{}},
		{"Validating is dropped when somebody deletes it", viewOf(recordIn(tarnv1.VolumeValidating, func(r *tarnv1.PavVolume) { r.DeletionTimestamp = &later }), pod(steppod.Observation{State: steppod.PodRunning})), dropped, time.Time{}},
		{"Validating fails when its provisioner vanishes", viewOf(recordIn(tarnv1.VolumeValidating), func(v *View) { v.Provisioner = nil }, pod(succeeded)), "status Pending", time.Time{}},

		{"Creating starts a pod that is not there", viewOf(recordIn(tarnv1.VolumeCreating), pod(steppod.Observation{State: steppod.PodAbsent})), "Restart", time.Time{}},
		{"case 118: Creating waits for a running pod, even without its claim", viewOf(recordIn(tarnv1.VolumeCreating), noClaim, pod(steppod.Observation{State: steppod.PodRunning})), "", time.Time{}},
		{"Creating waits for the results", viewOf(recordIn(tarnv1.VolumeCreating), pod(steppod.Observation{State: steppod.PodSettling})), "", time.Time{}},
		{"Creating that succeeds records the volume", viewOf(recordIn(tarnv1.VolumeCreating), pod(succeeded)), "status Created", time.Time{}},
		{"case 118: Creating that succeeds without its claim records it all the same, to be undone", viewOf(recordIn(tarnv1.VolumeCreating), noClaim, pod(succeeded)), "status Created", time.Time{}},
		{"case 118: Creating that fails is undone", viewOf(recordIn(tarnv1.VolumeCreating), pod(broken)), "status Undoing", time.Time{}},
		{"Creating whose pod vanished together with the claim is undone", viewOf(recordIn(tarnv1.VolumeCreating), noClaim, pod(steppod.Observation{State: steppod.PodAbsent})), "status Undoing", time.Time{}},
		{"Creating that no node was found for waits as long as its claim does", viewOf(recordIn(tarnv1.VolumeCreating), waiting(steppod.Observation{State: steppod.PodStarting, CheckAt: later.Time})), "", later.Time},
		{"Creating that no node was found for is taken back with its claim", viewOf(recordIn(tarnv1.VolumeCreating), noClaim, waiting(steppod.Observation{State: steppod.PodStarting})), "delete v1.Pod, status Pending", time.Time{}},
		{"Creating that no node was found for is taken back when somebody deletes it", viewOf(recordIn(tarnv1.VolumeCreating, func(r *tarnv1.PavVolume) { r.DeletionTimestamp = &later }), waiting(steppod.Observation{State: steppod.PodStarting})), "delete v1.Pod, status Pending", time.Time{}},
		{"Creating that no node was found for is taken back when its class was made anew", viewOf(recordIn(tarnv1.VolumeCreating), func(v *View) { v.Class.UID = "new" }, waiting(steppod.Observation{State: steppod.PodStarting})), "delete v1.Pod, status Pending", time.Time{}},
		{"Creating that is started again goes on when its class was made anew", viewOf(recordIn(tarnv1.VolumeCreating), func(v *View) { v.Class.UID = "new" }, again(steppod.Observation{State: steppod.PodStarting, CheckAt: later.Time})), "", later.Time},
		{"Creating that found no node in its time is not undone", viewOf(recordIn(tarnv1.VolumeCreating), waiting(steppod.Observation{State: steppod.PodFailed, Reason: steppod.ReasonPodDeadline})), "delete v1.Pod, status Pending", time.Time{}},
		{"Creating that is started again and finds no node waits as long as its claim does", viewOf(recordIn(tarnv1.VolumeCreating), again(steppod.Observation{State: steppod.PodStarting, CheckAt: later.Time})), "", later.Time},
		{"Creating that is started again and finds no node is undone with its claim", viewOf(recordIn(tarnv1.VolumeCreating), noClaim, again(steppod.Observation{State: steppod.PodStarting})), "status Undoing", time.Time{}},
		{"Creating that is started again and finds no node in its time is undone", viewOf(recordIn(tarnv1.VolumeCreating), again(steppod.Observation{State: steppod.PodFailed, Reason: steppod.ReasonPodDeadline})), "status Undoing", time.Time{}},
		{"Creating on a node that takes long waits for it, even without its claim", viewOf(recordIn(tarnv1.VolumeCreating), noClaim, pod(steppod.Observation{State: steppod.PodStarting})), "", time.Time{}},
		{"Creating whose containers never started goes back to Pending: nothing is undone", viewOf(recordIn(tarnv1.VolumeCreating), unstarted(true)), "status Pending", time.Time{}},
		{"Creating whose time is up waits for the kubelet to say that its containers never started", viewOf(recordIn(tarnv1.VolumeCreating), overdue(time.Minute)), "", now.Add(2 * time.Minute)},
		{"Creating whose time is up and whose kubelet stays silent is undone", viewOf(recordIn(tarnv1.VolumeCreating), overdue(3*time.Minute)), "status Undoing", time.Time{}},
		{"Creating that is started again, and whose containers never start then, is undone", viewOf(recordIn(tarnv1.VolumeCreating), unstarted(false)), "status Undoing", time.Time{}},
		{"Creating that gives too little is undone", viewOf(recordIn(tarnv1.VolumeCreating), pod(steppod.Observation{State: steppod.PodSucceeded, Result: &tarnv1.PodResult{Capacity: ptr.To("1Mi")}})), "status Undoing", time.Time{}},

		{"Created writes the PersistentVolume", viewOf(recordIn(tarnv1.VolumeCreated)), "HandOver", time.Time{}},
		{"Created and handed over is left alone", viewOf(recordIn(tarnv1.VolumeCreated, handed), func(v *View) { v.Volume = testkit.Volume(v.Record) }), "", time.Time{}},
		{"Created and handed over still removes its pod", viewOf(recordIn(tarnv1.VolumeCreated, handed), func(v *View) {
			v.Volume = testkit.Volume(v.Record)
			v.Pods = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{tarnv1.LabelStep: string(tarnv1.StepCreation)}}}}
		}), "discard", time.Time{}},
		{"and that of an attempt that was undone before a crash", viewOf(recordIn(tarnv1.VolumeCreated, handed), deletionPod(1)), "discard", time.Time{}},
		{"but not a deletion pod that the record does not know yet", viewOf(recordIn(tarnv1.VolumeCreated, handed), deletionPod(2)), "", time.Time{}},
		{"a handed-over volume whose PersistentVolume is gone is never made anew", viewOf(recordIn(tarnv1.VolumeCreated, handed), noClaim), "confirm absent, status Created", time.Time{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if p := plan(c.view, now); told(p) != c.want || !p.Next.Equal(c.wantNext) {
				t.Errorf("plan: %s, next %s, want %s, next %s", told(p), p.Next, c.want, c.wantNext)
			}
		})
	}
}

func TestAFailedCreationKeepsTheWordsAndTheHandle(t *testing.T) {
	o := steppod.Observation{State: steppod.PodFailed, Reason: steppod.ReasonPodFailed, Message: "no room", Inputs: tarnv1.PodInputs{Handle: "chosen"}}
	p := plan(viewOf(recordIn(tarnv1.VolumeCreating), pod(o)), now)
	got, warning := p.Record.Status, note(p, eventFailed)
	if want := "Creation pod failed: no room"; warning != want || got.LastError.Message != want {
		t.Errorf("warning %q, last error %q, want %q", warning, got.LastError.Message, want)
	}
	if got.Handle != "chosen" {
		t.Errorf("handle = %q, want the one the pod was given, so that undoing speaks of the same volume", got.Handle)
	}
	if at := got.NextAttemptTime; at != nil {
		t.Errorf("next attempt at %s, want none before this one is undone", at)
	}
	refused := plan(viewOf(recordIn(tarnv1.VolumeValidating), pod(o)), now).Record.Status // there is nothing to undo
	if pause := refused.NextAttemptTime.Sub(now); pause < steppod.FirstRetry*4/5 || pause > steppod.FirstRetry*6/5 {
		t.Errorf("next attempt after %s, want about %s", pause, steppod.FirstRetry)
	}
	if c := conditionOf(got, tarnv1.ConditionProvisioned); c.Reason != steppod.ReasonPodFailed {
		t.Errorf("condition = %+v, want reason %s", c, steppod.ReasonPodFailed)
	}
}

func TestWhatThePodWroteGoesBeforeTheSection(t *testing.T) {
	o := steppod.Observation{State: steppod.PodSucceeded, Inputs: tarnv1.PodInputs{Handle: "field", Capacity: 1 << 30},
		Result: &tarnv1.PodResult{Handle: ptr.To("file"), Capacity: ptr.To("3Gi")}}
	got := plan(viewOf(recordIn(tarnv1.VolumeCreating), pod(o)), now).Record.Status
	if got.Handle != "file" || got.Capacity != 3<<30 {
		t.Errorf("handle %q, capacity %d, want file and 3Gi", got.Handle, got.Capacity)
	}
}

func TestAVolumeOfOneNodeIsTiedToTheNodeItsPodRanOn(t *testing.T) {
	succeeded := steppod.Observation{State: steppod.PodSucceeded, Result: &tarnv1.PodResult{Capacity: ptr.To("1Gi")}}
	overdue := steppod.Observation{State: steppod.PodFailed, Reason: steppod.ReasonPodDeadline}
	for name, c := range map[string]struct {
		view *View
		want string
	}{
		"is that on which its pod ran":                   {viewOf(recordIn(tarnv1.VolumeCreating), pod(succeeded), onOne("")), "n1"},
		"is none for every node":                         {viewOf(recordIn(tarnv1.VolumeCreating), pod(succeeded)), ""},
		"stays that on which the first pod may have run": {viewOf(recordIn(tarnv1.VolumeCreating, onNode("n7")), again(overdue), onOne("n7")), "n7"},
	} {
		if got := plan(c.view, now).Record.Status.NodeName; got != c.want {
			t.Errorf("it %s: node %q, want %q", name, got, c.want)
		}
	}
}

// deletionPod gives a view a volume, an undone attempt, and the pod of a deletion attempt.
func deletionPod(attempt int32) func(*View) {
	return func(v *View) {
		v.Volume = testkit.Volume(v.Record)
		v.Record.Status.DeletionAttempts = 1
		v.Pods = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{
			Name: steppod.PodName(tarnv1.StepDeletion, v.Record.Spec.Claim.UID, attempt), Labels: map[string]string{tarnv1.LabelStep: string(tarnv1.StepDeletion)},
		}}}
	}
}
