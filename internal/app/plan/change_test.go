package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appspec "tarn.dev/tarn/internal/app/spec"
)

// given makes a claim larger than it requests, as one is that got a larger spare.
func given(sizeGi int64) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) {
		claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(sizeGi*gi, resource.BinarySI)}
	}
}

// mebibytes makes a claim request and have a size that is no whole GiB.
func mebibytes(n int64) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) {
		size := corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(n<<20, resource.BinarySI)}
		claim.Spec.Resources.Requests, claim.Status.Capacity = size, size
	}
}

func TestAVolumeThatIsLargerThanAskedForIsNotAskedToGrow(t *testing.T) {
	once := corev1.ReadWriteOnce
	for name, c := range map[string]struct {
		claim  func(*World)
		file   *appspec.File
		action Action
		size   int64
		warns  bool
	}{
		"the same file again":            {has("data", 1, once, "rigid", given(5)), file(1, "data:1:rwo"), Keep, 1, false},
		"more, but not more than it has": {has("data", 1, once, "rigid", given(5)), file(1, "data:3:rwo"), Keep, 3, false},
		"more than it has":               {has("data", 1, once, "fast", given(5)), file(1, "data:6:rwo"), Grow, 6, false},
		"less than it asked for":         {has("data", 3, once, "rigid", given(5)), file(1, "data:1:rwo"), Keep, 3, true},
		"no whole GiB":                   {has("data", 1, once, "rigid", mebibytes(1500)), file(1, "data:1:rwo"), Keep, 1, true},
		"from no whole GiB to the next":  {has("data", 1, once, "fast", mebibytes(1500)), file(1, "data:2:rwo"), Grow, 2, false},
		"and of a class that forbids it": {has("data", 1, once, "rigid", mebibytes(1500)), file(1, "data:2:rwo"), Refuse, 2, false},
	} {
		d := Deploy(world(runs(wants("data", 1, once)), c.claim), c.file, nil)
		warns := strings.Contains(strings.Join(d.Plan.Warnings, "\n"), "never shrink")
		if got := d.Plan.Changes[0].Action; got != c.action || d.Spec.Volumes[0].SizeGi != c.size || warns != c.warns {
			t.Errorf("%s: %s to %d GiB, warned %t; want %s to %d, %t", name, got, d.Spec.Volumes[0].SizeGi, warns, c.action, c.size, c.warns)
		}
	}
}

func TestAVolumeThatHasWhatItAsksForDoesNotGrow(t *testing.T) {
	once := corev1.ReadWriteOnce
	infeasible := func(claim *corev1.PersistentVolumeClaim) {
		claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInfeasible}
	}
	for name, c := range map[string]struct {
		world World
		want  VolumeStatus
	}{
		"no whole GiB":       {world(runs(wants("data", 1, once)), has("data", 1, once, "rigid", mebibytes(1500))), VolumeBound},
		"more than asked":    {world(runs(wants("data", 1, once)), has("data", 1, once, "rigid", given(5))), VolumeBound},
		"as much as it asks": {world(runs(wants("data", 3, once)), has("data", 1, once, "rigid", given(3))), VolumeBound},
		"less, and it fails": {world(runs(wants("data", 20, once)), has("data", 20, once, "fast", given(10), infeasible)), VolumeResizeFailed},
	} {
		if got := Volumes(c.world)[0]; got.Status != c.want {
			t.Errorf("%s: %s, want %s", name, got.Status, c.want)
		}
	}
}

// refusedFor sets the status after the controller has rejected the spec.
func refusedFor(why string) func(*World) {
	return func(w *World) {
		w.App.Status.ObservedGeneration = w.App.Generation
		w.App.Status.Conditions = []metav1.Condition{{Type: tarnv1.ConditionDeployed, Status: metav1.ConditionFalse, Reason: tarnv1.ReasonRefused, Message: why}}
	}
}

func TestASizeThatWasRefusedMayBeTakenBack(t *testing.T) {
	once := corev1.ReadWriteOnce
	asked := []func(*World){runs(wants("data", 900, once)), has("data", 10, once, "fast")}
	refused := append(asked, refusedFor("exceeded quota"))
	if _, err := Resize(world(refused...), "data", 20); err != nil {
		t.Errorf("a smaller growth after one that was refused: %v", err)
	}
	if _, err := Resize(world(asked...), "data", 20); err == nil {
		t.Error("a smaller growth was let in while the greater was under way")
	}
	if _, err := Resize(world(refused...), "data", 10); err == nil {
		t.Error("no growth at all was let in")
	}
	if got := Deploy(world(refused...), file(1, "data:10:rwo"), nil).Spec.Volumes[0].SizeGi; got != 10 {
		t.Errorf("a deploy after a growth that was refused asks for %d GiB, want the file's 10", got)
	}
	if got := Deploy(world(asked...), file(1, "data:10:rwo"), nil).Spec.Volumes[0].SizeGi; got != 900 {
		t.Errorf("a deploy while a volume grows asks for %d GiB, want 900", got)
	}
}

func TestOneAndNoneAreAlwaysAllowed(t *testing.T) {
	once := corev1.ReadWriteOnce
	for name, w := range map[string]World{
		"nothing deployed": world(),
		"a claim for one":  world(runs(wants("data", 1, once)), has("data", 1, once, "fast")),
		"refused":          world(runs(wants("data", 1, once)), refusedFor("no")),
	} {
		for _, replicas := range []int32{0, 1} {
			if err := Scale(w, replicas); err != nil {
				t.Errorf("%s: %d replicas are refused: %v", name, replicas, err)
			}
		}
		if err := Scale(w, 3); err == nil || err.Code != Conflict {
			t.Errorf("%s: 3 replicas: %v, want a conflict", name, err)
		}
	}
}

// lists adds to the status a volume that is no longer mounted.
func lists(volume string) func(*World) {
	return func(w *World) {
		w.App.Status.Detached = []tarnv1.AppVolumeStatus{{Name: volume, ClaimName: appspec.ClaimName("shop", volume)}}
	}
}

func TestADeletionTellsOfEachClaimWhatBecomesOfIt(t *testing.T) {
	once := corev1.ReadWriteOnce
	data, keep := wants("data", 1, once), wants("data", 1, once)
	keep.PreserveOnDelete = true
	for name, c := range map[string]struct {
		world World
		stays bool
	}{
		"mounted":                             {world(runs(data), has("data", 1, once, "fast")), false},
		"to be preserved":                     {world(runs(keep), has("data", 1, once, "fast", marked)), true},
		"to be preserved, and not marked yet": {world(runs(keep), has("data", 1, once, "fast")), true},
		"marked, and to be preserved no more": {world(runs(data), has("data", 1, once, "fast", marked)), true},
		"detached":                            {world(runs(), has("data", 1, once, "fast")), false},
		"detached, and to be preserved when it was so": {world(runs(), has("data", 1, once, "fast", marked)), true},
		"detached, and made for an earlier one":        {world(runs(), has("data", 1, once, "fast", earlier), lists("data")), false},
		"brought back, and mounted by no deploy":       {world(runs(), has("data", 1, once, "fast", unknown)), true},
		"of an earlier one, and mounted by no deploy":  {world(runs(), has("data", 1, once, "fast", earlier)), true},
	} {
		got := Delete(c.world)
		if stays := len(got.Preserved) == 1; stays != c.stays || len(got.Preserved)+len(got.Deleted) != 1 {
			t.Errorf("%s: %+v, want that it stays: %t", name, got, c.stays)
		}
	}
}

func TestAPreservedVolumeThatStaysPreservedIsNotWarnedOf(t *testing.T) {
	f := file(1, "data:1:rwo")
	f.Volumes[0].PreserveOnDelete = true
	if got := Deploy(world(has("data", 1, corev1.ReadWriteOnce, "fast", marked)), f, nil).Plan.Warnings; strings.Contains(strings.Join(got, "\n"), "preserve") {
		t.Errorf("warned %q", got)
	}
}

func TestTwoAppsWhoseClaimsWouldHaveOneNameDoNotMeet(t *testing.T) {
	// Volume c of app a-b and volume b-c of app a have the same claim name, paas-app-a-b-c.
	theirs := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: appspec.ClaimName("a-b", "c"), Labels: map[string]string{tarnv1.LabelApp: "a-b", tarnv1.LabelAppVolume: "c"},
	}}
	for name, labels := range map[string]map[string]string{
		"as it is": theirs.Labels, "with the app's label alone": {tarnv1.LabelApp: "a", tarnv1.LabelAppVolume: "c"},
	} {
		claim := theirs.DeepCopy()
		claim.Labels = labels
		w := world(func(w *World) { w.App.Name, w.Claims[claim.Name] = "a", claim })
		if got := Delete(w); len(got.Deleted)+len(got.Preserved) != 0 {
			t.Errorf("%s: the end of app a takes %+v", name, got)
		}
		w.App.Spec = tarnv1.AppSpec{Image: "a:1", Volumes: []tarnv1.AppVolume{wants("b-c", 1, corev1.ReadWriteOnce)}}
		if got := Delete(w); len(got.Deleted)+len(got.Preserved) != 0 {
			t.Errorf("%s: the end of app a takes %+v", name, got)
		}
		if _, err := Resize(w, "b-c", 5); err == nil || err.Code != Conflict {
			t.Errorf("%s: app a resizes it: %v", name, err)
		}
		if got := Volumes(w)[0]; got.Status != VolumeForeign || got.CapacityBytes != 0 || got.StorageClass != "fast" {
			t.Errorf("%s: app a is told of it: %+v", name, got)
		}
		if d := Deploy(w, file(1, "b-c:1:rwo"), nil); d.Refusal == nil || d.Refusal.Code != Conflict {
			t.Errorf("%s: app a mounts it: %+v", name, d.Plan)
		}
	}
}

func TestWhatAHiddenClassAllowsIsLeftToTheController(t *testing.T) {
	file := &appspec.File{App: appspec.App{Image: "a:1", Replicas: 1}, Volumes: []appspec.Volume{{Name: "data", MountPath: "/data", SizeGi: 1, StorageClass: "secret", AccessMode: appspec.ReadWriteMany}}}
	claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("secret")}}
	for _, c := range []struct {
		name                     string
		hidden                   map[string]bool
		wantWarnings, wantErrors int
	}{
		{"a class that does not exist", nil, 1, 1},
		{"a class that may not be read", map[string]bool{"secret": true}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := World{App: &tarnv1.App{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, Hidden: c.hidden}
			if got := Deploy(w, file, nil).Plan.Warnings; len(got) != c.wantWarnings {
				t.Errorf("a plan warns of %q, want %d warnings", got, c.wantWarnings)
			}
			if err := w.Expandable(claim, "data"); (err != nil) != (c.wantErrors > 0) {
				t.Errorf("growth is answered with %v", err)
			}
		})
	}
}
