package plan

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appspec "tarn.dev/tarn/internal/app/spec"
)

// gi is a GiB in bytes.
const gi = 1 << 30

// World is an application and the objects around it.
type World struct {
	// App is the application; never nil.
	App *tarnv1.App
	// Claims are the claims with the label of the application, and those that only have a name
	// which it wants. They are keyed by name.
	Claims map[string]*corev1.PersistentVolumeClaim
	// Classes are the storage classes that a decision needs, by name.
	Classes map[string]*storagev1.StorageClass
	// Hidden are the names of classes that the caller may not read. The controller may read them,
	// and decides what they allow.
	Hidden map[string]bool
	// Defaults are the classes of volumes that name none, by access mode.
	Defaults map[appspec.AccessMode]string
}

// Owned says whether a claim is a volume of an application.
func Owned(claim *corev1.PersistentVolumeClaim, app, volume string) bool {
	return claim.Labels[tarnv1.LabelApp] == app && claim.Labels[tarnv1.LabelAppVolume] == volume
}

// claim returns the claim of a volume, nil if there is none, and whether it is the application's.
func (w World) claim(volume string) (claim *corev1.PersistentVolumeClaim, ours bool) {
	claim = w.Claims[appspec.ClaimName(w.App.Name, volume)]
	return claim, claim != nil && Owned(claim, w.App.Name, volume)
}

// wanted returns a volume of the spec, nil if there is none.
func (w World) wanted(name string) *tarnv1.AppVolume {
	i := slices.IndexFunc(w.App.Spec.Volumes, func(v tarnv1.AppVolume) bool { return v.Name == name })
	if i < 0 {
		return nil
	}
	return &w.App.Spec.Volumes[i]
}

// ClassName returns the class of a volume that is not created yet.
func (w World) ClassName(v tarnv1.AppVolume) string {
	if v.StorageClass != "" {
		return v.StorageClass
	}
	if v.AccessMode == corev1.ReadWriteMany {
		return w.Defaults[appspec.ReadWriteMany]
	}
	return w.Defaults[appspec.ReadWriteOnce]
}

// longMode returns an access mode as Kubernetes spells it.
func longMode(mode appspec.AccessMode) corev1.PersistentVolumeAccessMode {
	if mode == appspec.ReadWriteMany {
		return corev1.ReadWriteMany
	}
	return corev1.ReadWriteOnce
}

// ModeOf returns the most permissive access mode of a live claim.
func ModeOf(claim *corev1.PersistentVolumeClaim) corev1.PersistentVolumeAccessMode {
	for _, m := range []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany, corev1.ReadOnlyMany, corev1.ReadWriteOnce} {
		if slices.Contains(claim.Spec.AccessModes, m) {
			return m
		}
	}
	if len(claim.Spec.AccessModes) > 0 {
		return claim.Spec.AccessModes[0]
	}
	return corev1.ReadWriteOnce
}

// Single says whether an access mode limits an application to one pod.
func Single(mode corev1.PersistentVolumeAccessMode) bool {
	return mode == corev1.ReadWriteOnce || mode == corev1.ReadWriteOncePod
}

// ClassOf returns the class of a live claim, empty if it has none.
func ClassOf(claim *corev1.PersistentVolumeClaim) string {
	if claim.Spec.StorageClassName == nil {
		return ""
	}
	return *claim.Spec.StorageClassName
}

// requested is the size that a claim requests, in bytes; capacity is the size that it has.
func requested(claim *corev1.PersistentVolumeClaim) int64 {
	return bytes(claim.Spec.Resources.Requests)
}

func capacity(claim *corev1.PersistentVolumeClaim) int64 { return bytes(claim.Status.Capacity) }

func bytes(list corev1.ResourceList) int64 {
	quantity, ok := list[corev1.ResourceStorage]
	if !ok {
		quantity = resource.Quantity{}
	}
	return quantity.Value()
}

// current returns the size below which a volume can never shrink, in bytes.
func current(claim *corev1.PersistentVolumeClaim) int64 {
	return max(requested(claim), capacity(claim))
}

// inGi rounds bytes up to GiB.
func inGi(bytes int64) int64 { return (bytes + gi - 1) / gi }

// CheckNamespace rejects a name that is not valid for a namespace.
func CheckNamespace(namespace string) error {
	if len(validation.IsDNS1123Label(namespace)) > 0 {
		return Errorf(Invalid, "namespace %q is not a valid name: write lower-case letters, digits and -, at most 63", namespace)
	}
	return nil
}

// CheckNames rejects names that are not valid for a namespace or for an application's id.
func CheckNames(namespace, id string) error {
	if err := CheckNamespace(namespace); err != nil {
		return err
	}
	if len(id) > appspec.LongestName || len(validation.IsDNS1123Label(id)) > 0 {
		return Errorf(Invalid, "app id %q is not a valid name: write lower-case letters, digits and -, beginning and ending with a letter or digit, at most %d", id, appspec.LongestName)
	}
	return nil
}

// CheckVolume does what CheckNames does, and rejects a name that is not valid for a volume.
func CheckVolume(namespace, id, volume string) error {
	if err := CheckNames(namespace, id); err != nil {
		return err
	}
	if len(validation.IsDNS1123Label(volume)) > 0 {
		return Errorf(Invalid, "volume name %q is not a valid name: write lower-case letters, digits and -, beginning and ending with a letter or digit", volume)
	}
	return nil
}

// ClassNames returns the names of the storage classes that a decision needs. They are the classes
// of the existing claims, and of the claims that file, nil for none, would create.
func (w World) ClassNames(file *appspec.File) []string {
	all := map[string]bool{}
	for _, claim := range w.Claims {
		all[ClassOf(claim)] = true
	}
	if file != nil {
		for _, v := range file.Volumes {
			all[w.ClassName(tarnv1.AppVolume{StorageClass: v.StorageClass, AccessMode: longMode(v.AccessMode)})] = true
		}
	}
	delete(all, "")
	return slices.Sorted(maps.Keys(all))
}
