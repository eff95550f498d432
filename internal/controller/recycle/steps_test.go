package recycle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

const (
	zeroSection = `{"methods": ["Zero"], "podTemplate": {"spec": {"containers": [{"name": "c", "image": "scrubber"}]}}}`
	done        = `{"succeeded": true}`
	refused     = `{"succeeded": false, "error": "the array is busy"}`
)

// provided makes a PavProvisioner the maker of the volume, with handle h and 1Gi. The
// provisioner recycles by Zero and Recreate itself.
func provided(v *View) {
	claim := testkit.Claim("default", "data", "old-uid", "prov")
	v.Record = testkit.Record(claim, "prov", tarnv1.VolumeCreated)
	v.Record.Name, v.Record.Status.Handle, v.Record.Status.Capacity = v.Volume.Name, "h", 1<<30
	v.Provisioner = testkit.Provisioner("prov", func(p *pavv1.PavProvisioner) { p.Spec.VolumeRecycling = testkit.Section(zeroSection) })
	v.Volume.Annotations[tarnv1.AnnotationRecord] = string(v.Record.UID)
}

func orphan(v *View) { v.Provisioner = nil }

func method(m tarnv1.RecycleMethod) viewWith { return having(tarnv1.AnnotationRecycle, string(m)) }

// worked is a pod of the provisioner that has ended with a result, or runs if the result is
// empty.
func worked(step tarnv1.Step, other bool, result string) viewWith {
	return func(v *View) {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: steppod.RecyclePodName(step, "scrub-uid", other), CreationTimestamp: metav1.NewTime(noon.Add(-2 * time.Second)),
			Labels: map[string]string{tarnv1.LabelStep: string(step)}, Annotations: map[string]string{annClaim: "scrub-uid", annMethod: "Zero"},
			OwnerReferences: []metav1.OwnerReference{{UID: v.Record.UID}},
		}}
		pod.Spec.Containers = []corev1.Container{{Image: "scrubber"}}
		pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](600)
		if result != "" {
			pod.Annotations[tarnv1.AnnotationResult] = result
			pod.Status.Phase = phaseOf(result)
		}
		v.Work = append(v.Work, pod)
	}
}

// phaseOf is the phase that the kubelet reports for a pod with that result.
func phaseOf(result string) corev1.PodPhase {
	if strings.Contains(result, `"succeeded": true`) {
		return corev1.PodSucceeded
	}
	return corev1.PodFailed
}

// readBack is the result of a pod that has verified a file system.
const readBack = `{"method": "Zero", "sampleSHA256": "ab", "seconds": 0.5}`

// checking is the scrub pod that verifies what the provisioner has done by a method.
func checking(m tarnv1.RecycleMethod, phase corev1.PodPhase, message string) viewWith {
	return func(v *View) {
		v.Pod = checkPod(v, tarnv1.RecycleCertificate{Method: m, Provisioner: "prov", Image: "scrubber", Seconds: 2})
		ended(v, phase, message)
	}
}

// earlier adds an ended pod of an earlier passage, still one that has not ended, and larger one
// that expands the volume.
func earlier(v *View) { still(v); v.Earlier[0].Status.Phase = corev1.PodFailed }
func still(v *View)   { v.Earlier = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "earlier"}}} }
func larger(v *View)  { v.Others = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "larger"}}} }
func goes(v *View)    { v.Others[0].DeletionTimestamp = ptr.To(metav1.NewTime(noon)) }

// reported gives the record the condition that follows from the volume's failure or
// certificate.
func reported(v *View) {
	p := &Plan{}
	report(v, p)
	writeRecord(v, *p)
}

func TestPlanOfAVolumeThatItsProvisionerRecycles(t *testing.T) {
	const zero, recreate, discard = tarnv1.RecycleZero, tarnv1.RecycleRecreate, tarnv1.RecycleDiscard
	const recycling, deletion, creation = tarnv1.StepRecycling, tarnv1.StepDeletion, tarnv1.StepCreation
	bound := func(m tarnv1.RecycleMethod, more ...viewWith) *View {
		return view(append([]viewWith{provided, method(m), pointing, claim("scrub-uid")}, more...)...)
	}
	created := func(handle string) string {
		return fmt.Sprintf(`{"succeeded": true, "handle": %q, "capacity": "1Gi"}`, handle)
	}
	for _, c := range []struct {
		name string
		view *View
		want string
	}{
		{"Recreate of a volume that nobody's record tells of", view(method(recreate)), "fail " + eventFailed},
		{"Recreate by a provisioner that is gone", view(provided, method(recreate), orphan), "fail " + eventFailed},
		{"Recreate of a volume over claims, which keep the data", view(provided, method(recreate), func(v *View) { v.Record.Status.Claims = []tarnv1.MadeClaim{{Namespace: "ns", Name: "c"}} }), "fail " + eventFailed},
		{"Recreate by a provisioner that deletes nothing", view(provided, method(recreate), func(v *View) { v.Provisioner.Spec.VolumeDeletion = nil }), "fail " + eventFailed},
		{"Recreate", view(provided, method(recreate)), "order"},
		{"Recreate of a block volume", view(provided, method(recreate), block), "order"},
		{"files of a block volume by its provisioner", view(provided, block, func(v *View) {
			v.Provisioner.Spec.VolumeRecycling = testkit.Section(strings.Replace(zeroSection, "Zero", "Files", 1))
		}), "order"},

		{"a method of its own", bound(zero), "run recycling"},
		{"what a cache says is looked at live", bound(zero, cached), "look"},
		{"while a node has it", bound(zero, users("stage s")), eventFailed + " wait"},
		{"what earlier attempts left goes", bound(zero, earlier), "stop run recycling"},
		{"what an earlier attempt still does ends first", bound(zero, still), "stop"},
		{"and before it is given away", view(provided, method(zero), still), "stop"},
		{"though Tarn does it", view(provided, method(discard), larger), "stop"},
		{"what makes it larger ends first", view(provided, method(recreate), larger), "stop"},
		{"however long that takes", view(provided, method(recreate), larger, goes), eventPod},
		{"the scrub claim was deleted while its pod ran", view(provided, method(zero), pointing, in(corev1.VolumeReleased), worked(recycling, false, "")), "stop"},
		{"a method that Tarn does", bound(discard), "start"},
		{"by a provisioner that is gone Tarn does it", bound(zero, orphan), "start"},
		{"its pod runs", bound(zero, worked(recycling, false, "")), "wait"},
		{"its pod has done it, which is to be read back", bound(zero, worked(recycling, false, done)), "start"},
		{"its pod has done what was asked for before", bound(discard, worked(recycling, false, done)), "start"},
		{"its pod has done it, and the provisioner is gone", bound(zero, worked(recycling, false, done), orphan), "start"},
		{"what it did is being read", bound(zero, worked(recycling, false, done), checking(zero, corev1.PodRunning, "")), "wait"},
		{"what it did is so", bound(zero, worked(recycling, false, done), checking(zero, corev1.PodSucceeded, readBack)), "certify"},
		{"what it did is so, though its pod was removed", bound(zero, checking(zero, corev1.PodSucceeded, readBack)), "certify"},
		{"what it did is not so", bound(zero, worked(recycling, false, done), checking(zero, corev1.PodFailed, "tarn: the volume is not empty")), "note"},
		{"who should have read it has left no sample", bound(zero, worked(recycling, false, done), checking(zero, corev1.PodSucceeded, `{"method": "Zero"}`)), "note"},
		{"whose word was read cannot be told", bound(zero, worked(recycling, false, done), checking(zero, corev1.PodSucceeded, readBack), func(v *View) { v.Pod.Annotations[annWord] = "{" }), "note"},
		{"what was to read it is of an older claim", bound(zero, worked(recycling, false, done), checking(zero, corev1.PodSucceeded, readBack), left), "stop"},
		{"its pod failed", bound(zero, worked(recycling, false, refused)), "note"},
		{"the scrub claim was taken away", bound(zero, worked(recycling, false, ""), func(v *View) { v.Claim.DeletionTimestamp = ptr.To(metav1.NewTime(noon)) }), "stop"},

		{"Recreate deletes", bound(recreate), "run deletion"},
		{"Recreate waits", bound(recreate, worked(deletion, false, "")), "wait"},
		{"Recreate could not delete", bound(recreate, worked(deletion, false, refused)), "note"},
		{"Recreate makes anew", bound(recreate, worked(deletion, false, done)), "run creation"},
		{"and goes on though the annotation is gone", bound("", worked(deletion, false, done)), "run creation"},
		{"Recreate could not make anew", bound(recreate, worked(deletion, false, done), worked(creation, false, refused)), "note"},
		{"Recreate is done, which is to be read back", bound(recreate, worked(deletion, false, done), worked(creation, false, created("h"))), "start"},
		{"what was made anew is read", bound(recreate, worked(deletion, false, done), worked(creation, false, created("h")), checking(recreate, corev1.PodSucceeded, readBack)), "certify"},
		{"what is smaller than before is none", bound(recreate, worked(deletion, false, done), worked(creation, false, `{"succeeded": true, "handle": "h", "capacity": "1Mi"}`)), "note"},
		{"what has another handle is deleted again", bound(recreate, worked(deletion, false, done), worked(creation, false, created("x"))), "run deletion x"},
		{"then it is a failure", bound(recreate, worked(deletion, false, done), worked(creation, false, created("x")), worked(deletion, true, done)), "note"},
		{"nothing is deleted twice", bound(recreate, worked(creation, false, created("h"))), "note"},

		{"failed: its pod is stopped first", bound(zero, worked(recycling, false, ""), having(tarnv1.AnnotationRecycleFailure, justFailed), reported), "stop"},
		{"failed: a pod that has ended stays to be read", bound(zero, worked(recycling, false, refused), having(tarnv1.AnnotationRecycleFailure, justFailed), reported), "dismiss"},
		{"failed: its record says so", bound(zero, worked(recycling, false, refused), having(tarnv1.AnnotationRecycleFailure, justFailed)), "dismiss report"},
		{"verified: the claim goes", bound(zero, worked(recycling, false, done), having(tarnv1.AnnotationRecycled, certificate), reported), "dismiss"},
		{"verified: not before all has ended", bound(zero, still, worked(recycling, false, done), having(tarnv1.AnnotationRecycled, certificate), reported), "stop"},
		{"verified: then its pods, and it is nobody's", view(provided, method(zero), pointing, worked(recycling, false, done), having(tarnv1.AnnotationRecycled, certificate), reported), "stop free " + eventRecycled},
		{"the record of a volume that is used says how it was recycled", view(provided, method(zero), in(corev1.VolumeBound), having(tarnv1.AnnotationRecycled, certificate)), "report"},
		{"once", view(provided, method(zero), in(corev1.VolumeBound), having(tarnv1.AnnotationRecycled, certificate), reported), ""},
		{"deleted half-way: its pods are stopped", bound(zero, worked(recycling, false, ""), deleted), "stop"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := words(c.view, plan(c.view, noon)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestTheCertificateOfAProvisionerIsItsWordWithWhatTarnRead(t *testing.T) {
	for _, c := range []struct {
		name, read string
		method     tarnv1.RecycleMethod
		want       tarnv1.RecycleCertificate
	}{
		{"a file system, whose size is the volume's", readBack, tarnv1.RecycleZero, tarnv1.RecycleCertificate{Bytes: 1 << 30, Seconds: 2.5}},
		{"a device, whose size was read", `{"method": "Zero", "bytes": 4096, "sampleSHA256": "ab", "seconds": 1}`, tarnv1.RecycleZero, tarnv1.RecycleCertificate{Bytes: 4096, Seconds: 3}},
		{"files, of which nobody knows how much they were", readBack, tarnv1.RecycleFiles, tarnv1.RecycleCertificate{Seconds: 2.5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := view(provided, method(c.method), pointing, claim("scrub-uid"), worked(tarnv1.StepRecycling, false, done))
			v.Work[0].Annotations[annMethod] = string(c.method)
			v.Provisioner.Spec.VolumeRecycling = testkit.Section(strings.Replace(zeroSection, `"Zero"`, `"Zero", "Files"`, 1))
			v.Pod = plan(v, noon).Actions[0].(action.Create).Object.(*corev1.Pod)
			ended(v, corev1.PodSucceeded, c.read)
			c.want.Method, c.want.Provisioner, c.want.Image, c.want.Claim = c.method, "prov", "scrubber", "scrub-uid"
			c.want.Verifier, c.want.SampleSHA256, c.want.Time = testImage, "ab", ptr.To(metav1.NewTime(noon))
			if got := volume.CertificateOf(volumeOf(plan(v, noon))); encode(got) != encode(c.want) {
				t.Errorf("certified %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestAFailedCheckNamesWhoseWordWasWrong(t *testing.T) {
	v := view(provided, method(tarnv1.RecycleZero), pointing, claim("scrub-uid"), checking(tarnv1.RecycleZero, corev1.PodFailed, `tarn: the volume is not empty, it has "note"`))
	const want = `PavProvisioner "prov" reports that it did Zero, but Tarn's check of the volume failed: the volume is not empty, it has "note"`
	if f := failureOf(volumeOf(plan(v, noon))); f == nil || f.Message != want {
		t.Errorf("noted %+v, want %s", f, want)
	}
}

func TestWhichPodsOfARecordWorkOnItsStorage(t *testing.T) {
	v := view(provided, pointing)
	pod := func(name, volume, claim string, phase corev1.PodPhase) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{tarnv1.LabelScrub: volume}, Annotations: map[string]string{annClaim: claim},
			OwnerReferences: []metav1.OwnerReference{{UID: v.Record.UID}},
		}, Status: corev1.PodStatus{Phase: phase}}
	}
	strange := pod("strange", "", "", corev1.PodRunning)
	strange.OwnerReferences = nil
	v.sort([]corev1.Pod{
		pod("work", "vol-uid", "scrub-uid", corev1.PodSucceeded), pod("before", "vol-uid", "older-uid", corev1.PodFailed),
		pod("expands", "", "", corev1.PodPending), pod("created", "", "", corev1.PodSucceeded), strange,
	})
	for _, c := range []struct {
		what string
		got  []corev1.Pod
		want string
	}{{"of this passage", v.Work, "work"}, {"of former ones", v.Earlier, "before"}, {"others", v.Others, "expands"}} {
		if len(c.got) != 1 || c.got[0].Name != c.want {
			t.Errorf("%s: %d pods, want %s", c.what, len(c.got), c.want)
		}
	}
}
