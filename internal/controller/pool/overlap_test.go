package pool

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

func (m *model) setsNow() []tarnv1.PersistentVolumeSet {
	var sets []tarnv1.PersistentVolumeSet
	for _, one := range m.all {
		if one.set != nil {
			sets = append(sets, *one.set.DeepCopy())
		}
	}
	return sets
}

// introduce fills in the neighbours of a view from the other sets of a moment.
func (at moment) introduce(v *View) {
	_ = v.meet(at.sets, at.claims, func(selector map[string]string) ([]corev1.PersistentVolume, error) {
		return slices.DeleteFunc(slices.Clone(at.volumes), func(vol corev1.PersistentVolume) bool {
			return !labels.SelectorFromSet(selector).Matches(labels.Set(vol.Labels))
		}), nil
	})
}

// totalOf is how many volumes a set counts, in any state.
func (m *model) totalOf(s *tarnv1.PersistentVolumeSet) int32 {
	var total int32
	for _, vol := range m.volumes {
		if volume.Selects(s, vol) {
			total++
		}
	}
	for _, c := range m.claims {
		if vol := m.volumes[c.Spec.VolumeName]; vol != nil && volume.Selects(s, vol) {
			continue
		}
		for _, one := range m.all {
			if one.set != nil && strings.HasPrefix(c.Name, fillerPrefix(one.set.UID)) && sees(s, one.set) {
				total++
			}
		}
	}
	return total
}

// counting are the sets that count what this one makes, including itself.
func (m *model) counting() []*tarnv1.PersistentVolumeSet {
	var sets []*tarnv1.PersistentVolumeSet
	for _, one := range m.all {
		if one.set != nil && one.set.DeletionTimestamp == nil && sees(one.set, m.set) {
			sets = append(sets, one.set)
		}
	}
	return sets
}

// mustHaveRoom reports an order that exceeds the maximum of any set.
func (m *model) mustHaveRoom() {
	for _, s := range m.counting() {
		if total, most := m.totalOf(s), s.Spec.MaximumReplicas; total > most {
			m.fail("%s orders volume %d of the at most %d of %s", m.set.Name, total, most, s.Name)
		}
	}
}

// free is how many more volumes a set may order.
func (m *model) free() int32 {
	free := m.set.Spec.MaximumReplicas
	for _, s := range m.counting() {
		free = min(free, s.Spec.MaximumReplicas-m.totalOf(s))
	}
	return free
}

// ofAnother reports whether a volume was made for another existing set.
func (m *model) ofAnother(vol *corev1.PersistentVolume) bool {
	return slices.ContainsFunc(m.all, func(one *model) bool {
		return one != m && one.set != nil && vol.Annotations[tarnv1.AnnotationPoolUID] == string(one.set.UID)
	})
}

// mustHaveReason reports when sets affect each other although nothing was changed.
func (m *model) mustHaveReason(matters bool, what string) {
	if matters && m.calm && m.set.DeletionTimestamp == nil {
		m.fail("%s by %s, and nobody has changed anything", what, m.set.Name)
	}
}

// mustBeItsOwn reports a set that gives up a volume of another, or one that had to stay.
func (m *model) mustBeItsOwn(vol *corev1.PersistentVolume) {
	m.mustHaveReason(true, "volume "+vol.Name+" is given up")
	if m.ofAnother(vol) {
		m.fail("volume %s is given up by %s, and is another's", vol.Name, m.set.Name)
	}
	if m.set.DeletionTimestamp != nil && m.set.Annotations[tarnv1.AnnotationOrphan] == "true" {
		m.fail("volume %s is given up by %s, whose spares stay when it goes", vol.Name, m.set.Name)
	}
}

// mustHaveEnded reports a deleted set that leaves unused spares behind. A spare that was
// recycled and became Available after the set's last read does not count.
func (m *model) mustHaveEnded() {
	for _, vol := range m.volumes {
		if at := vol.Status.LastPhaseTransitionTime; !marked(vol) && !m.looked.IsZero() && at != nil && !at.Time.Before(m.looked) {
			continue
		}
		if madeBy(m.set, vol) && volume.Selects(m.set, vol) && stateOf(vol, testNamespace) == spare && !m.written[vol.Name] && !m.holders[vol.Name] &&
			!volume.DeletionProtected(vol) && m.set.Annotations[tarnv1.AnnotationOrphan] != "true" {
			m.fail("%s is gone, and its spare %s is left", m.set.Name, vol.Name)
		}
	}
}

// meanwhile are reconciles of other sets. If they share volumes with this set, one that orders
// or gives up waits until this one is done.
func (r *run) meanwhile() []func() {
	var steps []func()
	for _, one := range r.team {
		if one != r && one.set != nil {
			steps = append(steps, func() {
				if one.set != nil && !plan(one.view(one.now()), r.clock()).Grave {
					one.reconcile(true, false)
				}
			})
		}
	}
	return steps
}

// newTeam makes two or three sets whose selectors may select what the others make.
func newTeam(t *rapid.T) []*run {
	keys := []string{"pool", "tier", "zone"}
	some := func(from []string, name string) map[string]string {
		chosen := map[string]string{}
		for _, key := range from {
			if rapid.Bool().Draw(t, name) {
				chosen[key] = map[string]string{"pool": testSet, "tier": "1", "zone": "z"}[key]
			}
		}
		return chosen
	}
	var sets []*tarnv1.PersistentVolumeSet
	for i := range rapid.IntRange(2, 3).Draw(t, "sets") {
		s := setOf(i)
		s.Spec.MaximumReplicas = int32(rapid.IntRange(0, 5).Draw(t, "maximum"))
		s.Spec.MinimumReplicas = int32(rapid.IntRange(0, int(s.Spec.MaximumReplicas)).Draw(t, "minimum"))
		s.Spec.Selector = some(keys, "selects")
		if len(s.Spec.Selector) == 0 {
			s.Spec.Selector["pool"] = testSet
		}
		s.Spec.Template.Metadata.Labels = merge(some(keys, "carries"), s.Spec.Selector)
		if rapid.Bool().Draw(t, "recycles") {
			asksToRecycle(s)
		}
		sets = append(sets, s)
	}
	return teamOf(t, sets)
}

func setOf(i int) *tarnv1.PersistentVolumeSet {
	s := set(2, 4)
	s.Name, s.UID, s.Finalizers = fmt.Sprintf("set-%d", i), types.UID(fmt.Sprintf("uid-%d", i)), nil
	return s
}

// teamOf has a controller for each set, all in one cluster.
func teamOf(t *rapid.T, sets []*tarnv1.PersistentVolumeSet) []*run {
	waits, calm := rapid.Bool().Draw(t, "waits"), rapid.Bool().Draw(t, "calm")
	var team []*run
	var all []*model
	for i, s := range sets {
		m := newModel(s, waits)
		if m.calm = calm; i > 0 {
			first := *all[0]
			first.set = s
			m = &first
		}
		all, team = append(all, m), append(team, newRun(t, m))
	}
	for _, r := range team {
		r.all, r.team = all, team
	}
	team[0].remember()
	return team
}

// work runs the controllers of all sets, the tenants and the administrators for a while.
func work(t *rapid.T, team []*run, rounds int) {
	for range rapid.IntRange(1, rounds).Draw(t, "rounds") {
		r := team[rapid.IntRange(0, len(team)-1).Draw(t, "whose")]
		round := rapid.IntRange(0, 9).Draw(t, "round")
		switch {
		case round == 0 && !r.calm && r.set != nil && r.set.DeletionTimestamp == nil:
			r.change()
		case round <= 3 || r.set == nil:
			r.others()
		default:
			r.reconcile(false, true)
		}
	}
}

func TestPoolsThatShareVolumesKeepTheirPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		team := newTeam(t)
		work(t, team, 40)
		team[0].settle()
		for _, r := range team {
			r.checkFull()
		}
		// The sets are deleted one after the other, while tenants come and go.
		for left := slices.Clone(team); len(left) > 0; {
			i := rapid.IntRange(0, len(left)-1).Draw(t, "goes")
			r := left[i]
			left = slices.Delete(left, i, i+1)
			for _, one := range team {
				one.calm = false
			}
			if rapid.Bool().Draw(t, "orphan") {
				r.set.Annotations = map[string]string{tarnv1.AnnotationOrphan: "true"}
			}
			r.set.DeletionTimestamp = &anHourAgo
			team[0].remember()
			work(t, team, 15)
			team[0].settle()
			r.checkGone()
			for _, one := range left {
				one.checkFull()
			}
		}
		team[0].checkEnded()
	})
}

// Each set counts what the next one makes, and no set counts both. If a set made one volume too
// many for the set before it, that set would give up one of its own. The set before that would
// then make another, and so on round the circle.
func TestSetsInACircleComeToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := []string{"pool", "tier", "zone"}
		var sets []*tarnv1.PersistentVolumeSet
		for i, key := range keys {
			s := setOf(i)
			s.Spec.MaximumReplicas = int32(rapid.IntRange(1, 3).Draw(t, "maximum"))
			s.Spec.MinimumReplicas = int32(rapid.IntRange(1, int(s.Spec.MaximumReplicas)).Draw(t, "minimum"))
			s.Spec.Selector = map[string]string{key: "a"}
			s.Spec.Template.Metadata.Labels = map[string]string{key: "a", keys[(i+1)%3]: "a"}
			sets = append(sets, s)
		}
		team := teamOf(t, sets)
		team[0].settle()
		for _, r := range team {
			r.checkFull()
		}
	})
}

// checkGone expects the set to be gone, with nothing of it left half-done.
func (r *run) checkGone() {
	r.never()
	if r.set != nil || r.filler != nil {
		r.t.Fatalf("left: set %v, class %v", r.set != nil, r.filler != nil)
	}
	for name := range maps.Keys(r.claims) {
		r.t.Errorf("filler claim %s is left", name)
	}
}
