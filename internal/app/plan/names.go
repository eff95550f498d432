package plan

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appspec "tarn.dev/tarn/internal/app/spec"
)

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
