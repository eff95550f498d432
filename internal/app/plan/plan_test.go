package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appspec "tarn.dev/tarn/internal/app/spec"
)

// world returns application shop and some classes. Of these, fast and shared allow expansion.
func world(changes ...func(*World)) World {
	grows := true
	w := World{
		App:     &tarnv1.App{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "shop", UID: "this", Generation: 1}},
		Claims:  map[string]*corev1.PersistentVolumeClaim{},
		Classes: map[string]*storagev1.StorageClass{"fast": {ObjectMeta: metav1.ObjectMeta{Name: "fast"}, AllowVolumeExpansion: &grows}, "shared": {ObjectMeta: metav1.ObjectMeta{Name: "shared"}, AllowVolumeExpansion: &grows}, "rigid": {ObjectMeta: metav1.ObjectMeta{Name: "rigid"}}},
		Defaults: map[appspec.AccessMode]string{
			appspec.ReadWriteOnce: "fast", appspec.ReadWriteMany: "shared",
		},
	}
	for _, change := range changes {
		change(&w)
	}
	return w
}

// runs deploys the application with volumes.
func runs(volumes ...tarnv1.AppVolume) func(*World) {
	return func(w *World) { w.App.Spec = tarnv1.AppSpec{Image: "shop:1", Volumes: volumes} }
}

func wants(name string, sizeGi int64, mode corev1.PersistentVolumeAccessMode) tarnv1.AppVolume {
	return tarnv1.AppVolume{Name: name, MountPath: "/" + name, SizeGi: sizeGi, AccessMode: mode}
}

// has adds a bound claim of one of the application's volumes.
func has(volume string, sizeGi int64, mode corev1.PersistentVolumeAccessMode, class string, changes ...func(*corev1.PersistentVolumeClaim)) func(*World) {
	size := corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(sizeGi*gi, resource.BinarySI)}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: appspec.ClaimName("shop", volume), Labels: map[string]string{tarnv1.LabelApp: "shop", tarnv1.LabelAppVolume: volume}},
		Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{mode}, StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{Requests: size}},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: size},
	}
	claim.Annotations = map[string]string{tarnv1.AnnotationMadeFor: "this"}
	for _, change := range changes {
		change(claim)
	}
	return func(w *World) { w.Claims[claim.Name] = claim }
}

func going(claim *corev1.PersistentVolumeClaim) { now := metav1.Now(); claim.DeletionTimestamp = &now }
func marked(claim *corev1.PersistentVolumeClaim) {
	claim.Annotations[tarnv1.AnnotationPreserve] = "true"
}
func earlier(claim *corev1.PersistentVolumeClaim) {
	claim.Annotations[tarnv1.AnnotationMadeFor] = "earlier"
}
func unknown(claim *corev1.PersistentVolumeClaim)  { claim.Annotations = nil }
func anothers(claim *corev1.PersistentVolumeClaim) { claim.Labels = nil }
func pending(claim *corev1.PersistentVolumeClaim) {
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
}

// file returns a file with volumes, each given as name:size:mode[:class].
func file(replicas int32, volumes ...string) *appspec.File {
	f := &appspec.File{App: appspec.App{Name: "shop", Image: "shop:1", Replicas: replicas}}
	for _, text := range volumes {
		part := append(strings.Split(text, ":"), "")
		v := appspec.Volume{Name: part[0], MountPath: "/" + part[0], AccessMode: appspec.AccessMode(part[2]), StorageClass: part[3]}
		if _, err := fmt.Sscan(part[1], &v.SizeGi); err != nil {
			panic(err)
		}
		f.Volumes = append(f.Volumes, v)
	}
	return f
}

func TestWhatADeployDoesToEachVolume(t *testing.T) {
	once, many := corev1.ReadWriteOnce, corev1.ReadWriteMany
	for name, c := range map[string]struct {
		world World
		file  *appspec.File
		// want lists the changes, each as action volume from-to.
		want     string
		strategy Strategy
		refusal  string
		warning  string
		// size is the size of the first volume in the new spec.
		size int64
	}{
		"a new volume":                                     {world(), file(1, "data:10:rwo"), "create data 0-10", Recreate, "", "strategy Recreate", 10},
		"a new shared volume":                              {world(), file(3, "data:10:rwx"), "create data 0-10", RollingUpdate, "", "", 10},
		"a class that is not there":                        {world(), file(1, "data:10:rwx:none"), "create data 0-10", RollingUpdate, "", "volume 'data' waits for storage class 'none', which does not exist", 10},
		"nothing new":                                      {world(runs(wants("data", 10, once)), has("data", 10, once, "fast")), file(1, "data:10:rwo"), "keep data 10-10", Recreate, "", "", 10},
		"a preserved volume":                               {world(has("data", 10, once, "fast")), file(1, "data:10:rwo"), "attach data 10-10", Recreate, "", "", 10},
		"a preserved volume that is larger":                {world(has("data", 20, once, "fast")), file(1, "data:10:rwo"), "attach data 20-20", Recreate, "", "volume 'data' keeps its 20 GiB: the file asks for 10, and volumes never shrink", 20},
		"a preserved volume, and the file does not say so": {world(has("data", 10, once, "fast", marked)), file(1, "data:10:rwo"), "attach data 10-10", Recreate, "", "volume 'data' was preserved until now; from now on it is deleted with the app, because the file lacks preserveOnDelete = true", 10},
		"growth":                                     {world(runs(wants("data", 10, once)), has("data", 10, once, "fast")), file(1, "data:20:rwo"), "grow data 10-20", Recreate, "", "", 20},
		"growth that is under way":                   {world(runs(wants("data", 30, once)), has("data", 10, once, "fast")), file(1, "data:20:rwo"), "grow data 10-30", Recreate, "", "volume 'data' keeps its 30 GiB: the file asks for 20, and volumes never shrink", 30},
		"growth that the class forbids":              {world(runs(wants("data", 10, once)), has("data", 10, once, "rigid")), file(1, "data:20:rwo"), "refuse data 10-20", Recreate, "storage class 'rigid' does not allow expansion", "", 20},
		"growth without a class":                     {world(runs(wants("data", 10, once)), has("data", 10, once, "")), file(1, "data:20:rwo"), "refuse data 10-20", Recreate, "volume 'data' has no storage class, so it cannot be expanded", "", 20},
		"another access mode":                        {world(runs(wants("data", 10, once)), has("data", 10, once, "fast")), file(1, "data:10:rwx"), "keep data 10-10", Recreate, "", "volume 'data' stays ReadWriteOnce: a claim's access mode cannot be changed; for ReadWriteMany give the volume another name", 10},
		"another class":                              {world(runs(wants("data", 10, many)), has("data", 10, many, "shared")), file(1, "data:10:rwx:rigid"), "keep data 10-10", RollingUpdate, "", "volume 'data' stays in storage class 'shared': a claim's class cannot be changed; for 'rigid' give the volume another name", 10},
		"a volume that is left out":                  {world(runs(wants("old", 5, once)), has("old", 5, once, "fast")), file(1), "detach old 5-5", RollingUpdate, "", "", 0},
		"somebody else's claim":                      {world(has("data", 10, once, "fast", anothers)), file(1, "data:10:rwo"), "refuse data 0-10", Recreate, "volume 'data' cannot be created: claim 'paas-app-shop-data' exists and does not belong to app 'shop'; give the volume another name", "", 10},
		"a claim that is going":                      {world(has("data", 10, once, "fast", going)), file(1, "data:10:rwo"), "refuse data 0-10", Recreate, "volume 'data' is being deleted once no pod uses it: scale the app to 0, then deploy again", "", 10},
		"three pods on one new volume":               {world(), file(3, "data:10:rwo"), "refuse data 0-10", Recreate, "cannot scale to 3 replicas: volume 'data' is ReadWriteOnce (max 1 replica). Re-create the volume with accessMode 'ReadWriteMany' to scale out.", "", 10},
		"three pods, and the live claim is for one":  {world(has("data", 10, once, "fast")), file(3, "data:10:rwx"), "refuse data 0-10", Recreate, "cannot scale to 3 replicas: volume 'data' is ReadWriteOnce (max 1 replica). Re-create the volume with accessMode 'ReadWriteMany' to scale out.", "", 10},
		"three pods, and the live claim is for many": {world(has("data", 10, many, "shared")), file(3, "data:10:rwo"), "attach data 10-10", RollingUpdate, "", "volume 'data' stays ReadWriteMany: a claim's access mode cannot be changed; for ReadWriteOnce give the volume another name", 10},
		"two that are refused": {world(has("a", 1, once, "rigid"), has("b", 1, once, "fast", anothers)), file(1, "a:2:rwo", "b:1:rwo"), "refuse a 1-2, refuse b 0-1", Recreate,
			"storage class 'rigid' does not allow expansion\nvolume 'b' cannot be created: claim 'paas-app-shop-b' exists and does not belong to app 'shop'; give the volume another name", "", 2},
	} {
		d := Deploy(c.world, c.file, nil)
		var got []string
		for _, change := range d.Plan.Changes {
			got = append(got, fmt.Sprintf("%s %s %d-%d", change.Action, change.Volume, change.FromGi, change.ToGi))
		}
		if joined := strings.Join(got, ", "); joined != c.want || d.Plan.Strategy != c.strategy {
			t.Errorf("%s: %s, %s; want %s, %s", name, joined, d.Plan.Strategy, c.want, c.strategy)
		}
		refusal := ""
		if d.Refusal != nil {
			refusal = d.Refusal.Message
		}
		if refusal != c.refusal || d.Plan.Refused != (c.refusal != "") {
			t.Errorf("%s: refused for %q, want %q", name, refusal, c.refusal)
		}
		if c.warning != "" && !slices.ContainsFunc(d.Plan.Warnings, func(w string) bool { return strings.Contains(w, c.warning) }) {
			t.Errorf("%s: warned %q, want %q", name, d.Plan.Warnings, c.warning)
		}
		if c.size > 0 && d.Spec.Volumes[0].SizeGi != c.size {
			t.Errorf("%s: stores %d GiB, want %d", name, d.Spec.Volumes[0].SizeGi, c.size)
		}
	}
}

func TestARefusalForWhatCannotBeIsInvalidAndOneForWhatIsThereAConflict(t *testing.T) {
	w := world(has("a", 1, corev1.ReadWriteOnce, "rigid"), has("b", 1, corev1.ReadWriteOnce, "fast", anothers))
	for want, f := range map[Code]*appspec.File{Conflict: file(1, "b:1:rwo"), Invalid: file(1, "b:1:rwo", "a:2:rwo")} {
		if got := Deploy(w, f, nil).Refusal; got == nil || got.Code != want {
			t.Errorf("refused as %+v, want %s", got, want)
		}
	}
}

func TestPodsAreReplacedWhenWhatTheyAreMadeOfChanges(t *testing.T) {
	w := world(runs(wants("data", 10, corev1.ReadWriteOnce)), has("data", 10, corev1.ReadWriteOnce, "fast"))
	for name, c := range map[string]struct {
		change func(*appspec.File)
		want   bool
	}{
		"nothing":    {func(*appspec.File) {}, false},
		"size":       {func(f *appspec.File) { f.Volumes[0].SizeGi = 20 }, false},
		"preserve":   {func(f *appspec.File) { f.Volumes[0].PreserveOnDelete = true }, false},
		"image":      {func(f *appspec.File) { f.App.Image = "shop:2" }, true},
		"command":    {func(f *appspec.File) { f.App.Command = []string{"/shop"} }, true},
		"env":        {func(f *appspec.File) { f.App.Env = map[string]string{"A": "b"} }, true},
		"mount path": {func(f *appspec.File) { f.Volumes[0].MountPath = "/other" }, true},
		"no volume":  {func(f *appspec.File) { f.Volumes = nil }, true},
	} {
		f := file(1, "data:10:rwo")
		c.change(f)
		if got := Deploy(w, f, nil).Plan.Restart; got != c.want {
			t.Errorf("%s: pods are replaced: %t, want %t", name, got, c.want)
		}
	}
	if Deploy(world(), file(1), nil).Plan.Restart {
		t.Error("a first deploy replaces nothing")
	}
}

func TestHowAnApplicationIs(t *testing.T) {
	condition := func(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
	}
	deployed := condition(tarnv1.ConditionDeployed, metav1.ConditionTrue, tarnv1.ReasonDeployed, "")
	told := func(generation int64, conditions ...metav1.Condition) func(*World) {
		return func(w *World) {
			w.App.Status.ObservedGeneration, w.App.Status.Conditions = generation, conditions
		}
	}
	ready := condition(tarnv1.ConditionReady, metav1.ConditionTrue, tarnv1.ReasonReady, "")
	awaitingPod := func(claim *corev1.PersistentVolumeClaim) {
		claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending}
	}
	scaledTo := func(pods int32) func(*World) { return func(w *World) { w.App.Spec.Replicas = &pods } }
	data := wants("data", 10, corev1.ReadWriteOnce)
	for name, c := range map[string]struct {
		world   World
		want    Status
		message string
		settled bool
	}{
		"nothing deployed":                       {world(), NotDeployed, "nothing is deployed yet", true},
		"not seen yet":                           {world(runs()), Deploying, "the controller has not seen it yet", false},
		"seen, and changed since":                {world(runs(), told(0, deployed, condition(tarnv1.ConditionReady, metav1.ConditionTrue, tarnv1.ReasonReady, ""))), Deploying, "the controller has not seen it yet", false},
		"being made":                             {world(runs(), told(1, condition(tarnv1.ConditionDeployed, metav1.ConditionFalse, tarnv1.ReasonDeploying, "claim data"), condition(tarnv1.ConditionReady, metav1.ConditionFalse, tarnv1.ReasonDeploying, ""))), Deploying, "claim data", false},
		"refused":                                {world(runs(), told(1, condition(tarnv1.ConditionDeployed, metav1.ConditionFalse, tarnv1.ReasonRefused, "no"), condition(tarnv1.ConditionReady, metav1.ConditionFalse, tarnv1.ReasonRefused, "no"))), Refused, "no", true},
		"a pod is not ready":                     {world(runs(), told(1, deployed, condition(tarnv1.ConditionReady, metav1.ConditionFalse, tarnv1.ReasonWaitingForPods, "0 of 1"))), Waiting, "0 of 1", false},
		"a pod crashes":                          {world(runs(), told(1, deployed, condition(tarnv1.ConditionReady, metav1.ConditionFalse, tarnv1.ReasonPodsFailing, "pod p ends"))), Failing, "pod p ends", true},
		"a volume grows":                         {world(runs(), told(1, deployed, condition(tarnv1.ConditionReady, metav1.ConditionFalse, tarnv1.ReasonResizing, "to 20"))), Resizing, "to 20", false},
		"a claim grows of which nobody has told": {world(runs(data), has("data", 5, corev1.ReadWriteOnce, "fast"), told(1, deployed, condition(tarnv1.ConditionReady, metav1.ConditionTrue, tarnv1.ReasonReady, ""))), Resizing, "volume 'data' is growing to 10 GiB", false},
		"a file system grows with the next pod":  {world(runs(data), has("data", 5, corev1.ReadWriteOnce, "fast", awaitingPod), told(1, deployed, ready)), Resizing, "volume 'data' is growing to 10 GiB", false},
		"and there is to be none":                {world(runs(data), scaledTo(0), has("data", 5, corev1.ReadWriteOnce, "fast", awaitingPod), told(1, deployed, ready)), Ready, "", true},
		"storage grows, and no pod waits for it": {world(runs(data), scaledTo(0), has("data", 5, corev1.ReadWriteOnce, "fast"), told(1, deployed, ready)), Resizing, "volume 'data' is growing to 10 GiB", false},
		"ready":                                  {world(runs(data), has("data", 10, corev1.ReadWriteOnce, "fast"), told(1, deployed, condition(tarnv1.ConditionReady, metav1.ConditionTrue, tarnv1.ReasonReady, ""))), Ready, "", true},
		"going":                                  {world(runs(), func(w *World) { now := metav1.Now(); w.App.DeletionTimestamp = &now }), Deleting, "it is being deleted", false},
	} {
		if got := View(c.world); got.Status != c.want || got.Message != c.message || got.Settled != c.settled {
			t.Errorf("%s: %s %q settled %t, want %s %q %t", name, got.Status, got.Message, got.Settled, c.want, c.message, c.settled)
		}
	}
}

func TestAResizeOfAVolumeThatIsNotBoundWaits(t *testing.T) {
	w := world(runs(wants("data", 10, corev1.ReadWriteOnce)), has("data", 10, corev1.ReadWriteOnce, "fast", pending))
	if _, err := Resize(w, "data", 20); err == nil || err.Code != Conflict || err.Message != "volume 'data' is Pending: try again when it is Bound" {
		t.Errorf("Resize = %v", err)
	}
	for name, w := range map[string]World{
		"another's": world(runs(wants("data", 10, corev1.ReadWriteOnce)), has("data", 10, corev1.ReadWriteOnce, "fast", anothers)),
		"going":     world(runs(wants("data", 10, corev1.ReadWriteOnce)), has("data", 10, corev1.ReadWriteOnce, "fast", going)),
	} {
		if _, err := Resize(w, "data", 20); err == nil || err.Code != Conflict {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheClaimAndNotTheSpecSaysHowLargeAVolumeIs(t *testing.T) {
	// An administrator has raised the claim's request beyond what the application asks for.
	w := world(runs(wants("data", 10, corev1.ReadWriteOnce)), has("data", 15, corev1.ReadWriteOnce, "fast"))
	if _, err := Resize(w, "data", 12); err == nil || err.Message != "size must be strictly greater than current size (no shrink)" {
		t.Errorf("12 of a claim of 15: %v", err)
	}
	if got, err := Resize(w, "data", 16); err != nil || got.SizeGi != 16 {
		t.Errorf("16 of a claim of 15: %+v, %v", got, err)
	}
}

func TestAClaimIsAnAppsOwnByLabelsAndName(t *testing.T) {
	misnamed := has("data", 1, corev1.ReadWriteOnce, "fast", func(claim *corev1.PersistentVolumeClaim) { claim.Name = "other" })
	if got := View(world(misnamed)).Detached; len(got) != 0 {
		t.Errorf("a claim of another name counts as detached: %+v", got)
	}
	if got := Delete(world(misnamed)); len(got.Deleted)+len(got.Preserved) != 0 {
		t.Errorf("a claim of another name is deleted: %+v", got)
	}
}
