package pool

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// Neighbours describe how other sets interact with this one. The selector of a set may select
// volumes that another set makes. maximumReplicas limits all volumes of a selector. So no set
// orders a volume that would exceed the maximum of any set. Otherwise one set would make what
// another gives up, and three sets in a circle would do that for ever.
type Neighbours struct {
	// Limits are the sets that count the volumes of this one.
	Limits []Limit
	// Coming is how many volumes that this set will count are being made for others. Going is
	// how many such volumes the others have taken back.
	Coming, Going int32
	// Any means that such a set exists, in either direction.
	Any bool
}

// Limit is a set that counts what another makes. It has how many volumes that set allows, and
// how many exist or are being made.
type Limit struct {
	Name           string
	Maximum, Total int32
}

// sees reports whether a set counts the volumes that another makes, by their labels.
func sees(set, maker *tarnv1.PersistentVolumeSet) bool {
	return labels.SelectorFromSet(set.Spec.Selector).Matches(labels.Set(maker.Spec.Template.Metadata.Labels))
}

// meet computes the view's Neighbours. claims are all filler claims; selected returns the
// volumes of a selector.
func (v *View) meet(sets []tarnv1.PersistentVolumeSet, claims []corev1.PersistentVolumeClaim, selected func(map[string]string) ([]corev1.PersistentVolume, error)) error {
	v.Sets, v.Neighbours = map[string]bool{}, Neighbours{}
	for i := range sets {
		other := &sets[i]
		v.Sets[string(other.UID)] = true
		if other.UID == v.Set.UID {
			continue
		}
		makesOurs, seesOurs := sees(v.Set, other), sees(other, v.Set)
		v.Neighbours.Any = v.Neighbours.Any || makesOurs || seesOurs
		if makesOurs {
			coming, going := unmade(other, claims, v.Volumes)
			v.Neighbours.Coming, v.Neighbours.Going = v.Neighbours.Coming+coming, v.Neighbours.Going+going
		}
		if !seesOurs || other.DeletionTimestamp != nil {
			continue // a set that is being deleted makes nothing any more
		}
		volumes, err := selected(other.Spec.Selector)
		if err != nil {
			return err
		}
		limit := Limit{other.Name, other.Spec.MaximumReplicas, int32(len(volumes))}
		for j := range sets {
			if sees(other, &sets[j]) {
				coming, going := unmade(&sets[j], claims, volumes)
				limit.Total += coming + going
			}
		}
		v.Neighbours.Limits = append(v.Neighbours.Limits, limit)
	}
	return nil
}

// unmade counts the filler claims of a set whose volumes are not in the given list. It counts
// those that are being deleted separately.
func unmade(set *tarnv1.PersistentVolumeSet, claims []corev1.PersistentVolumeClaim, volumes []corev1.PersistentVolume) (coming, going int32) {
	for i := range claims {
		c := &claims[i]
		made := func(vol corev1.PersistentVolume) bool {
			return vol.Name == c.Spec.VolumeName || vol.Spec.ClaimRef != nil && vol.Spec.ClaimRef.UID == c.UID
		}
		switch {
		case !strings.HasPrefix(c.Name, fillerPrefix(set.UID)), slices.ContainsFunc(volumes, made):
		case c.DeletionTimestamp == nil:
			coming++
		default:
			going++
		}
	}
	return coming, going
}

// room is how many more volumes may be ordered under the maximum of the set itself and of the
// sets that count them too.
func room(v *View, n counts) int32 {
	free := v.Set.Spec.MaximumReplicas - n.total
	for _, l := range v.Neighbours.Limits {
		free = min(free, l.Maximum-l.Total)
	}
	return free
}

// limitedText names the sets that leave no room.
func limitedText(v *View) string {
	var text strings.Builder
	for _, l := range v.Neighbours.Limits {
		if l.Total >= l.Maximum {
			fmt.Fprintf(&text, "; PersistentVolumeSet %s, whose selector selects these volumes too, has %d volumes and maximumReplicas %d; raise its maximumReplicas, or change the labels of spec.template", l.Name, l.Total, l.Maximum)
		}
	}
	return text.String()
}

// concernsNeighbour reports whether a changed object is a set that shares volumes with this
// set.
func concernsNeighbour(set *tarnv1.PersistentVolumeSet, o client.Object) bool {
	other, ok := o.(*tarnv1.PersistentVolumeSet)
	return ok && other.UID != set.UID && (sees(set, other) || sees(other, set))
}
