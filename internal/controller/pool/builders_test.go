package pool

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

const (
	testNamespace = "tarn-system"
	testSet       = "gold"
	testClass     = "fast"
)

var testTime = testkit.Noon

// set builds a set that has its finalizer.
func set(minimum, maximum int32, changes ...testkit.With[*tarnv1.PersistentVolumeSet]) *tarnv1.PersistentVolumeSet {
	s := &tarnv1.PersistentVolumeSet{
		ObjectMeta: metav1.ObjectMeta{Name: testSet, UID: "set-uid", Finalizers: []string{tarnv1.FinalizerPool}, Generation: 1},
		Spec: tarnv1.PersistentVolumeSetSpec{
			MinimumReplicas: minimum, MaximumReplicas: maximum, Selector: map[string]string{"pool": testSet},
			Template: tarnv1.PersistentVolumeSetTemplate{
				Metadata: tarnv1.PersistentVolumeSetTemplateMetadata{Labels: map[string]string{"pool": testSet, "tier": "1"}},
				Spec: corev1.PersistentVolumeSpec{
					StorageClassName: testClass, Capacity: testkit.Storage("1Gi"),
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				},
			},
		},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

// volumeOf builds a volume of the set's current template: a spare that no claim has drawn.
func volumeOf(s *tarnv1.PersistentVolumeSet, name string, changes ...testkit.With[*corev1.PersistentVolume]) *corev1.PersistentVolume {
	vol := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1", Labels: map[string]string{"pool": testSet, "tier": "1"},
			Annotations: map[string]string{
				tarnv1.AnnotationPoolUID: string(s.UID), tarnv1.AnnotationPoolTemplate: hashOf(&s.Spec.Template),
				tarnv1.AnnotationPoolUnused: testTime.Format(time.RFC3339), volume.AnnProvisionedBy: testClass,
			},
		},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: testClass, Capacity: testkit.Storage("1Gi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable, LastPhaseTransitionTime: ptr.To(metav1.NewTime(testTime))},
	}
	for _, change := range changes {
		change(vol)
	}
	return vol
}

func of(size string) testkit.With[*corev1.PersistentVolume] {
	return func(vol *corev1.PersistentVolume) { vol.Spec.Capacity = testkit.Storage(size) }
}

var ofOldTemplate = annotated(tarnv1.AnnotationPoolTemplate, "old")

func protected(vol *corev1.PersistentVolume) { vol.Labels[tarnv1.LabelDeletionProtection] = "true" }

func retained(vol *corev1.PersistentVolume) {
	vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
}

// annotated gives a volume an annotation; "" removes it.
func annotated(key, value string) testkit.With[*corev1.PersistentVolume] {
	return func(vol *corev1.PersistentVolume) {
		if vol.Annotations[key] = value; value == "" {
			delete(vol.Annotations, key)
		}
	}
}

// ofSet makes a volume belong to another set.
func ofSet(uid string) testkit.With[*corev1.PersistentVolume] {
	return annotated(tarnv1.AnnotationPoolUID, uid)
}

// made sets the creation time of a volume.
func made(at time.Time) testkit.With[*corev1.PersistentVolume] {
	return func(vol *corev1.PersistentVolume) { vol.CreationTimestamp = metav1.NewTime(at) }
}

func byHand(vol *corev1.PersistentVolume) { vol.Annotations = nil }

// boundTo binds a volume to a claim with this UID.
func boundTo(uid types.UID) testkit.With[*corev1.PersistentVolume] {
	return func(vol *corev1.PersistentVolume) {
		vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "tenant", Name: "data", UID: uid}
		vol.Status.Phase = corev1.VolumeBound
	}
}

func in(phase corev1.PersistentVolumePhase) testkit.With[*corev1.PersistentVolume] {
	return func(vol *corev1.PersistentVolume) { vol.Status.Phase = phase }
}

// fillerOf binds a volume to the filler claim of a slot and marks it.
func fillerOf(slot int) testkit.With[*corev1.PersistentVolume] {
	return func(vol *corev1.PersistentVolume) {
		uid := fmt.Sprintf("filler-%d", slot)
		vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: testNamespace, Name: fmt.Sprintf("pool-set-uid-%d", slot), UID: types.UID(uid)}
		vol.Annotations[tarnv1.AnnotationPoolFilling] = uid
		vol.Annotations[tarnv1.AnnotationPoolPolicy] = string(corev1.PersistentVolumeReclaimDelete)
		vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		vol.Status.Phase = corev1.VolumeBound
		delete(vol.Annotations, tarnv1.AnnotationPoolUnused)
	}
}

// unmarked removes the mark: the volume is as its provisioner has made it.
func unmarked(vol *corev1.PersistentVolume) {
	vol.Labels = nil
	vol.Annotations = map[string]string{volume.AnnProvisionedBy: testClass}
	vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	vol.Spec.StorageClassName = "tarn-pool-" + testSet
}

// filler builds the filler claim of a slot, bound to a volume; "" means unbound.
func filler(s *tarnv1.PersistentVolumeSet, slot int, volumeName string, changes ...testkit.With[*corev1.PersistentVolumeClaim]) corev1.PersistentVolumeClaim {
	claim := fillerClaim(&View{Set: s, Namespace: testNamespace}, slot, "")
	claim.UID, claim.Status.Phase = types.UID(fmt.Sprintf("filler-%d", slot)), corev1.ClaimPending
	if volumeName != "" {
		claim.Spec.VolumeName, claim.Status.Phase = volumeName, corev1.ClaimBound
	}
	for _, change := range changes {
		change(claim)
	}
	return *claim
}

// view builds the View of a set whose class exists and binds immediately.
func view(s *tarnv1.PersistentVolumeSet, volumes ...*corev1.PersistentVolume) *View {
	class := testkit.Class(testClass)
	v := &View{
		Set: s, Namespace: testNamespace, PauseImage: DefaultPauseImage, Burst: modelBurst, Class: class, Filler: fillerClass(s, class),
		Fresh: map[string]*corev1.PersistentVolume{}, Failures: map[string]string{},
		Claimed: map[string]bool{}, Sets: map[string]bool{string(s.UID): true, "other": true},
	}
	for _, vol := range volumes {
		if vol.Labels["pool"] == testSet {
			v.Volumes = append(v.Volumes, *vol)
		} else {
			v.Fresh[vol.Name] = vol
		}
	}
	return v
}

func waitsForConsumer(v *View) *View {
	v.Class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
	v.Filler = fillerClass(v.Set, v.Class)
	return v
}
