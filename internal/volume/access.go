package volume

import (
	"math/bits"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Access is a set of access modes. Its zero is the empty set.
type Access uint8

// modeNames are the access modes in their canonical order, with their short names.
var modeNames = []struct {
	mode  corev1.PersistentVolumeAccessMode
	short string
}{
	{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"},
	{corev1.ReadWriteMany, "RWX"}, {corev1.ReadWriteOncePod, "RWOP"},
}

// unknownMode stands for any mode without a name here. Only another unknown mode satisfies it, and
// the API server rejects those.
const unknownMode Access = 1 << 7

// AccessOf is the set of a list of access modes. Order and repetitions do not matter.
func AccessOf(modes []corev1.PersistentVolumeAccessMode) Access {
	var set Access
	for _, mode := range modes {
		set |= accessBit(mode)
	}
	return set
}

func accessBit(mode corev1.PersistentVolumeAccessMode) Access {
	for i, known := range modeNames {
		if mode == known.mode {
			return 1 << i
		}
	}
	return unknownMode
}

// OnlyRead says whether a volume must be staged read-only, whatever its pods ask for. That is so if
// its only access mode is ReadOnlyMany, or if its CSI source is read-only.
func OnlyRead(v *corev1.PersistentVolume) bool {
	return AccessOf(v.Spec.AccessModes) == AccessOf([]corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}) || v.Spec.CSI != nil && v.Spec.CSI.ReadOnly
}

// Has says whether a set has every mode of another.
func (a Access) Has(wanted Access) bool { return a&wanted == wanted }

// Len is how many modes a set has.
func (a Access) Len() int { return bits.OnesCount8(uint8(a)) }

// String gives the short names of the modes, such as "RWO,ROX".
func (a Access) String() string {
	var names []string
	for i, known := range modeNames {
		if a&(1<<i) != 0 {
			names = append(names, known.short)
		}
	}
	if a&unknownMode != 0 {
		names = append(names, "?")
	}
	return strings.Join(names, ",")
}
