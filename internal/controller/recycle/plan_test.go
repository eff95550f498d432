package recycle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

const (
	testNamespace = "tarn-system"
	testImage     = "tarn.dev/tarn:test"
	certificate   = `{"method":"Files","sampleSHA256":"00","claim":"scrub-uid"}`
	// freedCertificate says that no claim has used the volume since.
	freedCertificate = `{"method":"Files","sampleSHA256":"00","claim":"scrub-uid","freed":"2026-11-20T12:00:00Z"}`
)

var (
	noon       = testkit.Noon
	justFailed = fmt.Sprintf(`{"claim":"scrub-uid","attempts":2,"time":%q,"message":"no"}`, noon.Format(time.RFC3339))
	longFailed = fmt.Sprintf(`{"claim":"scrub-uid","attempts":2,"time":%q,"message":"no"}`, noon.Add(-time.Hour).Format(time.RFC3339))
)

type viewWith func(*View)

// view is the View of a released volume with policy Retain that is to be recycled.
func view(changes ...viewWith) *View {
	v := &View{Namespace: testNamespace, Image: testImage, OwnBinder: true, Live: true, Volume: &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "vol", UID: "vol-uid", Annotations: map[string]string{tarnv1.AnnotationRecycle: "Files"}},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			Capacity:                      testkit.Storage("1Gi"),
			ClaimRef:                      &corev1.ObjectReference{Namespace: "default", Name: "data", UID: "old-uid"},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeReleased},
	}}
	for _, change := range changes {
		change(v)
	}
	return v
}

func class(v *View) {
	v.Class = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{tarnv1.AnnotationRecycle: "Zero"}}}
}

func classRetains(v *View) {
	v.Class = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{tarnv1.AnnotationRetention: "1h"}}}
}

func setRetains(v *View) {
	v.Sets = []tarnv1.PersistentVolumeSet{{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{tarnv1.AnnotationRetention: "1h"}}}}
}

func releasedFor(d time.Duration) viewWith {
	return func(v *View) { v.Volume.Status.LastPhaseTransitionTime = ptr.To(metav1.NewTime(noon.Add(-d))) }
}

func cached(v *View)  { v.Live = false }
func foreign(v *View) { v.OwnBinder = false }
func deleted(v *View) { v.Volume.DeletionTimestamp = ptr.To(metav1.NewTime(noon)) }
func block(v *View)   { v.Volume.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }
func free(v *View)    { v.Volume.Spec.ClaimRef = nil }
func hostPath(v *View) {
	v.Volume.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/a"}}
}

func in(phase corev1.PersistentVolumePhase) viewWith {
	return func(v *View) { v.Volume.Status.Phase = phase }
}

func having(key, value string) viewWith {
	return func(v *View) {
		if value == "" {
			delete(v.Volume.Annotations, key)
			return
		}
		v.Volume.Annotations[key] = value
	}
}

func policy(p corev1.PersistentVolumeReclaimPolicy) viewWith {
	return func(v *View) { v.Volume.Spec.PersistentVolumeReclaimPolicy = p }
}

func holder(uid types.UID) viewWith {
	return func(v *View) { v.Holder = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: uid}} }
}

func users(names ...string) viewWith { return func(v *View) { v.Users = names } }

// claim is the bound scrub claim.
func claim(uid types.UID) viewWith {
	return func(v *View) {
		v.Claim = scrubClaim(v)
		v.Claim.UID, v.Claim.Status.Phase = uid, corev1.ClaimBound
	}
}

// pointing makes the volume point at a bound scrub claim.
func pointing(v *View) {
	v.Volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: testNamespace, Name: volume.ScrubClaim(v.Volume), UID: "scrub-uid"}
	v.Volume.Status.Phase = corev1.VolumeBound
}

func pod(phase corev1.PodPhase, message string) viewWith {
	return func(v *View) {
		c := v.Claim
		if c == nil {
			v.Claim = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: "scrub-uid"}}
		}
		v.Pod = scrubPod(v, tarnv1.RecycleFiles)
		v.Claim = c
		ended(v, phase, message)
	}
}

// ended gives the pod a phase and the result of its container, if any.
func ended(v *View, phase corev1.PodPhase, message string) {
	v.Pod.CreationTimestamp = metav1.NewTime(noon)
	v.Pod.Status.Phase = phase
	if message != "" {
		state := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message, FinishedAt: metav1.NewTime(noon)}}
		v.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: container, State: state}}
	}
}

// failedByUs gives a volume the phase and reason of one that could not be recycled.
func failedByUs(v *View) {
	v.Volume.Status.Phase, v.Volume.Status.Reason, v.Volume.Status.Message = corev1.VolumeFailed, eventFailed, "no"
}

func pending(v *View)       { v.Claim.Status.Phase = corev1.ClaimPending }
func nudged(v *View)        { v.Claim.Annotations = map[string]string{annNudged: "vol"} }
func older(v *View)         { created(time.Hour)(v) }
func disowned(v *View)      { v.Pod.OwnerReferences = nil }
func left(v *View)          { v.Pod.Annotations[annClaim] = "an-older-uid" }
func boundByBinder(v *View) { v.Volume.Annotations[volume.AnnBoundByController] = volume.AnnYes }

// created and started set the times of a pod, before noon.
func created(ago time.Duration) viewWith {
	return func(v *View) { v.Pod.CreationTimestamp = metav1.NewTime(noon.Add(-ago)) }
}

func started(ago time.Duration) viewWith {
	return func(v *View) { v.Pod.Status.StartTime = ptr.To(metav1.NewTime(noon.Add(-ago))) }
}

func withoutImage(v *View) {
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}
	v.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: container, State: waiting}}
}
func unscheduled(v *View) {
	v.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes fit"}}
}
func ending(v *View) {
	v.Pod.DeletionTimestamp = ptr.To(metav1.NewTime(noon))
}

// words says what a plan does.
func words(v *View, p Plan) string {
	var said []string
	if p.Grave {
		said = append(said, "look")
	}
	for _, a := range p.Actions {
		switch a := a.(type) {
		case action.Create:
			said = append(said, map[bool]string{true: "order", false: "start"}[isClaim(a.Object)])
		case action.Delete:
			said = append(said, map[bool]string{true: "dismiss", false: "stop"}[isClaim(a.Object)])
		case action.Patch:
			said = append(said, changeWords(a))
		case action.PatchStatus:
			status := a.To.(*corev1.PersistentVolume).Status
			said = append(said, map[bool]string{true: "fail", false: "phase " + string(status.Phase)}[status.Reason != ""])
		case action.Emit:
			said = append(said, a.Reason)
		}
	}
	if p.Step != nil {
		said = append(said, strings.TrimSpace("run "+string(p.Step.Step)+" "+p.Step.Handle))
	}
	if p.Report != nil {
		said = append(said, "report")
	}
	if !p.Next.IsZero() {
		said = append(said, "wait")
	}
	return strings.Join(said, " ")
}

func isClaim(o client.Object) bool {
	_, is := o.(*corev1.PersistentVolumeClaim)
	return is
}

// changeWords says how a patch changes the volume or its scrub claim.
func changeWords(p action.Patch) string {
	to, ok := p.To.(*corev1.PersistentVolume)
	if !ok {
		return map[bool]string{true: "nudge", false: "remember"}[p.From.GetAnnotations()[annNudged] != p.To.GetAnnotations()[annNudged]]
	}
	from := p.From.(*corev1.PersistentVolume)
	switch {
	case to.Spec.ClaimRef == nil && from.Spec.ClaimRef != nil:
		return "free"
	case to.Spec.ClaimRef != nil && to.Spec.ClaimRef.UID == "":
		return "free for " + to.Spec.ClaimRef.Namespace + "/" + to.Spec.ClaimRef.Name
	case to.Annotations[tarnv1.AnnotationRecycleFor] != "" && from.Annotations[tarnv1.AnnotationRecycleFor] == "":
		return "give, reserved for " + to.Annotations[tarnv1.AnnotationRecycleFor]
	case to.Spec.ClaimRef != nil && to.Spec.ClaimRef.UID != from.Spec.ClaimRef.UID:
		return "give"
	case to.Spec.PersistentVolumeReclaimPolicy != from.Spec.PersistentVolumeReclaimPolicy:
		return "policy " + string(to.Spec.PersistentVolumeReclaimPolicy)
	case wasFreed(from) && !wasFreed(to):
		return "had"
	case to.Annotations[tarnv1.AnnotationRecycled] != from.Annotations[tarnv1.AnnotationRecycled]:
		return "certify"
	case to.Annotations[tarnv1.AnnotationRecycleFailure] != from.Annotations[tarnv1.AnnotationRecycleFailure]:
		return "note"
	}
	return "other"
}

// volumeOf is the volume as a plan first writes it; nil if it does not.
func volumeOf(p Plan) *corev1.PersistentVolume {
	for _, a := range p.Actions {
		if patch, ok := a.(action.Patch); ok && !isClaim(patch.To) {
			return patch.To.(*corev1.PersistentVolume)
		}
	}
	return nil
}

// writeRecord gives the record the condition that a plan reports.
func writeRecord(v *View, p Plan) {
	for _, a := range p.Report {
		v.Record = a.(action.UpdateStatus).To.(*tarnv1.PavVolume)
	}
}

func TestPlanOfAVolume(t *testing.T) {
	const recycle, remembered = corev1.PersistentVolumeReclaimRecycle, tarnv1.AnnotationRecyclePolicy
	for _, c := range []struct {
		name string
		view *View
		want string
	}{
		{"Retain and no method is left alone", view(having(tarnv1.AnnotationRecycle, "")), ""},
		{"its class asks for it", view(class, having(tarnv1.AnnotationRecycle, "")), "order"},
		{"its class asks for it, and policy Delete destroys it", view(class, having(tarnv1.AnnotationRecycle, ""), policy(corev1.PersistentVolumeReclaimDelete)), ""},
		{"the volume's word counts before its class'", view(class, having(tarnv1.AnnotationRecycle, "Shred")), "fail " + eventFailed},
		{"Delete is left to the provisioner", view(policy(corev1.PersistentVolumeReclaimDelete)), ""},
		{"one that is used is left alone", view(in(corev1.VolumeBound)), ""},
		{"one that nobody has had is left alone", view(free, in(corev1.VolumeAvailable)), ""},
		{"one that a pool fills is left alone", view(having(tarnv1.AnnotationPoolFilling, "a")), ""},
		{"what a cache says is looked at live", view(cached), "look"},
		{"case 136: deleted before", view(deleted), ""},
		{"case 136: made Available before", view(free, in(corev1.VolumeAvailable)), ""},
		{"the claim is there", view(holder("old-uid")), ""},
		{"case 137: a pod uses it", view(users("pod default/a")), eventFailed},
		{"case 137: a new claim of that name", view(holder("new-uid")), "order"},
		{"released", view(), "order"},
		{"its policy waits", view(policy(recycle)), "policy Retain"},
		{"and then it begins", view(having(remembered, "Recycle"), having(tarnv1.AnnotationRecycle, "")), "order"},
		{"hostPath of policy Recycle beside Kubernetes' recycler", view(policy(recycle), hostPath, foreign), eventLeft},
		{"hostPath of policy Recycle without it", view(policy(recycle), hostPath), "policy Retain"},
		{"CSI of policy Recycle beside Kubernetes' binder", view(policy(recycle), foreign, in(corev1.VolumeFailed)), "policy Retain"},
		{"case 135: no recycler", view(policy(recycle), having(tarnv1.AnnotationRecycle, ""), block), "fail " + eventFailed},
		{"an unknown method", view(having(tarnv1.AnnotationRecycle, "Shred")), "fail " + eventFailed},
		{"Recreate", view(having(tarnv1.AnnotationRecycle, "Recreate")), "fail " + eventFailed},
		{"files of a block volume", view(block), "fail " + eventFailed},
		{"of a class that gives each claim a Secret", view(func(v *View) {
			v.Volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{VolumeAttributes: map[string]string{
				steppod.SecretNameParameter: "key", steppod.SecretNamespaceParameter: "${pvc.namespace}",
			}}
		}), "fail " + eventFailed},
		{"zeros for a block volume", view(block, having(tarnv1.AnnotationRecycle, "Zero")), "order"},
		{"protected from deletion", view(func(v *View) { v.Volume.Labels = map[string]string{tarnv1.LabelDeletionProtection: "true"} }), eventFailed},
		{"in the trash", view(having(tarnv1.AnnotationTrashedUntil, noon.Add(time.Hour).Format(time.RFC3339))), "wait"},
		{"about to be in the trash", view(having(tarnv1.AnnotationRetention, "1h")), "VolumeRetained wait"},
		{"kept by the retention of its class, and nobody runs the trash", view(classRetains), "VolumeRetained wait"},
		{"kept by the retention of its set, and nobody runs the trash", view(setRetains), "VolumeRetained wait"},
		{"its retention is over, and nobody runs the trash", view(classRetains, releasedFor(time.Hour)), "order"},
		{"out of the trash", view(having(tarnv1.AnnotationRetention, "1h"), having(tarnv1.AnnotationTrashedUntil, noon.Format(time.RFC3339))), "order"},
		{"the claim is made", view(claim("scrub-uid")), "give"},
		{"case 134: of a volume that a binder has bound", view(claim("scrub-uid"), having(remembered, "Recycle"), boundByBinder), "give"},
		{"case 134: of a volume that its provisioner made for a claim", view(claim("scrub-uid"), having(remembered, "Recycle"), having(volume.AnnProvisionedBy, "d")), "give"},
		{"case 134: of a volume that was reserved by hand", view(claim("scrub-uid"), having(remembered, "Recycle")), "give, reserved for default/data"},
		{"case 138: a leftover pod goes first", view(pod(corev1.PodSucceeded, "")), "stop"},

		{"Kubernetes' binder is to look at the claim", view(pointing, claim("scrub-uid"), foreign, pending), "nudge"},
		{"and has been told so", view(pointing, claim("scrub-uid"), foreign, pending, nudged), ""},
		{"Tarn's looks by itself", view(pointing, claim("scrub-uid"), pending), ""},
		{"not bound yet", view(pointing, claim("scrub-uid"), in(corev1.VolumeReleased)), ""},
		{"bound", view(pointing, claim("scrub-uid")), "start"},
		{"case 138: the pod of an older claim", view(pointing, claim("scrub-uid"), pod(corev1.PodSucceeded, certificate), left), "stop"},
		{"the pod runs", view(pointing, claim("scrub-uid"), pod(corev1.PodRunning, "")), "wait"},
		{"case 138: the pod waits for something", view(pointing, claim("scrub-uid"), pod(corev1.PodPending, ""), withoutImage), eventPod + " remember wait"},
		{"case 138: the pod finds no node", view(pointing, claim("scrub-uid"), pod(corev1.PodPending, ""), unscheduled), eventPod + " remember wait"},
		{"a pod without a node has longer", view(pointing, claim("scrub-uid"), pod(corev1.PodPending, ""), unscheduled, created(14*time.Minute)), eventPod + " remember wait"},
		{"but not for ever", view(pointing, claim("scrub-uid"), pod(corev1.PodPending, ""), unscheduled, created(16*time.Minute)), "note"},
		{"the deadline counts from the start", view(pointing, claim("scrub-uid"), pod(corev1.PodRunning, ""), older, started(5*time.Minute)), "wait"},
		{"the kubelet does not end it in time", view(pointing, claim("scrub-uid"), pod(corev1.PodRunning, ""), older, started(6*time.Minute)), "note"},
		{"a pod of the name is somebody else's", view(pointing, claim("scrub-uid"), pod(corev1.PodRunning, ""), disowned), eventPod},
		{"the pod has run too long", view(pointing, claim("scrub-uid"), pod(corev1.PodPending, ""), older), "note"},
		{"case 134: the pod succeeded", view(pointing, claim("scrub-uid"), pod(corev1.PodSucceeded, certificate)), "certify"},
		{"the pod succeeded without a certificate", view(pointing, claim("scrub-uid"), pod(corev1.PodSucceeded, "done")), "note"},
		{"case 135: the pod failed", view(pointing, claim("scrub-uid"), pod(corev1.PodFailed, "tarn: no")), "note"},
		{"the method was taken back", view(pointing, claim("scrub-uid"), having(tarnv1.AnnotationRecycle, "")), "note"},

		{"failed: first the pod goes", view(pointing, claim("scrub-uid"), pod(corev1.PodFailed, "no"), having(tarnv1.AnnotationRecycleFailure, justFailed)), "stop"},
		{"failed: the pod is going", view(pointing, claim("scrub-uid"), pod(corev1.PodFailed, "no"), ending, having(tarnv1.AnnotationRecycleFailure, justFailed)), ""},
		{"failed: then the claim", view(pointing, claim("scrub-uid"), having(tarnv1.AnnotationRecycleFailure, justFailed)), "dismiss"},
		{"failed: then it is told", view(pointing, in(corev1.VolumeReleased), having(tarnv1.AnnotationRecycleFailure, justFailed)), "fail " + eventFailed},
		{"failed: then it waits", view(pointing, in(corev1.VolumeFailed), having(tarnv1.AnnotationRecycleFailure, justFailed)), "wait"},
		{"case 135: then it begins anew", view(pointing, in(corev1.VolumeFailed), having(tarnv1.AnnotationRecycleFailure, longFailed)), "order"},
		{"and is given to the new claim", view(pointing, in(corev1.VolumeFailed), claim("next-uid"), having(tarnv1.AnnotationRecycleFailure, longFailed)), "give"},

		{"refused, then left to its driver", view(failedByUs, policy(corev1.PersistentVolumeReclaimDelete)), "phase Released"},
		{"refused, then asked for no more", view(failedByUs, having(tarnv1.AnnotationRecycle, "")), "phase Released"},
		{"refused, and no other method was named", view(failedByUs, having(tarnv1.AnnotationRecycle, "Shred")), "fail " + eventFailed},
		{"failed by its driver, which goes on with it", view(in(corev1.VolumeFailed), policy(corev1.PersistentVolumeReclaimDelete)), ""},
		{"failed, then left to its driver", view(pointing, failedByUs, policy(corev1.PersistentVolumeReclaimDelete), having(tarnv1.AnnotationRecycleFailure, justFailed)), "phase Released"},
		{"failed, and its driver has it", view(pointing, in(corev1.VolumeReleased), policy(corev1.PersistentVolumeReclaimDelete), having(tarnv1.AnnotationRecycleFailure, justFailed)), ""},
		{"failed once, and to be had by now", view(failedByUs, free, in(corev1.VolumeAvailable)), "phase Available"},
		{"failed once, and somebody's by now", view(failedByUs, in(corev1.VolumeBound)), "phase Bound"},

		{"verified: first the pod goes", view(pointing, claim("scrub-uid"), pod(corev1.PodSucceeded, certificate), having(tarnv1.AnnotationRecycled, certificate)), "stop"},
		{"verified: then the claim", view(pointing, claim("scrub-uid"), having(tarnv1.AnnotationRecycled, certificate)), "dismiss"},
		{"verified: Kubernetes' recycler was begun meanwhile", view(pointing, having(tarnv1.AnnotationRecycled, certificate), func(v *View) { v.Recyclers = []string{"pod a/recycler-for-vol"} }), eventFailed},
		{"verified: what a cache says is looked at live", view(pointing, cached, having(tarnv1.AnnotationRecycled, certificate)), "look"},
		{"case 134: then it is reserved again", view(pointing, having(tarnv1.AnnotationRecycled, certificate), having(tarnv1.AnnotationRecycleFor, "default/data")), "free for default/data " + eventRecycled},
		{"case 134: then it is nobody's", view(pointing, having(tarnv1.AnnotationRecycled, certificate)), "free " + eventRecycled},
		{"released by somebody who has had it since: that is noted first", view(having(tarnv1.AnnotationRecycled, freedCertificate)), "had"},
		{"the same, where nobody asks any more to have it recycled", view(having(tarnv1.AnnotationRecycle, ""), having(tarnv1.AnnotationRecycled, freedCertificate)), "had"},
		{"the same, which is kept in the trash", view(setRetains, having(tarnv1.AnnotationRecycled, freedCertificate)), "had"},
		{"somebody has it: that is noted before anything can hide it", view(in(corev1.VolumeBound), having(tarnv1.AnnotationRecycled, freedCertificate)), "had"},
		{"a certificate of another time is none", view(having(tarnv1.AnnotationRecycled, certificate)), "order"},
		{"its policy comes back", view(free, in(corev1.VolumeAvailable), having(remembered, "Recycle")), "policy Recycle"},
		{"though it was drawn at once", view(in(corev1.VolumeBound), having(remembered, "Recycle")), "policy Recycle"},
		{"not before it can be had", view(free, having(remembered, "Recycle")), ""},

		{"the scrub claim was deleted", view(pointing, in(corev1.VolumeReleased)), "order"},
		{"deleted half-way: first the pod", view(pointing, claim("scrub-uid"), pod(corev1.PodRunning, ""), deleted), "stop"},
		{"deleted half-way: then the claim", view(pointing, claim("scrub-uid"), deleted), "dismiss"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := words(c.view, plan(c.view, noon)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestAFailedScrubSaysWhyAndIsToldOnce(t *testing.T) {
	v := view(pointing, claim("scrub-uid"), pod(corev1.PodFailed, "tarn: /volume/x: something is mounted there"), having(tarnv1.AnnotationRecycleFailure, longFailed))
	v.Volume.Annotations[tarnv1.AnnotationRecycleFailure] = strings.Replace(longFailed, "scrub-uid", "older-uid", 1)
	f := failureOf(volumeOf(plan(v, noon)))
	if f.Attempts != 3 || f.Claim != "scrub-uid" || f.Message != "/volume/x: something is mounted there" || !f.Time.Time.Equal(noon) {
		t.Errorf("noted %+v", f)
	}
	v = view(having(tarnv1.AnnotationRecycle, "Shred"))
	v.Volume.Status = plan(v, noon).Actions[0].(action.PatchStatus).To.(*corev1.PersistentVolume).Status
	if v.Volume.Status.Phase != corev1.VolumeFailed || v.Volume.Status.Reason != eventFailed {
		t.Errorf("of an unknown method: %+v", v.Volume.Status)
	}
	if p := plan(v, noon); len(p.Actions) != 0 {
		t.Errorf("it is told again: %s", words(v, p))
	}
}

func TestTheCertificateSaysFromWhenOnAVolumeIsNobodys(t *testing.T) {
	v := view(pointing, having(tarnv1.AnnotationRecycled, freedCertificate))
	again := certified(v.Volume, *volume.CertificateOf(v.Volume))
	if wasFreed(again) {
		t.Errorf("certified anew, while it points at its scrub claim: %s", again.Annotations[tarnv1.AnnotationRecycled])
	}
	later := noon.Add(time.Hour + time.Millisecond)
	if cert := volume.CertificateOf(freed(again, later)); cert == nil || cert.Freed == nil || !cert.Freed.Time.Equal(noon.Add(time.Hour)) || cert.Claim != "scrub-uid" {
		t.Errorf("freed, its certificate is %+v", cert)
	}
	if bare := freed(view(pointing).Volume, later); bare.Annotations[tarnv1.AnnotationRecycled] != "" {
		t.Errorf("one without a certificate has got one: %v", bare.Annotations)
	}
}
