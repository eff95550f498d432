package autogrow

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kubelet"
	"tarn.dev/tarn/internal/testkit"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

const mi = 1 << 20

// view is a bound claim of 100Mi, created an hour ago, of which 85% was in use half a minute ago.
func view(changes ...func(*View)) *View {
	class := testkit.Class("fast", func(c *storagev1.StorageClass) { c.AllowVolumeExpansion = ptr.To(true) })
	claim := testkit.Claim("shop", "data", "u1", class.Name, func(c *corev1.PersistentVolumeClaim) {
		c.CreationTimestamp = metav1.NewTime(noon.Add(-time.Hour))
		c.Annotations = map[string]string{tarnv1.AnnotationAutoGrow: "at=80% by=20% max=1Gi"}
		c.Spec.VolumeName = "v"
		c.Spec.Resources.Requests, c.Status.Capacity = testkit.Storage("100Mi"), testkit.Storage("100Mi")
		c.Status.Phase = corev1.ClaimBound
	})
	v := &View{Claim: claim, Class: class, Usage: &kubelet.Usage{Used: 85 * mi, Available: 15 * mi, Size: 100 * mi, Time: noon.Add(-30 * time.Second)}}
	for _, change := range changes {
		change(v)
	}
	return v
}

func grownBy(reading time.Time) func(*View) {
	return func(v *View) {
		v.Claim.Annotations[tarnv1.AnnotationAutoGrown] = "2026-11-29T11:00:00Z from=80Mi to=100Mi reading=" + reading.Format(time.RFC3339)
	}
}

func says(setting string) func(*View) {
	return func(v *View) { v.Claim.Annotations[tarnv1.AnnotationAutoGrow] = setting }
}

// settled is a claim whose last resize ended at a time.
func settled(at time.Time) func(*View) {
	return func(v *View) { v.Memory.Known, v.Memory.Settled, v.Memory.Capacity = true, at, 100*mi }
}

func resizing(conditions ...corev1.PersistentVolumeClaimCondition) func(*View) {
	return func(v *View) {
		v.Claim.Spec.Resources.Requests = testkit.Storage("120Mi")
		v.Claim.Status.Conditions = conditions
	}
}

// summary is what a plan does: the size that the claim requests then, and the reason of an Event
// with its note.
func summary(t *testing.T, p Plan) (size, reason, note string) {
	t.Helper()
	for _, a := range p.Actions {
		switch a := a.(type) {
		case action.Patch:
			claim, ok := a.To.(*corev1.PersistentVolumeClaim)
			if !ok {
				t.Fatalf("a patch of %T", a.To)
			}
			request := claim.Spec.Resources.Requests[corev1.ResourceStorage]
			size = request.String()
		case action.Emit:
			reason, note = a.Reason, a.Note
		default:
			t.Fatalf("an action %T", a)
		}
	}
	return size, reason, note
}

func TestAClaimGrowsByAReadingThatIsNewAndFull(t *testing.T) {
	for name, c := range map[string]struct {
		change               func(*View)
		wantSize, wantReason string
		wantNote             string
	}{
		"full":                    {func(*View) {}, "120Mi", eventGrown, "from 100Mi to 120Mi: 85% of its file system is used, and it grows at 80%"},
		"not full":                {says("at=86% max=1Gi"), "", "", ""},
		"by a size":               {says("by=7Mi max=1Gi"), "107Mi", eventGrown, "to 107Mi"},
		"up to max":               {says("max=110Mi"), "110Mi", eventGrown, "to 110Mi"},
		"max reached":             {says("max=100Mi"), "", eventMax, "does not grow beyond max=100Mi; raise max"},
		"max below the size":      {says("max=50Mi"), "", eventMax, "max=50Mi"},
		"not full at max":         {says("at=99% max=50Mi"), "", "", ""},
		"up to the claim's limit": {func(v *View) { v.Claim.Spec.Resources.Limits = testkit.Storage("105Mi") }, "105Mi", eventGrown, "to 105Mi"},
		"the setting of the class": {func(v *View) {
			v.Claim.Annotations = nil
			v.Class.Annotations = map[string]string{tarnv1.AnnotationAutoGrow: "max=1Gi"}
		}, "120Mi", eventGrown, ""},
		"a reading from before the end of a resize, by a clock that is ahead": {func(v *View) {
			settled(noon.Add(-20 * time.Second))(v)
			v.Usage.Time, v.Usage.Ahead = v.Usage.Time.Add(5*time.Minute), 5*time.Minute
		}, "", "", ""},
		"a reading from after the end of a resize, by a clock that is ahead": {func(v *View) {
			settled(noon.Add(-40 * time.Second))(v)
			v.Usage.Time, v.Usage.Ahead = v.Usage.Time.Add(5*time.Minute), 5*time.Minute
		}, "120Mi", eventGrown, ""},
		"root's reserve is used":        {func(v *View) { v.Usage.Used, v.Usage.Available = 78*mi, 17*mi }, "120Mi", eventGrown, "82%"},
		"not valid":                     {says("max=lots"), "", eventInvalid, `annotation tarn.dev/auto-grow: max="lots" is not a size; write`},
		"no class":                      {func(v *View) { v.Class = nil }, "", eventRejected, "allowVolumeExpansion"},
		"the class forbids it":          {func(v *View) { v.Class.AllowVolumeExpansion = nil }, "", eventRejected, `StorageClass "fast" does not exist or does not allow`},
		"block":                         {func(v *View) { v.Claim.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }, "", eventUnknown, "block volume"},
		"unbound":                       {func(v *View) { v.Claim.Status.Phase = corev1.ClaimPending }, "", "", ""},
		"being deleted":                 {func(v *View) { v.Claim.DeletionTimestamp = ptr.To(metav1.NewTime(noon)) }, "", "", ""},
		"being resized":                 {resizing(), "", "", ""},
		"the driver fails":              {resizing(corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimControllerResizeError, Status: corev1.ConditionTrue, Message: "no space"}), "", eventRejected, "until it is: no space"},
		"the node fails":                {resizing(corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue, Message: "xfs"}), "", eventRejected, "xfs"},
		"another condition":             {resizing(corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimResizing, Status: corev1.ConditionTrue, Message: "busy"}), "", "", ""},
		"the node does not answer":      {func(v *View) { v.Unanswered = "asking the kubelet of node a: timeout" }, "", eventUnknown, "asking the kubelet of node a: timeout"},
		"no reading yet":                {func(v *View) { v.Usage = nil }, "", "", ""},
		"no reading for long":           {func(v *View) { v.Usage = nil; v.Memory.Silent = noon.Add(-quiet) }, "", eventUnknown, "NodeGetVolumeStats"},
		"a reading without time":        {func(v *View) { v.Usage.Time = time.Time{}; v.Memory.Silent = noon.Add(-quiet) }, "", eventUnknown, ""},
		"a file system shared":          {func(v *View) { v.Usage.Size = 1 << 40 }, "", eventUnknown, "shares a file system of 1Ti"},
		"a reading of a former claim":   {func(v *View) { v.Claim.CreationTimestamp = metav1.NewTime(noon.Add(-30 * time.Second)) }, "", "", ""},
		"the reading of the last step":  {grownBy(noon.Add(-30 * time.Second)), "", "", ""},
		"the same, known to be over":    {func(v *View) { grownBy(noon.Add(-30 * time.Second))(v); settled(noon.Add(-time.Minute))(v) }, "", "", ""},
		"grown before, after a restart": {grownBy(noon.Add(-10 * time.Minute)), "", "", ""},
		"grown before":                  {func(v *View) { grownBy(noon.Add(-10 * time.Minute))(v); settled(noon.Add(-9 * time.Minute))(v) }, "120Mi", eventGrown, ""},
		"from before the end":           {func(v *View) { grownBy(noon.Add(-10 * time.Minute))(v); settled(noon.Add(-20 * time.Second))(v) }, "", "", ""},
		"the end is now":                {func(v *View) { v.Memory.Known = true }, "", "", ""},
		"a record that is not ours":     {func(v *View) { v.Claim.Annotations[tarnv1.AnnotationAutoGrown] = "reading=never" }, "120Mi", eventGrown, ""},
		"rejected a moment ago":         {func(v *View) { settled(noon.Add(-time.Hour))(v); v.Memory.Retry = noon.Add(time.Second) }, "", "", ""},
		"rejected long ago":             {func(v *View) { settled(noon.Add(-time.Hour))(v); v.Memory.Retry = noon }, "120Mi", eventGrown, ""},
		"bound to a larger volume":      {func(v *View) { v.Claim.Spec.Resources.Requests = testkit.Storage("10Mi") }, "120Mi", eventGrown, ""},
	} {
		t.Run(name, func(t *testing.T) {
			size, reason, note := summary(t, plan(view(c.change), noon))
			if size != c.wantSize || reason != c.wantReason || !strings.Contains(note, c.wantNote) {
				t.Errorf("size %q, Event %s %q; want %q, %s %q", size, reason, note, c.wantSize, c.wantReason, c.wantNote)
			}
		})
	}
}

func TestAStepIsOnePatchThatRecordsItsReading(t *testing.T) {
	v := view()
	p := plan(v, noon)
	patch, ok := p.Actions[0].(action.Patch)
	if !ok || patch.From != v.Claim || p.Outcome != grown {
		t.Fatalf("planned %+v", p)
	}
	after, ok := patch.To.(*corev1.PersistentVolumeClaim)
	if want := "2026-11-29T12:00:00Z from=100Mi to=120Mi reading=2026-11-29T11:59:30Z"; !ok || after.Annotations[tarnv1.AnnotationAutoGrown] != want {
		t.Errorf("recorded %q, want %q", after.Annotations[tarnv1.AnnotationAutoGrown], want)
	}
	// While the driver works, and when it is done, the reading counts no more; not even where nothing is remembered.
	after.Status.Capacity = testkit.Storage("100Mi")
	during := plan(&View{Claim: after, Class: v.Class, Usage: v.Usage, Memory: p.Memory}, noon.Add(time.Second))
	after.Status.Capacity = testkit.Storage("120Mi")
	for _, memory := range []Memory{during.Memory, {}} {
		again := plan(&View{Claim: after, Class: v.Class, Usage: v.Usage, Memory: memory}, noon.Add(2*time.Second))
		if len(during.Actions) > 0 || len(again.Actions) > 0 {
			t.Errorf("the reading is used again: %+v, %+v", during.Actions, again.Actions)
		}
	}
	// A later one does.
	end := plan(&View{Claim: after, Class: v.Class, Usage: v.Usage, Memory: during.Memory}, noon.Add(2*time.Second))
	later := &kubelet.Usage{Used: 119 * mi, Available: mi, Size: 120 * mi, Time: noon.Add(time.Minute)}
	if size, _, _ := summary(t, plan(&View{Claim: after, Class: v.Class, Usage: later, Memory: end.Memory}, noon.Add(2*time.Minute))); size != "144Mi" {
		t.Errorf("the next step is to %q, want 144Mi", size)
	}
}

func TestAReadingFromBeforeAGrowthThatAnotherNodeStartedIsNotUsed(t *testing.T) {
	// Nodes A and B mount the claim. B has seen it below its setting; then it fills.
	b := view(func(v *View) { v.Usage.Used, v.Usage.Available, v.Usage.Time = 70*mi, 30*mi, noon.Add(-time.Minute) })
	seen := plan(b, noon.Add(-50*time.Second))
	a := plan(view(), noon)
	patch, ok := a.Actions[0].(action.Patch)
	if !ok {
		t.Fatalf("planned %+v", a)
	}
	claim, ok := patch.To.(*corev1.PersistentVolumeClaim)
	if !ok {
		t.Fatalf("a patch of %T", patch.To)
	}
	// The driver is done before B plans again. B's reading is newer than A's, but from before that.
	claim.Status.Capacity = claim.Spec.Resources.Requests
	full := &kubelet.Usage{Used: 90 * mi, Available: 10 * mi, Size: 100 * mi, Time: noon.Add(-10 * time.Second)}
	for name, memory := range map[string]Memory{"B knows the claim": seen.Memory, "B's step was rejected": planRejected(view(), errors.New("quota"), noon.Add(-40*time.Second)).Memory, "after a restart": {}} {
		memory.Retry = time.Time{}
		p := plan(&View{Claim: claim, Class: b.Class, Usage: full, Memory: memory}, noon.Add(time.Second))
		if len(p.Actions) > 0 {
			t.Errorf("%s: it grows again: %+v", name, p.Actions)
		}
		later := &kubelet.Usage{Used: 119 * mi, Available: mi, Size: 120 * mi, Time: noon.Add(time.Minute)}
		if size, _, _ := summary(t, plan(&View{Claim: claim, Class: b.Class, Usage: later, Memory: p.Memory}, noon.Add(2*time.Minute))); size != "144Mi" {
			t.Errorf("%s: by a reading from after the growth it grows to %q, want 144Mi", name, size)
		}
	}
}

func TestAComplaintIsSaidOnceUntilTheClaimHasRoomAgain(t *testing.T) {
	v := view(says("max=100Mi"))
	first := plan(v, noon)
	v.Memory = first.Memory
	second := plan(v, noon.Add(time.Minute))
	if first.Outcome != limited || second.Outcome != "" || len(second.Actions) > 0 {
		t.Errorf("said %q, then %q with %v", first.Outcome, second.Outcome, second.Actions)
	}
	says("max=99Mi")(v)
	if _, reason, note := summary(t, plan(v, noon)); reason != eventMax || !strings.Contains(note, "99Mi") {
		t.Errorf("another max: %s %q", reason, note)
	}
	v.Usage.Used = 10 * mi
	v.Usage.Available = 90 * mi
	room := plan(v, noon)
	if _, reason, note := summary(t, room); reason != eventRecovered || !strings.Contains(note, "10% of the volume is used, and the claim grows at 80%") {
		t.Errorf("there is room again: %s %q", reason, note)
	}
	v.Memory = room.Memory
	if again := plan(v, noon); len(again.Actions) > 0 {
		t.Errorf("there is still room: %v", again.Actions)
	}
	v.Usage.Used = 90 * mi
	v.Usage.Available = 10 * mi
	if _, reason, _ := summary(t, plan(v, noon)); reason != eventMax {
		t.Error("full again, and nothing is said")
	}
}

func TestARejectedStepIsRetriedLessAndLessOften(t *testing.T) {
	v, now := view(), noon
	var pauses []time.Duration
	for i := range 8 {
		p := planRejected(v, fmt.Errorf("quota: used %d", i), now)
		if _, reason, note := summary(t, p); i == 0 && (reason != eventRejected || !strings.Contains(note, "rejects that it grows: quota: used 0")) || i > 0 && reason != "" {
			t.Errorf("rejection %d: %s %q", i, reason, note)
		}
		pauses = append(pauses, p.Memory.Retry.Sub(now))
		v.Memory, now = p.Memory, p.Memory.Retry
		v.Usage.Time = now
		if size, _, _ := summary(t, plan(v, now)); size != "120Mi" {
			t.Errorf("rejection %d is not retried", i)
		}
	}
	if pauses[0] > 2*time.Minute || pauses[1] <= pauses[0] || pauses[7] > 72*time.Minute || pauses[7] < 48*time.Minute {
		t.Errorf("pauses %v", pauses)
	}
	if p := planRejected(view(), errors.New("x"), noon); p.Outcome != rejected || !p.Memory.Known || p.Memory.Settled.IsZero() {
		t.Errorf("planned %+v", p)
	}
}
