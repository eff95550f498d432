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

// Neighbours are what other sets have to do with this one. The selector of a set may
// select what another makes. A maximum is a promise about all volumes of a selector, so
// nothing is ordered that would be one too many for any set: else one would make what
// another has to give up, and three in a circle would do so for ever.
type Neighbours struct {
	// Limits are the sets that count what this one makes.
	Limits []Limit
	// Coming is how many volumes others are having made that this set will count, Going
	// how many of that kind they have taken back.
	Coming, Going int32
	// Any says that there is such a set, in either direction.
	Any bool
}

// Limit is a set that counts what another makes: how many volumes it allows, and how
// many there are and are being made.
type Limit struct {
	Name           string
	Maximum, Total int32
}

// sees says that a set counts the volumes that another makes, by their labels.
func sees(set, maker *tarnv1.PersistentVolumeSet) bool {
	return labels.SelectorFromSet(set.Spec.Selector).Matches(labels.Set(maker.Spec.Template.Metadata.Labels))
}

// meet finds out what others have to do with the view's set. claims are all there are
// of fillers, selected gives the volumes of a selector.
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
			continue // one that goes wants nothing any more
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

// unmade counts the filler claims of a set whose volumes are not among those given, and
// apart those that are being deleted.
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

// room is how many more volumes may be ordered: for the set itself, and for those that
// count them too.
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

// concernsNeighbour: what becomes of a set concerns those that share volumes with it.
func concernsNeighbour(set *tarnv1.PersistentVolumeSet, o client.Object) bool {
	other, ok := o.(*tarnv1.PersistentVolumeSet)
	return ok && other.UID != set.UID && (sees(set, other) || sees(other, set))
}
