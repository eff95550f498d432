package kube

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func sharedClaim(name, size string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, Labels: map[string]string{"app": "db", "instance": name},
			Annotations: map[string]string{"a": "1", "b": "2"}, Finalizers: []string{"kubernetes.io/pvc-protection"},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To("fast"),
			VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem), VolumeName: "pvc-" + name,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
		Status: corev1.PersistentVolumeClaimStatus{
			Phase: corev1.ClaimBound, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
		},
	}
}

func sharedVolume(name, size string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"record": name}, Finalizers: []string{"f"}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: "fast",
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "shop", Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "shelf", VolumeHandle: name, VolumeAttributes: map[string]string{"tier": "fast"},
			}},
		},
	}
}

func sharedRecord(name, class string) *tarnv1.PavVolume {
	return &tarnv1.PavVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"p": "shelf"}, Finalizers: []string{"f"}},
		Spec: tarnv1.PavVolumeSpec{
			Provisioner:   tarnv1.ProvisionerReference{Name: "shelf"},
			AccessModes:   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimSnapshot: apiextensionsv1.JSON{Raw: []byte(`{"claim": "` + name + `"}`)},
			ClassSnapshot: apiextensionsv1.JSON{Raw: []byte(`{"class": "` + class + `"}`)},
		},
	}
}

// through passes an object through the transform of its kind.
func through[T client.Object](t *testing.T, s *Sharing, o T) T {
	t.Helper()
	for kind, transform := range s.Transforms() {
		if reflect.TypeOf(kind) != reflect.TypeOf(o) {
			continue
		}
		got, err := transform(o)
		if err != nil {
			t.Fatal(err)
		}
		return got.(T)
	}
	t.Fatalf("there is no transform of %T", o)
	return o
}

func TestSharingChangesNothingButManagedFields(t *testing.T) {
	s := &Sharing{}
	for i := range 3 * poolParts {
		name, size := fmt.Sprint("v", i), fmt.Sprintf("%dMi", i%7+1)
		for _, want := range []client.Object{sharedClaim(name, size), sharedVolume(name, size), sharedRecord(name, size), &corev1.PersistentVolumeClaim{}} {
			object := want.DeepCopyObject().(client.Object)
			object.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "kubectl"}})
			var got client.Object
			switch o := object.(type) {
			case *corev1.PersistentVolumeClaim:
				got = through(t, s, o)
			case *corev1.PersistentVolume:
				got = through(t, s, o)
			case *tarnv1.PavVolume:
				got = through(t, s, o)
			}
			if !equality.Semantic.DeepEqual(got, want) {
				t.Fatalf("object %d became %+v, want %+v", i, got, want)
			}
		}
	}
	if n := len(s.maps.known); n > poolParts {
		t.Errorf("%d maps are remembered, want at most %d", n, poolParts)
	}
}

func TestWhatIsTheSameIsShared(t *testing.T) {
	s := &Sharing{}
	a, b := through(t, s, sharedClaim("a", "1Gi")), through(t, s, sharedClaim("b", "1Gi"))
	v, r, q := through(t, s, sharedVolume("a", "1Gi")), through(t, s, sharedRecord("a", "fast")), through(t, s, sharedRecord("b", "fast"))
	same := func(what string, x, y any) {
		t.Helper()
		if reflect.ValueOf(x).Pointer() != reflect.ValueOf(y).Pointer() {
			t.Errorf("%s is not shared", what)
		}
	}
	same("a size of two claims", a.Spec.Resources.Requests, b.Spec.Resources.Requests)
	same("a size of request and status", a.Spec.Resources.Requests, b.Status.Capacity)
	same("a size of claim and volume", a.Spec.Resources.Requests, v.Spec.Capacity)
	same("the annotations", a.Annotations, b.Annotations)
	same("the class", a.Spec.StorageClassName, b.Spec.StorageClassName)
	same("the access modes", a.Spec.AccessModes, r.Spec.AccessModes)
	same("the snapshot of the class", r.Spec.ClassSnapshot.Raw, q.Spec.ClassSnapshot.Raw)
	if maps.Equal(a.Labels, b.Labels) {
		t.Error("labels that differ have become the same")
	}
}

func TestSizesThatAreWrittenInOtherUnitsStayAsTheyAre(t *testing.T) {
	s := &Sharing{}
	through(t, s, sharedClaim("a", "1Gi"))
	c := through(t, s, sharedClaim("b", "1073741824"))
	if size := c.Spec.Resources.Requests[corev1.ResourceStorage]; size.Format != resource.DecimalSI {
		t.Errorf("1073741824 has become %s", size.Format)
	}
}

func TestNoValueCanBeTakenForTwo(t *testing.T) {
	s := &Sharing{}
	for _, annotations := range []map[string]string{
		{"a": "yes\x00bound\x00yes"}, {"a": "yes", "bound": "yes"}, {"a": "3:yes5:bound3:yes"}, {"a": "", "b": "1"}, {"a": "1", "b": ""},
	} {
		c := sharedClaim("a", "1Gi")
		c.Annotations = maps.Clone(annotations)
		c.Finalizers = slices.Sorted(maps.Values(annotations))
		want := c.DeepCopy()
		if got := through(t, s, c); !reflect.DeepEqual(got, want) {
			t.Errorf("annotations %q and finalizers %q became %q and %q", want.Annotations, want.Finalizers, got.Annotations, got.Finalizers)
		}
	}
}

func TestALongPartIsNotRemembered(t *testing.T) {
	s := &Sharing{}
	long := sharedClaim("a", "1Gi")
	long.Annotations["kubectl.kubernetes.io/last-applied-configuration"] = string(make([]byte, longestPart))
	through(t, s, long)
	if n := len(s.maps.known); n != 1 { // the labels
		t.Errorf("%d maps are remembered, want 1", n)
	}
}
