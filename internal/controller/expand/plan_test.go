package expand

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

const (
	controllerRuns = corev1.PersistentVolumeClaimControllerResizeInProgress
	controllerNo   = corev1.PersistentVolumeClaimControllerResizeInfeasible
	nodePending    = corev1.PersistentVolumeClaimNodeResizePending
	nodeRuns       = corev1.PersistentVolumeClaimNodeResizeInProgress
	nodeNo         = corev1.PersistentVolumeClaimNodeResizeInfeasible

	gi = int64(1) << 30
)

// viewOf is a bound claim of 1Gi that requests 2Gi, and whose provisioner has a pod for that.
func viewOf(changes ...func(*View)) *View {
	claim := testkit.Claim("ns", "data", "u1", "prov")
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: bytes(gi)}
	v := &View{Claim: claim, Record: testkit.Record(claim, "prov", tarnv1.VolumeCreated), Provisioner: testkit.Provisioner("prov"),
		Observed: steppod.Observation{State: steppod.PodAbsent}, Prepared: &steppod.Prepared{Pod: podNamed("new")}}
	claim.Spec.VolumeName = v.Record.Name
	v.Record.Status.Capacity = gi
	meta.SetStatusCondition(&v.Record.Status.Conditions, metav1.Condition{Type: tarnv1.ConditionProvisioned, Status: metav1.ConditionTrue, Reason: "Provisioned"})
	v.Volume = testkit.Volume(v.Record)
	v.Provisioner.Spec.VolumeExpansion = testkit.PodSection()
	asks(2 * gi)(v)
	for _, change := range changes {
		change(v)
	}
	return v
}

func bytes(n int64) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: quantity(n)}
}

func podNamed(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func asks(n int64) func(*View) {
	return func(v *View) { v.Claim.Spec.Resources.Requests = bytes(n) }
}

// has sets the sizes of volume and record.
func has(n int64) func(*View) {
	return func(v *View) { v.Volume.Spec.Capacity, v.Record.Status.Capacity = bytes(n), n }
}

func claimIs(status corev1.ClaimResourceStatus, allocated int64) func(*View) {
	return func(v *View) { setStatus(v.Claim, status); allocate(v.Claim, allocated) }
}

// journal says that attempt 3, the second in a row, runs for a size. again is the time of its
// retry, zero while it runs.
func journal(target int64, again time.Duration) func(*View) {
	return func(v *View) {
		j := &tarnv1.PavVolumeExpansion{TargetCapacity: target, Attempts: 3, Failures: 1}
		if again != 0 {
			j.NextAttemptTime = ptr.To(metav1.NewTime(noon.Add(again)))
			j.LastError = &tarnv1.PavVolumeError{Reason: steppod.ReasonPodFailed}
		}
		v.Record.Status.Expansion = j
	}
}

// failedAt is the generation of the provisioner in the last failed attempt.
func failedAt(n int64) func(*View) {
	return func(v *View) { v.Record.Status.Expansion.LastError.ProvisionerGeneration = n }
}

// generation sets the provisioner's generation, and the one it was judged at.
func generation(now, judged int64) func(*View) {
	return func(v *View) {
		v.Provisioner.Generation, v.Provisioner.Status.Conditions[0].ObservedGeneration = now, judged
	}
}

func ended(state steppod.PodState, result tarnv1.PodResult) func(*View) {
	return func(v *View) {
		v.Observed = steppod.Observation{State: state, Result: &result}
		if state == steppod.PodFailed {
			v.Observed.Reason, v.Observed.Message = steppod.ReasonPodFailed, "shelf full"
		}
		v.Pods = []corev1.Pod{*podNamed("old")}
	}
}

func capacity(text string) tarnv1.PodResult { return tarnv1.PodResult{Capacity: &text} }

func unfit(reason string) func(*View) {
	return func(v *View) { v.Unfit = &steppod.StepError{Reason: reason, Message: "no way"} }
}

func onNodes(v *View) {
	v.Provisioner.Spec.VolumeExpansion = testkit.Section(`{"nodePodTemplate": {"spec": {}}}`)
}

func onNodesOnly(v *View) { onNodes(v); v.Prepared = &steppod.Prepared{} }

// behind gives the volume a claim below it that asks for a size, wants another, and may have failed.
func behind(asked, want int64, failed string) func(*View) {
	return func(v *View) {
		claim := testkit.Claim("tarn-volumes", "below", "u2", "disk")
		claim.Spec.Resources.Requests = bytes(asked)
		if failed != "" {
			say(claim, corev1.PersistentVolumeClaimControllerResizeError, "", failed, noon)
		}
		v.Behind = append(v.Behind, backing{claim, want})
	}
}

func claimGone(v *View) { v.Claim = nil }

// unmade makes the provisioner one that was removed without its finalizers.
func unmade(v *View) { v.Provisioner = nil }

// told describes a plan: one word for each action, in order.
func told(p Plan) string {
	var words []string
	for _, a := range p.Actions {
		switch a := a.(type) {
		case action.UpdateStatus:
			status := a.To.(*tarnv1.PavVolume).Status
			word := fmt.Sprintf("journal(%d/%d #%d", status.Expansion.TargetCapacity/gi, status.Capacity/gi, status.Expansion.Attempts)
			if status.Expansion.NextAttemptTime != nil {
				word += fmt.Sprintf(" %dx", status.Expansion.Failures)
			}
			words = append(words, word+")")
		case action.PatchStatus:
			claim := a.To.(*corev1.PersistentVolumeClaim)
			var conditions []string
			for _, c := range claim.Status.Conditions {
				conditions = append(conditions, string(c.Type))
			}
			words = append(words, strings.TrimSpace(fmt.Sprintf("claim(%d/%d %s) %s", capacityOf(claim)/gi, allocatedOf(claim)/gi, statusOf(claim), strings.Join(conditions, "+"))))
		case action.Patch:
			words = append(words, fmt.Sprintf("grow(%d)", quantityOf(a.To.(*corev1.PersistentVolume).Spec.Capacity)/gi))
		case action.StartPod:
			words = append(words, "start")
		case growBacking:
			words = append(words, fmt.Sprintf("below(%d)", a.want/gi))
		case action.DiscardPods:
			words = append(words, "discard")
		case action.Emit:
			words = append(words, a.Reason)
		}
	}
	return strings.Join(words, ", ")
}

// follow gives the view what a plan writes.
func follow(v *View, p Plan) {
	for _, a := range p.Actions {
		switch a := a.(type) {
		case action.UpdateStatus:
			v.Record = a.To.(*tarnv1.PavVolume)
		case action.PatchStatus:
			v.Claim = a.To.(*corev1.PersistentVolumeClaim)
		}
	}
}

func TestAVolumeGrowsBy(t *testing.T) {
	const (
		beginning = "journal(2/1 #1), claim(1/2 ControllerResizeInProgress) Resizing, Resizing, start, discard"
		failing   = "claim(1/2 ControllerResizeInProgress) Resizing+ControllerResizeError, VolumeResizeFailed"
		refusing  = "claim(1/2 ControllerResizeInfeasible) Resizing+ControllerResizeError, VolumeResizeFailed"
	)
	for _, c := range []struct {
		name string
		view *View
		want string
	}{
		{"nothing is done for a claim that has what it asks for", viewOf(asks(gi)), ""},
		{"the intent is written before the pod is made", viewOf(), beginning},
		{"a claim that is not bound yet is left alone", viewOf(func(v *View) { v.Claim.Status.Phase = corev1.ClaimPending }), ""},
		{"a claim that is being deleted gets nothing more", viewOf(func(v *View) { v.Claim.DeletionTimestamp = &metav1.Time{Time: noon} }), ""},
		{"a volume that is not handed over is pavvolume's", viewOf(func(v *View) { v.Record.Status.Conditions = nil }), ""},
		{"a volume that is being destroyed is pavvolume's", viewOf(func(v *View) { v.Record.Status.Phase = tarnv1.VolumeDeleting }), ""},
		{"a section without a pod is done at once", viewOf(func(v *View) { v.Prepared = &steppod.Prepared{} }),
			"grow(2), journal(0/2 #0), claim(2/2 ), VolumeResizeSuccessful, discard"},
		{"a section that concerns nodes alone leaves it to them", viewOf(onNodesOnly),
			"grow(2), journal(0/2 #0), claim(1/2 NodeResizePending) FileSystemResizePending, FileSystemResizeRequired, discard"},

		{"a pod that vanished is started again, the intent first", viewOf(journal(2*gi, 0), claimIs(controllerRuns, 2*gi)),
			"journal(2/1 #3), claim(1/2 ControllerResizeInProgress) Resizing, start, discard"},
		{"a pod that runs is waited for", viewOf(journal(2*gi, 0), ended(steppod.PodRunning, tarnv1.PodResult{})), ""},
		{"a pod that succeeded has made the size it was to make", viewOf(journal(2*gi, 0), ended(steppod.PodSucceeded, tarnv1.PodResult{})),
			"grow(2), journal(0/2 #3), claim(2/2 ), VolumeResizeSuccessful, discard"},
		{"a pod may make more than it was to", viewOf(journal(2*gi, 0), ended(steppod.PodSucceeded, capacity("3Gi"))),
			"grow(3), journal(0/3 #3), claim(3/3 ), VolumeResizeSuccessful, discard"},
		{"a pod must not make less", viewOf(journal(2*gi, 0), ended(steppod.PodSucceeded, capacity("1Gi"))), "journal(2/1 #3 2x), " + failing},
		{"nodes follow the controller", viewOf(onNodes, journal(2*gi, 0), ended(steppod.PodSucceeded, tarnv1.PodResult{})),
			"grow(2), journal(0/2 #3), claim(1/2 NodeResizePending) FileSystemResizePending, FileSystemResizeRequired, discard"},
		{"what a pod has made stands though its provisioner was removed by force", viewOf(unmade, journal(2*gi, 0), ended(steppod.PodSucceeded, tarnv1.PodResult{})),
			"grow(2), journal(0/2 #3), claim(2/2 ), VolumeResizeSuccessful, discard"},
		{"so does what a pod of it has failed at", viewOf(unmade, journal(2*gi, 0), ended(steppod.PodFailed, tarnv1.PodResult{})), "journal(2/1 #3 2x), " + failing},
		{"a pod that vanished after its provisioner is not started again", viewOf(unmade, unfit(reasonNotExpandable), journal(2*gi, 0)),
			"journal(2/1 #3 2x), " + refusing},
		{"a volume written before a crash is not written again", viewOf(journal(2*gi, 0), has(2*gi), ended(steppod.PodSucceeded, tarnv1.PodResult{})),
			"journal(0/2 #3), claim(2/2 ), VolumeResizeSuccessful, discard"},
		{"a record not written before a crash is written", viewOf(has(2*gi), func(v *View) { v.Record.Status.Capacity = gi }),
			"journal(0/2 #0), claim(2/2 ), VolumeResizeSuccessful"},
		{"a claim not written before a crash is written", viewOf(has(2*gi), claimIs(controllerRuns, 2*gi)), "claim(2/2 ), VolumeResizeSuccessful"},
		{"a volume the cache does not show yet is not grown twice", viewOf(has(2*gi), func(v *View) { v.Volume.Spec.Capacity = bytes(gi) }, claimIs(controllerRuns, 2*gi)),
			"claim(2/2 ), VolumeResizeSuccessful"},
		{"the growth of a volume whose claim is gone is recorded all the same", viewOf(claimGone, journal(2*gi, 0), ended(steppod.PodSucceeded, tarnv1.PodResult{})),
			"grow(2), journal(0/2 #3), discard"},
		{"a pod that vanished after its claim is not started again", viewOf(claimGone, journal(2*gi, 0)), "journal(0/1 #3)"},

		{"a pod that failed is kept, and followed by another later", viewOf(journal(2*gi, 0), ended(steppod.PodFailed, tarnv1.PodResult{})), "journal(2/1 #3 2x), " + failing},
		{"nothing is done until then", viewOf(journal(2*gi, time.Minute), claimIs(controllerRuns, 2*gi)), ""},
		{"then it is begun again", viewOf(journal(2*gi, -time.Minute), claimIs(controllerRuns, 2*gi)),
			"journal(2/1 #4), claim(1/2 ControllerResizeInProgress) Resizing, start, discard"},
		{"a claim that asks for less is served at once", viewOf(journal(3*gi, time.Minute), claimIs(controllerRuns, 3*gi)),
			"journal(2/1 #4), claim(1/2 ControllerResizeInProgress) Resizing, Resizing, start, discard"},
		{"so is one that asked for what is infeasible", viewOf(journal(3*gi, time.Minute), claimIs(controllerNo, 3*gi)),
			"journal(2/1 #4), claim(1/2 ControllerResizeInProgress) Resizing, Resizing, start, discard"},
		{"a claim that wants no more ends the retries", viewOf(journal(3*gi, time.Minute), claimIs(controllerNo, 3*gi), has(2*gi)),
			"journal(0/2 #3), discard, claim(2/2 ), VolumeResizeSuccessful"},
		{"the retries end with the claim", viewOf(claimGone, journal(2*gi, time.Minute)), "journal(0/1 #3), discard"},

		{"what can never be is infeasible", viewOf(unfit(steppod.ReasonInvalid)), "journal(2/1 #1 1x), " + refusing},
		{"a pod the API server refused is infeasible", viewOf(journal(2*gi, 0), unfit(steppod.ReasonPodRefused)), "journal(2/1 #3 2x), " + refusing},
		{"a provisioner that is not right yet is not", viewOf(unfit(reasonNotReady)), "journal(2/1 #1 1x), " + failing},
		{"a provisioner that was put right is used at once", viewOf(journal(2*gi, time.Minute), func(v *View) {
			v.Record.Status.Expansion.LastError.Reason = reasonNotExpandable
		}), "journal(2/1 #4), claim(1/2 ControllerResizeInProgress) Resizing, start, discard"},
		{"a provisioner that was changed since it failed is tried at once", viewOf(journal(2*gi, time.Minute), failedAt(1), generation(2, 2)),
			"journal(2/1 #4), claim(1/2 ControllerResizeInProgress) Resizing, start, discard"},
		{"one that was not waits", viewOf(journal(2*gi, time.Minute), failedAt(2), generation(2, 2)), ""},
		{"one whose change is not judged yet waits", viewOf(journal(2*gi, time.Minute), failedAt(1), generation(2, 1)), ""},
		{"and one whose change is not accepted", viewOf(journal(2*gi, time.Minute), failedAt(1), generation(2, 2), func(v *View) {
			v.Provisioner.Status.Conditions[0].Status = metav1.ConditionFalse
		}), ""},
		{"a volume that Tarn has not made is refused", viewOf(func(v *View) { v.Record = nil }),
			"claim(1/0 ControllerResizeInfeasible) ControllerResizeError, VolumeResizeFailed"},
		{"until somebody has grown it by hand", viewOf(has(2*gi), claimIs(controllerNo, 0), func(v *View) { v.Record = nil }), "claim(2/2 ), VolumeResizeSuccessful"},
		{"upon which the nodes follow", viewOf(has(2*gi), claimIs(controllerNo, 0), onNodes, func(v *View) { v.Record = nil }), "claim(1/2 NodeResizePending) FileSystemResizePending, FileSystemResizeRequired"},

		{"a node that is due is left to the kubelet", viewOf(onNodes, has(2*gi), claimIs(nodePending, 2*gi)), ""},
		{"a claim may ask for more before a node has begun", viewOf(onNodes, has(2*gi), asks(3*gi), claimIs(nodePending, 2*gi)),
			"journal(3/2 #1), claim(1/3 ControllerResizeInProgress) Resizing, Resizing, start, discard"},
		{"but not while it is at work", viewOf(onNodes, has(2*gi), asks(3*gi), claimIs(nodeRuns, 2*gi)), ""},
		{"a node that failed for good waits for the user", viewOf(onNodes, has(2*gi), claimIs(nodeNo, 2*gi)), ""},
		{"who then may ask for less", viewOf(onNodes, has(3*gi), claimIs(nodeNo, 3*gi)),
			"claim(1/2 NodeResizePending) FileSystemResizePending, FileSystemResizeRequired"},
		{"a node that has nothing to do any more is not waited for", viewOf(has(2*gi), claimIs(nodePending, 2*gi)), "claim(2/2 ), VolumeResizeSuccessful"},
		{"a claim that recovered with less may ask for what the volume has", viewOf(onNodes, has(3*gi)),
			"claim(1/2 NodeResizePending) FileSystemResizePending, FileSystemResizeRequired"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := told(plan(c.view, noon)); got != c.want {
				t.Errorf("plan:\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestAClaimBelowAVolumeGrowsFirst(t *testing.T) {
	const beginning = "journal(2/1 #1), claim(1/2 ControllerResizeInProgress) Resizing, Resizing, discard"
	for _, c := range []struct {
		name string
		view *View
		want string
		next time.Duration
	}{
		{"its request follows the intent", viewOf(behind(gi, 2*gi, "")), beginning + ", below(2)", backingLook},
		{"one that is not lowered while it may still grow", viewOf(behind(4*gi, 2*gi, "")), beginning, backingLook},
		{"one that failed is lowered", viewOf(behind(4*gi, 2*gi, "no room")), beginning + ", below(2)", backingLook},
		{"it is waited for, and checked again without an event", viewOf(journal(2*gi, 0), claimIs(controllerRuns, 2*gi), behind(2*gi, 2*gi, "")), "", backingLook},
		{"a request that was lost in a crash is repeated", viewOf(journal(2*gi, 0), claimIs(controllerRuns, 2*gi), behind(gi, 2*gi, "")), "below(2)", backingLook},
		{"a user who asks for less ends the attempt", viewOf(asks(gi), journal(2*gi, 0), claimIs(controllerRuns, 2*gi), behind(2*gi, 2*gi, "no room")), "journal(0/1 #3)", 0},
		{"so does one who asks for something in between", viewOf(journal(4*gi, 0), claimIs(controllerRuns, 4*gi), behind(4*gi, 4*gi, "no room")), "journal(0/1 #3)", 0},
		{"one who asks for more waits for the attempt", viewOf(asks(3*gi), journal(2*gi, 0), claimIs(controllerRuns, 2*gi), behind(2*gi, 2*gi, "")), "", backingLook},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := plan(c.view, noon)
			next := time.Duration(0)
			if !p.Next.IsZero() {
				next = p.Next.Sub(noon)
			}
			if got := told(p); got != c.want || next != c.next {
				t.Errorf("plan:\n got %s, then after %s\nwant %s, then after %s", got, next, c.want, c.next)
			}
		})
	}
}

func TestAFailedExpansionNotesTheProvisionerItFailedWith(t *testing.T) {
	v := viewOf(journal(2*gi, 0), ended(steppod.PodFailed, tarnv1.PodResult{}), generation(7, 7))
	follow(v, plan(v, noon))
	if got := v.Record.Status.Expansion.LastError.ProvisionerGeneration; got != 7 {
		t.Errorf("provisionerGeneration %d, want 7", got)
	}
}

func TestARefusalIsToldOnce(t *testing.T) {
	v := viewOf(func(v *View) { v.Record = nil })
	follow(v, plan(v, noon))
	if got := told(plan(v, noon.Add(time.Hour))); got != "" {
		t.Errorf("it is told again: %s", got)
	}
}

func TestOnlyARightProvisionerExpands(t *testing.T) {
	going := metav1.NewTime(noon)
	for _, c := range []struct {
		name   string
		change func(*View)
		want   string
	}{
		{"accepted, with the section", func(*View) {}, ""},
		{"gone", func(v *View) { v.Provisioner = nil }, reasonNotExpandable},
		{"another one of the name", func(v *View) { v.Provisioner.UID = "other" }, reasonNotExpandable},
		{"without the section", func(v *View) { v.Provisioner.Spec.VolumeExpansion = nil }, reasonNotExpandable},
		{"being deleted", func(v *View) { v.Provisioner.DeletionTimestamp = &going }, reasonNotReady},
		{"not accepted", func(v *View) { v.Provisioner.Status = pavv1.PavProvisionerStatus{} }, reasonNotReady},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			if err := obstacle(viewOf(c.change)); err != nil {
				got = err.Reason
			}
			if got != c.want {
				t.Errorf("obstacle %q, want %q", got, c.want)
			}
		})
	}
}

func TestOnlyTheNewPodIsKept(t *testing.T) {
	v := viewOf(func(v *View) { v.Pods = []corev1.Pod{*podNamed("old"), *podNamed("new")} })
	actions := plan(v, noon).Actions
	if got := actions[len(actions)-1].(action.DiscardPods).Pods; len(got) != 1 || got[0].Name != "old" {
		t.Errorf("deleted %+v, want old alone", got)
	}
}

func TestAFailureKeepsItsWordsWhileTheNextAttemptRuns(t *testing.T) {
	v := viewOf(journal(2*gi, 0), ended(steppod.PodFailed, tarnv1.PodResult{}))
	follow(v, plan(v, noon))
	p := plan(v, noon.Add(time.Hour))
	if got, want := told(p), "journal(2/1 #4), start, discard"; got != want {
		t.Fatalf("plan: %s, want %s", got, want)
	}
	last := v.Claim.Status.Conditions[len(v.Claim.Status.Conditions)-1]
	if last.Type != corev1.PersistentVolumeClaimControllerResizeError || last.Message != "Expansion pod failed: shelf full" {
		t.Errorf("the claim says %s %q", last.Type, last.Message)
	}
}
