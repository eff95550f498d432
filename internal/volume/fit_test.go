package volume_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"tarn.dev/tarn/internal/volume"
)

func fitting() (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "v", Labels: map[string]string{"k": "v"}},
			Spec:       corev1.PersistentVolumeSpec{Capacity: size, AccessModes: modes, StorageClassName: "gold"},
			Status:     corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
		}, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: modes, StorageClassName: ptr.To("gold"), Resources: corev1.VolumeResourceRequirements{Requests: size},
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"k": "v"}},
			},
		}
}

func TestEveryMisfitIsFoundAndExplained(t *testing.T) {
	now := metav1.NewTime(time.Unix(0, 0))
	for _, c := range []struct {
		want   volume.Misfit
		change func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim)
		text   string
	}{
		{volume.Fits, func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {}, `volume "v" fits`},
		{volume.MisfitTaken, func(v *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "other"}
		}, "belongs to claim ns/other"},
		{volume.MisfitDeleting, func(v *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) { v.DeletionTimestamp = &now }, "is being deleted"},
		{volume.MisfitSource, func(_ *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "from"}
		}, "was not created from the claim's data source"},
		{volume.MisfitSource, func(_ *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "Backup", Name: "from"}
		}, "was not created from the claim's data source"},
		{volume.MisfitClass, func(v *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) { v.Spec.StorageClassName = "tin" }, `class "tin", the claim asks for "gold"`},
		{volume.MisfitMode, func(v *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			v.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}, "volumeMode Block, the claim asks for Filesystem"},
		{volume.MisfitAttributes, func(v *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			v.Spec.VolumeAttributesClassName = ptr.To("fast")
		}, `volumeAttributesClassName "fast", the claim asks for ""`},
		{volume.MisfitAccess, func(_ *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany, corev1.ReadWriteOnce}
		}, "access modes RWO, the claim asks for RWO,RWX"},
		{volume.MisfitCapacity, func(_ *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1025Mi")}
		}, "has 1Gi, the claim asks for 1025Mi"},
		{volume.MisfitSelector, func(v *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) { v.Labels = nil }, "labels"},
		{volume.MisfitPhase, func(v *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) { v.Status.Phase = "" }, "is without a phase, not Available"},
	} {
		v, claim := fitting()
		c.change(v, claim)
		selector, err := volume.Selector(claim)
		if err != nil {
			t.Fatal(err)
		}
		got := volume.Match(v, claim, selector)
		if text := volume.Explain(got, v, claim); got != c.want || !strings.Contains(text, c.text) {
			t.Errorf("got %q: %s; want %q with %q", got, text, c.want, c.text)
		}
		if got != volume.Fits && (!volume.Fits.Nearer(got) || got.Nearer(volume.Fits)) {
			t.Errorf("%q counts as nearer than what fits", got)
		}
	}
	if !volume.MisfitSelector.Nearer(volume.MisfitClass) || volume.MisfitTaken.Nearer(volume.MisfitTaken) {
		t.Error("misfits are ranked in another order than they are looked for")
	}
}

func TestASelectorThatSaysNothingTakesAll(t *testing.T) {
	_, claim := fitting()
	claim.Spec.Selector = nil
	if selector, err := volume.Selector(claim); err != nil || !selector.Matches(labels.Set{}) {
		t.Errorf("got %v, %v", selector, err)
	}
}

func TestWhoAVolumePointsAt(t *testing.T) {
	ref := func(namespace, name string, uid types.UID) *corev1.ObjectReference {
		return &corev1.ObjectReference{Namespace: namespace, Name: name, UID: uid}
	}
	for name, c := range map[string]struct {
		ref  *corev1.ObjectReference
		want volume.Link
	}{
		"nobody":                 {nil, volume.LinkNone},
		"the claim by name":      {ref("ns", "c", ""), volume.LinkReserved},
		"the claim by uid":       {ref("ns", "c", "u"), volume.LinkHeld},
		"another":                {ref("ns", "d", ""), volume.LinkOther},
		"another that has gone":  {ref("ns", "c", "old"), volume.LinkOther},
		"one elsewhere its name": {ref("elsewhere", "c", ""), volume.LinkOther},
	} {
		v, claim := fitting()
		v.Spec.ClaimRef = c.ref
		if got := volume.LinkOf(v, claim); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
	if _, claim := fitting(); volume.LinkOf(nil, claim) != volume.LinkMissing {
		t.Error("a volume that is not there is not missing")
	}
}

func TestWhichProvisionersAreCalled(t *testing.T) {
	for name, c := range map[string]struct {
		driver string
		ok     bool
	}{
		"p.example":                     {"p.example", true},
		"tarn.dev/host-path":            {"tarn.dev/host-path", true},
		"kubernetes.io/gce-pd":          {"pd.csi.storage.gke.io", true},
		"kubernetes.io/no-provisioner":  {"kubernetes.io/no-provisioner", false},
		"kubernetes.io/anything-at-all": {"kubernetes.io/anything-at-all", false},
		"":                              {"", false},
	} {
		if driver, ok := volume.DriverFor(name); driver != c.driver || ok != c.ok {
			t.Errorf("provisioner %q: got %q, %t, want %q, %t", name, driver, ok, c.driver, c.ok)
		}
	}
}

func TestWhenAClassBinds(t *testing.T) {
	if waits, err := volume.WaitsForConsumer(nil); waits || err != nil {
		t.Errorf("case 88: a class that does not exist: got %t, %v", waits, err)
	}
	if _, err := volume.WaitsForConsumer(&storagev1.StorageClass{}); err == nil {
		t.Error("case 88: a class that does not say is no error")
	}
	for mode, want := range map[storagev1.VolumeBindingMode]bool{storagev1.VolumeBindingImmediate: false, storagev1.VolumeBindingWaitForFirstConsumer: true} {
		if waits, err := volume.WaitsForConsumer(&storagev1.StorageClass{VolumeBindingMode: &mode}); waits != want || err != nil {
			t.Errorf("mode %s: got %t, %v", mode, waits, err)
		}
	}
}
