package pool

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// run is a controller at work on a model. Its caches lag, each kind by itself, and never go
// back.
type run struct {
	*model
	t       *rapid.T
	history []moment
	seen    [7]int
	// team are the controllers of all sets of the cluster.
	team []*run
}

func newRun(t *rapid.T, m *model) *run {
	r := &run{model: m, t: t}
	r.team = []*run{r}
	return r
}

// behind picks a moment no older than the last one picked for this kind.
func (r *run) behind(kind int) moment {
	r.seen[kind] = rapid.IntRange(r.seen[kind], len(r.history)-1).Draw(r.t, "cache")
	return r.history[r.seen[kind]]
}

func (r *run) remember() {
	for _, one := range r.team {
		one.history = append(one.history, one.now())
	}
}

func (r *run) cached() moment {
	return moment{r.behind(0).set, r.behind(1).filler, r.behind(2).claims, r.behind(3).pods, r.behind(4).volumes, r.behind(5).tenants, r.behind(6).sets}
}

// live reads one list after the other, as the controller does, while the cluster continues.
func (r *run) live() moment {
	at := r.now()
	r.others()
	at.volumes = r.volumesNow()
	r.others()
	at.tenants, at.sets = maps.Clone(r.tenants), r.setsNow()
	return at
}

// others lets the rest of the cluster take some of its steps.
func (r *run) others() {
	for range rapid.IntRange(0, 3).Draw(r.t, "steps") {
		steps := append(r.steps(), r.meanwhile()...)
		for _, name := range slices.Sorted(maps.Keys(r.volumes)) {
			vol := r.volumes[name]
			steps = append(steps, func() { r.draw(vol) }, func() { r.leave(vol) }, func() { r.reuse(vol) }, func() { r.lose(vol) }, func() { r.spoil(vol) }, func() { r.seize(vol) })
		}
		if len(steps) > 0 {
			rapid.SampledFrom(steps).Draw(r.t, "other")()
			r.remember()
		}
	}
}

// reconcile is one reconcile of the controller, which may be killed after any of its writes.
// fresh caches are those of a cluster at rest.
func (r *run) reconcile(fresh, faults bool) (wrote int) {
	at := r.now()
	if !fresh {
		at = r.cached()
	}
	p := plan(r.view(at), r.clock())
	if p.Grave {
		r.looked = r.clock()
		at = r.now()
		if !fresh {
			at = r.live()
		}
		p = plan(r.view(at), r.clock())
	}
	actions := p.Actions
	if !p.Ended {
		actions = append(actions, report(r.view(at), testTime)...)
	}
	for _, a := range actions {
		several, ok := a.(action.Together)
		if !ok {
			several = action.Together{a}
		}
		n, killed := r.write(several, faults)
		wrote += n
		if killed {
			break
		}
	}
	return wrote
}

// write does actions up to the first that fails. A write may be rejected, or be made while its
// answer is lost.
func (r *run) write(actions action.Together, faults bool) (wrote int, killed bool) {
	for _, a := range actions {
		if faults {
			r.others()
		}
		if _, told := a.(action.Emit); told || r.set == nil {
			continue
		}
		fate := 9
		if faults {
			fate = rapid.IntRange(0, 9).Draw(r.t, "fate")
		}
		if fate == 0 {
			break
		}
		if err := r.do(a); err != nil {
			break
		}
		wrote++
		r.remember()
		if fate == 1 {
			break
		}
		if faults && rapid.IntRange(0, 9).Draw(r.t, "killed") == 0 {
			return wrote, true
		}
	}
	return wrote, false
}

// settle lets everything come to rest. No claim draws or leaves any more, and nothing fails.
func (r *run) settle() {
	for range 1000 {
		idle := true
		for _, one := range r.team {
			one.broken = false
			idle = (one.set == nil || one.reconcile(true, false) == 0) && idle
		}
		steps := r.steps()
		if idle && len(steps) == 0 && !r.waitsForBurst() {
			return
		}
		for _, step := range steps {
			step()
		}
		r.remember()
	}
	for _, one := range r.team {
		if one.set != nil {
			r.t.Errorf("it does not come to rest: %s does %s", one.set.Name, did(plan(one.view(one.now()), r.clock())))
		}
	}
	r.t.FailNow()
}

// waitsForBurst advances the time until all sets may order volumes again. It reports whether
// any had to wait.
func (r *run) waitsForBurst() (any bool) {
	for _, one := range r.team {
		if one.set == nil || one.set.DeletionTimestamp != nil {
			continue
		}
		v := one.view(one.now())
		for ends := burstEnds(v, count(v), r.clock()); ends.After(r.clock()); any = true {
			*r.serial++
		}
	}
	return any
}

// change is a change by an administrator.
func (r *run) change() {
	s := r.set
	switch rapid.IntRange(0, 8).Draw(r.t, "change") {
	case 0:
		s.Spec.MaximumReplicas = int32(rapid.IntRange(0, 8).Draw(r.t, "maximum"))
		s.Spec.MinimumReplicas = min(s.Spec.MinimumReplicas, s.Spec.MaximumReplicas)
	case 1:
		s.Spec.MinimumReplicas = int32(rapid.IntRange(0, int(s.Spec.MaximumReplicas)).Draw(r.t, "minimum"))
	case 2:
		s.Spec.Template.Spec.Capacity = testkit.Storage(rapid.SampledFrom([]string{"1Gi", "2Gi", "3Gi"}).Draw(r.t, "size"))
	case 3:
		s.Spec.Template.Spec.PersistentVolumeReclaimPolicy = rapid.SampledFrom([]corev1.PersistentVolumeReclaimPolicy{
			"", corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain}).Draw(r.t, "policy")
	case 4:
		name := "hand-" + r.next()
		r.volumes[name] = volumeOf(s, name, byHand, in(corev1.VolumePending))
		r.written[name] = true
	case 7:
		r.broken = !r.broken
	case 5, 6, 8:
		if names := slices.Sorted(maps.Keys(r.volumes)); len(names) > 0 {
			vol := r.volumes[rapid.SampledFrom(names).Draw(r.t, "volume")]
			rapid.SampledFrom([]func(*corev1.PersistentVolume){r.guard, r.erase, r.ask, r.move}).Draw(r.t, "to a volume")(vol)
		}
	}
	r.remember()
}

// guard is an administrator who protects a volume, erase one who deletes it before it is in the
// pool.
func (m *model) guard(vol *corev1.PersistentVolume) {
	vol.Labels = merge(vol.Labels, map[string]string{tarnv1.LabelDeletionProtection: "true"})
	m.touch(vol, vol.Status.Phase)
}

func (m *model) erase(vol *corev1.PersistentVolume) {
	if isFilling(vol) && !volume.DeletionProtected(vol) && vol.DeletionTimestamp == nil {
		vol.DeletionTimestamp = m.since()
		m.touch(vol, vol.Status.Phase)
	}
}

// move deletes the node of a volume, or brings it back.
func (m *model) move(vol *corev1.PersistentVolume) { m.lost[vol.Name] = !m.lost[vol.Name] }

func TestAPoolKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := set(2, 4)
		s.Spec.MaximumReplicas = int32(rapid.IntRange(0, 16).Draw(t, "maximum"))
		s.Spec.MinimumReplicas = int32(rapid.IntRange(0, int(s.Spec.MaximumReplicas)).Draw(t, "minimum"))
		s.Finalizers = nil
		recycles := rapid.Bool().Draw(t, "recycles")
		if recycles {
			asksToRecycle(s)
		}
		r := newRun(t, newModel(s, rapid.Bool().Draw(t, "waits")))
		r.tarns = rapid.Bool().Draw(t, "Tarn's binder")
		r.pace = rapid.SampledFrom([]time.Duration{time.Second, 20 * time.Millisecond}).Draw(t, "pace")
		for i := range rapid.IntRange(0, 2).Draw(t, "recycled before") {
			if recycles {
				r.recycledBefore(fmt.Sprint("recycled-", i))
			}
		}
		r.remember()
		for range rapid.IntRange(1, 40).Draw(t, "rounds") {
			switch rapid.IntRange(0, 9).Draw(t, "round") {
			case 0:
				r.change()
			case 1, 2, 3:
				r.others()
			default:
				r.reconcile(false, true)
			}
		}
		r.settle()
		r.checkFull()
		if rapid.Bool().Draw(t, "orphan") {
			r.set.Annotations = map[string]string{tarnv1.AnnotationOrphan: "true"}
		}
		r.set.DeletionTimestamp = &anHourAgo
		r.remember()
		for range rapid.IntRange(0, 10).Draw(t, "last rounds") {
			if r.set != nil {
				r.reconcile(false, true)
			}
		}
		r.settle()
		r.checkEnded()
	})
}

// checkFull expects as many spares as possible.
func (r *run) checkFull() {
	r.never()
	v, spec := r.view(r.now()), r.set.Spec
	n, free := count(v), r.free()
	held, stay := int32(0), int32(0) // spares kept by their label or another set; volumes given up and kept by their label
	for i := range v.Volumes {
		vol := &v.Volumes[i]
		switch state := stateOf(vol, testNamespace); {
		case state == spare && (volume.DeletionProtected(vol) || r.ofAnother(vol)):
			held++
		case state == leaving && volume.DeletionProtected(vol):
			stay++
		}
	}
	switch {
	case n.creating != 0 || n.coming != 0 || n.leaving != stay:
		r.t.Errorf("at rest, and yet something is under way: %+v", n)
	case n.spares < spec.MinimumReplicas && free > 0:
		r.t.Errorf("%d spares of %d, though there is room: %+v, at most %d", n.spares, spec.MinimumReplicas, n, spec.MaximumReplicas)
	case n.total-stay > spec.MaximumReplicas && n.spares > held:
		r.t.Errorf("%d volumes of at most %d, and spares among them: %+v", n.total, spec.MaximumReplicas, n)
	case n.replaceable > 0 && free > 0:
		r.t.Errorf("%d spares of an older template stay, though there is room: %+v", n.replaceable, n)
	}
	for _, vol := range r.volumes {
		switch {
		case marked(vol):
			r.t.Errorf("volume %s is half-way for ever: %+v, %+v, %v", vol.Name, vol.Spec.ClaimRef, vol.Status, vol.ObjectMeta)
		case volume.DeletionProtected(vol): // a protected volume is not scrubbed either
		case stateOf(vol, testNamespace) == recycling, r.mayScrub(vol) && vol.Annotations[tarnv1.AnnotationRecycle] != "":
			r.t.Errorf("volume %s is to be recycled, and never is", vol.Name)
		}
	}
}

// checkEnded expects nothing left of a set except what is used or had to stay.
func (r *run) checkEnded() {
	r.never()
	if r.set != nil || r.filler != nil || len(r.claims)+len(r.pods) > 0 {
		r.t.Fatalf("left: set %v, class %v, %d claims, %d pods", r.set != nil, r.filler != nil, len(r.claims), len(r.pods))
	}
	for _, vol := range r.volumes {
		switch state := stateOf(vol, testNamespace); {
		case marked(vol), state == joining, state == leaving && !volume.DeletionProtected(vol):
			r.t.Errorf("volume %s is %s, and nobody goes on with it", vol.Name, state)
		}
	}
}

func (r *run) never() {
	for _, wrong := range r.wrong {
		r.t.Error(wrong)
	}
}
