package plugin

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/plugin/plugintest"
	"tarn.dev/tarn/internal/testkit"
)

// seen gathers the view of the claim of a View, with other objects in the API.
func seen(t *testing.T, v *View, others ...client.Object) *View {
	t.Helper()
	r := &reconciler{plugins: map[string]plugin.Plugin{v.Plugin.Name: *v.Plugin}}
	r.client = fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(v.Claim, v.Class, v.Node).WithObjects(others...).
		WithIndex(&corev1.PersistentVolumeClaim{}, indexClaimUID, kube.UIDOf).
		WithIndex(&corev1.PersistentVolume{}, indexMissing, r.missedBy).Build()
	got, err := r.gather(t.Context(), v.VolumeName)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestAVolumeThatIsNotWhereItWasMadeStopsThePluginsOfItsNode(t *testing.T) {
	otherwise := func(edit func(*corev1.PersistentVolume)) func(*corev1.PersistentVolume) {
		return func(vol *corev1.PersistentVolume) {
			vol.Annotations[tarnv1.AnnotationPlace] = "before"
			edit(vol)
		}
	}
	for _, c := range []struct {
		name string
		edit func(*corev1.PersistentVolume)
		want bool
	}{
		{"one that is where it was made", func(*corev1.PersistentVolume) {}, false},
		{"one that was made before there were places", func(vol *corev1.PersistentVolume) { delete(vol.Annotations, tarnv1.AnnotationPlace) }, false},
		{"one of another place", otherwise(func(*corev1.PersistentVolume) {}), true},
		{"one of another place that is kept by its policy", otherwise(func(vol *corev1.PersistentVolume) {
			vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}), true},
		{"one of another place on another node", otherwise(func(vol *corev1.PersistentVolume) { vol.Annotations[tarnv1.AnnotationNode] = "node-2" }), false},
		{"one of another place, reached by another path", otherwise(func(vol *corev1.PersistentVolume) { vol.Spec.Local.Path = "/before/other" }), false},
		{"one of another provisioner", otherwise(func(vol *corev1.PersistentVolume) {
			vol.Annotations["pv.kubernetes.io/provisioned-by"] = "another"
		}), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			vol := volumeView(corev1.VolumeBound, corev1.PersistentVolumeReclaimDelete).Volume
			vol.Name, vol.Spec.Local.Path = "other", "/fake/other"
			c.edit(vol)
			for what, changes := range map[string][]change{"a new claim": nil, "a promised one": {promisedClaim}, "one whose class is gone": {promisedClaim, func(v *View) { v.Class.Name = "unknown" }}} {
				got := seen(t, claimView(changes...), vol)
				if (got.Missing != nil) != c.want || c.want && !strings.Contains(got.Missing.Error(), "volume other lies in before") {
					t.Errorf("%s: missing is %v, want it: %t", what, got.Missing, c.want)
				}
			}
		})
	}
}

func TestTheFirstOfAllMissingVolumesIsNamedEachTime(t *testing.T) {
	var volumes []client.Object
	for _, name := range []string{"c", "a", "b"} {
		vol := volumeView(corev1.VolumeBound, corev1.PersistentVolumeReclaimDelete).Volume
		vol.Name, vol.Spec.Local.Path, vol.Annotations[tarnv1.AnnotationPlace] = name, "/fake/"+name, "before"
		volumes = append(volumes, vol)
	}
	if got := seen(t, claimView(), volumes...); got.Missing == nil || !strings.Contains(got.Missing.Error(), "volume a ") {
		t.Errorf("missing is %v, want the first", got.Missing)
	}
}

// The PersistentVolume does not exist yet.
func TestWhatWasBegunElsewhereIsMissing(t *testing.T) {
	for place, want := range map[string]bool{"": false, claimView().Plugin.Place: false, "before": true} {
		v := claimView(promisedClaim, func(v *View) { v.Claim.Annotations[tarnv1.AnnotationPlace] = place })
		if got := seen(t, v); (got.Missing != nil) != want {
			t.Errorf("begun in %q: missing is %v, want it: %t", place, got.Missing, want)
		}
		v.Claim.Finalizers = nil // an annotation alone is no promise
		if got := seen(t, v); got.Missing != nil {
			t.Errorf("not begun: missing is %v", got.Missing)
		}
	}
}

// As a number of bytes, the size would be zero or negative.
func TestAPluginIsNotAskedForASizeThatIsNoNumberOfBytes(t *testing.T) {
	for _, size := range []string{"1e19", "20E", "1e50", "1e2000000000"} {
		v := claimView(asking(size))
		asked := &asks{Creator: v.Plugin.Creator}
		v.Plugin.Creator = asked
		v.Class = testkit.Class(fakeName, func(c *storagev1.StorageClass) { c.Parameters = nil })
		v.Class.Name = *v.Claim.Spec.StorageClassName
		if got := seen(t, v); got.Class == nil || got.Unserved != nil || asked.times > 0 {
			t.Errorf("%s: class %v, unserved %v, asked %d times", size, got.Class, got.Unserved, asked.times)
		}
	}
}

// asks counts the requests to a plugin.
type asks struct {
	plugin.Creator
	times int
}

func (a *asks) Check(r plugin.Request) error {
	a.times++
	return a.Creator.Check(r)
}

func TestDeletionTellsThePluginWhereTheVolumeLies(t *testing.T) {
	r, f, _ := toGo(t, func(vol *corev1.PersistentVolume) {
		leftBehind(vol)
		vol.Annotations[tarnv1.AnnotationPlace] = "before"
	})
	vol, err := look(t, r)
	if err == nil || vol == nil || !calledFailed(vol) || !strings.Contains(vol.Status.Message, "lies in before") || f.Deleted("pvc-u1") > 0 {
		t.Errorf("%v, the volume is %+v, want it Failed, with the places", err, vol)
	}
	_, elsewhere := plugintest.NewFakeElsewhere(fakeName, "")
	if err := elsewhere.Deleter.Delete(t.Context(), plugin.Volume{Name: "a", Place: r.plugins[fakeName].Place}); err == nil {
		t.Error("the fake deletes what lies elsewhere")
	}
}
