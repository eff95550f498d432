package pool

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// model is a cluster in memory. It holds the API server's objects, and plays the binder, the
// provisioner, the tenants and the deletion of objects one step at a time.
type model struct {
	set    *tarnv1.PersistentVolumeSet
	class  *storagev1.StorageClass
	filler *storagev1.StorageClass
	// all are the models of all sets of the cluster. They share the fields below, except broken
	// and wrong.
	all     []*model
	claims  map[string]*corev1.PersistentVolumeClaim
	pods    map[string]*corev1.Pod
	volumes map[string]*corev1.PersistentVolume
	// tenants are the UIDs of existing claims, and written the volumes that a tenant has drawn.
	tenants, written map[string]bool
	// holders are the volumes without claimRef that a claim names.
	holders map[string]bool
	// lost are the volumes whose node was deleted.
	lost map[string]bool
	// scrubs are the UIDs of existing scrub claims, scrubbed those whose work is done. dirty
	// are the volumes with the data of a former tenant.
	scrubs, scrubbed, dirty map[string]bool
	serial                  *int
	pace                    time.Duration
	// calm means that no step changes or deletes a set, or makes volumes by hand.
	calm bool
	// tarns means that Tarn's binder runs. When a claim gets a volume, it removes what marks
	// the volume as unused. When the claimRef is gone, it removes its own mark.
	tarns bool
	// looked is when the set began its last read from the API server.
	looked time.Time
	// broken means that the provisioner always fails.
	broken bool
	// wrong lists what happened although it must never happen.
	wrong []string
}

func newModel(s *tarnv1.PersistentVolumeSet, waits bool) *model {
	m := &model{
		set: s, class: testkit.Class(testClass), claims: map[string]*corev1.PersistentVolumeClaim{}, pods: map[string]*corev1.Pod{},
		volumes: map[string]*corev1.PersistentVolume{}, tenants: map[string]bool{}, written: map[string]bool{}, holders: map[string]bool{},
		lost: map[string]bool{}, scrubs: map[string]bool{}, scrubbed: map[string]bool{}, dirty: map[string]bool{}, serial: new(int), pace: time.Second,
	}
	m.all = []*model{m}
	if waits {
		m.class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
	}
	return m
}

func (m *model) next() string {
	*m.serial++
	return strconv.Itoa(*m.serial)
}

// clock is the time; it advances by pace with each serial number.
func (m *model) clock() time.Time { return testTime.Add(time.Duration(*m.serial) * m.pace) }

// since is the present time as a deletion timestamp.
func (m *model) since() *metav1.Time { return ptr.To(metav1.NewTime(m.clock())) }

func (m *model) fail(format string, args ...any) {
	m.wrong = append(m.wrong, fmt.Sprintf(format, args...))
}

// touch gives a volume a new version and a phase, and records when the phase changed.
func (m *model) touch(vol *corev1.PersistentVolume, phase corev1.PersistentVolumePhase) {
	vol.ResourceVersion = m.next()
	if vol.Status.Phase != phase {
		vol.Status.Phase = phase
		vol.Status.LastPhaseTransitionTime = m.since()
	}
}

// modelBurst is a burst small enough for the pools of models.
const modelBurst = 4

// volumesNow, claimsNow and podsNow list the present objects.
func (m *model) volumesNow() []corev1.PersistentVolume { return copies(m.volumes) }
func (m *model) claimsNow() []corev1.PersistentVolumeClaim {
	return copies(m.claims)
}
func (m *model) podsNow() []corev1.Pod { return copies(m.pods) }

func copies[T any, P interface {
	*T
	DeepCopy() *T
}](objects map[string]P) []T {
	var list []T
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		list = append(list, *objects[name].DeepCopy())
	}
	return list
}

// moment is what a cache has of each kind. The kinds may be of different times.
type moment struct {
	set     *tarnv1.PersistentVolumeSet
	filler  *storagev1.StorageClass
	claims  []corev1.PersistentVolumeClaim
	pods    []corev1.Pod
	volumes []corev1.PersistentVolume
	tenants map[string]bool
	sets    []tarnv1.PersistentVolumeSet
}

func (m *model) now() moment {
	return moment{m.set.DeepCopy(), m.filler.DeepCopy(), m.claimsNow(), m.podsNow(), m.volumesNow(), maps.Clone(m.tenants), m.setsNow()}
}

// view is what gather makes of a moment.
func (m *model) view(at moment) *View {
	v := &View{
		Set: at.set, Namespace: testNamespace, PauseImage: DefaultPauseImage, Burst: modelBurst, Class: m.class.DeepCopy(), Filler: at.filler,
		Fresh: map[string]*corev1.PersistentVolume{}, Failures: map[string]string{}, Claimed: maps.Clone(m.holders), Lost: maps.Clone(m.lost),
	}
	for _, c := range at.claims {
		if strings.HasPrefix(c.Name, fillerPrefix(at.set.UID)) {
			v.Claims = append(v.Claims, c)
			if m.broken && c.Spec.VolumeName == "" {
				v.Failures[c.Name] = "no room"
			}
		}
	}
	for _, p := range at.pods {
		if p.Labels[tarnv1.LabelPoolUID] == string(at.set.UID) {
			v.Pods = append(v.Pods, p)
		}
	}
	for i := range at.volumes {
		vol := at.volumes[i]
		if passed(&vol) {
			v.Claimed[vol.Name] = at.tenants[string(vol.Spec.ClaimRef.UID)]
		}
		if volume.Selects(at.set, &vol) {
			v.Volumes = append(v.Volumes, vol)
		} else if slices.ContainsFunc(v.Claims, func(c corev1.PersistentVolumeClaim) bool { return c.Spec.VolumeName == vol.Name }) {
			v.Fresh[vol.Name] = &vol
		}
	}
	at.introduce(v)
	return v
}

var errConflict = errors.New("conflict")

// do carries out an action as the API server would.
func (m *model) do(a action.Action) error {
	switch a := a.(type) {
	case action.AddFinalizer:
		m.set.Finalizers = []string{a.Name}
	case action.RemoveFinalizer:
		m.mustHaveEnded()
		m.set = nil
	case action.Create:
		m.create(a.Object)
	case action.Delete:
		return m.delete(a)
	case action.Patch:
		return m.change(a.From.(*corev1.PersistentVolume), a.To.(*corev1.PersistentVolume))
	case action.PatchStatus:
		m.set.Status = a.To.(*tarnv1.PersistentVolumeSet).Status
	}
	return nil
}

func (m *model) create(o client.Object) {
	switch o := o.(type) {
	case *storagev1.StorageClass:
		if m.filler == nil {
			m.filler = o.DeepCopy()
		}
	case *corev1.Pod:
		if m.pods[o.Name] == nil {
			m.pods[o.Name] = o.DeepCopy()
			m.pods[o.Name].UID = types.UID(m.next())
		}
	case *corev1.PersistentVolumeClaim:
		if m.claims[o.Name] == nil {
			claim := o.DeepCopy()
			claim.UID, claim.Status.Phase = types.UID("filler-"+m.next()), corev1.ClaimPending
			m.claims[claim.Name] = claim
			m.mustHaveRoom()
		}
	}
}

func (m *model) delete(a action.Delete) error {
	switch o := a.Object.(type) {
	case *storagev1.StorageClass:
		m.filler = nil
	case *corev1.Pod:
		if p := m.pods[o.Name]; p != nil && p.UID == o.UID {
			p.DeletionTimestamp = m.since()
		}
	case *corev1.PersistentVolumeClaim:
		if c := m.claims[o.Name]; c != nil && c.UID == o.UID {
			m.mustHaveReason(c.Spec.VolumeName == "", "claim "+c.Name+" is taken back")
			c.DeletionTimestamp = m.since()
		}
	case *corev1.PersistentVolume:
		vol := m.volumes[o.Name]
		if vol == nil || vol.ResourceVersion != o.ResourceVersion {
			return errConflict
		}
		if !a.Unchanged {
			m.fail("volume %s is deleted, whatever has become of it", vol.Name)
		}
		if volume.DeletionProtected(vol) {
			m.fail("volume %s is protected, and its object is deleted", vol.Name)
		}
		m.mustBeIdle(vol, "deleted")
		vol.DeletionTimestamp = m.since()
		m.touch(vol, vol.Status.Phase)
	}
	return nil
}

func (m *model) change(from, to *corev1.PersistentVolume) error {
	vol := m.volumes[from.Name]
	if vol == nil || vol.ResourceVersion != from.ResourceVersion {
		return errConflict
	}
	if volume.DeletionProtected(vol) && (volume.GivenUp(to, testNamespace) || isFilling(vol) && !marked(to)) {
		m.fail("volume %s is protected, and is given up or taken back", vol.Name)
	}
	if volume.GivenUp(to, testNamespace) {
		m.mustBeItsOwn(vol)
		if m.holders[vol.Name] {
			m.fail("volume %s is given up though a claim names it", vol.Name)
		}
		m.mustBeIdle(vol, "given up")
		if m.written[vol.Name] && to.Spec.PersistentVolumeReclaimPolicy != vol.Spec.PersistentVolumeReclaimPolicy {
			m.fail("volume %s has data, and its policy is overruled", vol.Name)
		}
	}
	if vol.Spec.ClaimRef != nil && to.Spec.ClaimRef == nil {
		m.mustBeIdle(vol, "made nobody's")
	}
	to = to.DeepCopy()
	to.Status, to.DeletionTimestamp = vol.Status, vol.DeletionTimestamp
	m.volumes[vol.Name] = to
	m.touch(to, to.Status.Phase)
	return nil
}

// steps are what the rest of the cluster may do now.
func (m *model) steps() []func() {
	var steps []func()
	for _, name := range slices.Sorted(maps.Keys(m.claims)) {
		steps = append(steps, m.stepsOfClaim(m.claims[name])...)
	}
	for _, name := range slices.Sorted(maps.Keys(m.pods)) {
		if m.pods[name].DeletionTimestamp != nil {
			steps = append(steps, func() { delete(m.pods, name) })
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.volumes)) {
		steps = append(steps, m.stepsOfVolume(m.volumes[name])...)
	}
	return steps
}

func (m *model) stepsOfClaim(c *corev1.PersistentVolumeClaim) []func() {
	switch {
	case c.DeletionTimestamp != nil:
		if m.pods[c.Name] != nil { // protected
			return nil
		}
		return []func(){func() { delete(m.claims, c.Name) }}
	case c.Spec.VolumeName == "" && m.broken:
		return nil
	case c.Spec.VolumeName == "" && (!waits(m.class) || m.pods[c.Name] != nil):
		return []func(){func() { m.provision(c) }}
	case c.Spec.VolumeName != "" && c.Status.Phase == corev1.ClaimPending:
		return []func(){func() { c.Status.Phase = corev1.ClaimBound }}
	case c.Spec.VolumeName != "" && m.volumes[c.Spec.VolumeName] == nil && c.Status.Phase != corev1.ClaimLost:
		return []func(){func() { c.Status.Phase = corev1.ClaimLost }}
	}
	return nil
}

// provision creates the volume of a filler claim and binds it.
func (m *model) provision(c *corev1.PersistentVolumeClaim) {
	vol := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(c.UID), UID: types.UID(m.next()), Annotations: map[string]string{volume.AnnProvisionedBy: testClass}},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: *c.Spec.StorageClassName, Capacity: c.Spec.Resources.Requests, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef: &corev1.ObjectReference{Namespace: c.Namespace, Name: c.Name, UID: c.UID},
		},
	}
	m.touch(vol, corev1.VolumeBound)
	m.volumes[vol.Name] = vol
	c.Spec.VolumeName = vol.Name
}

// there reports whether the claim that a volume points at exists.
func (m *model) there(ref *corev1.ObjectReference) bool {
	c := m.claims[ref.Name]
	return m.tenants[string(ref.UID)] || m.scrubs[string(ref.UID)] || c != nil && c.UID == ref.UID
}

// stepsOfVolume are the steps of binder and provisioner. The provisioner goes by phase and
// policy alone, as the external ones do.
func (m *model) stepsOfVolume(vol *corev1.PersistentVolume) []func() {
	var steps []func()
	ref, phase := vol.Spec.ClaimRef, vol.Status.Phase
	deletes := vol.Annotations[volume.AnnProvisionedBy] != "" && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	switch {
	case m.holders[vol.Name] && ref == nil: // the binder restores the lost claimRef
		steps = append(steps, func() {
			vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "tenant", Name: "restored", UID: "tenant-" + types.UID(vol.Name)}
			m.tenants["tenant-"+vol.Name] = true
			delete(m.holders, vol.Name)
			m.touch(vol, corev1.VolumeBound)
		})
	case ref != nil && phase == corev1.VolumeReleased && m.tenants[string(ref.UID)]: // bound while it was still Released
		steps = append(steps, func() { m.touch(vol, corev1.VolumeBound) })
	case ref == nil && phase != corev1.VolumeAvailable:
		steps = append(steps, func() {
			if m.tarns {
				delete(vol.Annotations, volume.AnnBoundByController)
			}
			m.touch(vol, corev1.VolumeAvailable)
		})
	case ref != nil && ref.UID != "" && phase != corev1.VolumeReleased && !m.there(ref):
		steps = append(steps, func() { m.touch(vol, corev1.VolumeReleased) })
	}
	if phase == corev1.VolumeReleased && deletes && !m.broken {
		steps = append(steps, func() { m.destroy(vol) })
	}
	if vol.DeletionTimestamp != nil && phase != corev1.VolumeBound && !deletes {
		steps = append(steps, func() { delete(m.volumes, vol.Name) })
	}
	return append(steps, m.stepsOfRecycling(vol)...)
}

func (m *model) destroy(vol *corev1.PersistentVolume) {
	if vol.Spec.ClaimRef == nil {
		m.fail("volume %s is nobody's, and its provisioner destroys it", vol.Name)
	} else if m.there(vol.Spec.ClaimRef) {
		m.fail("volume %s is destroyed under claim %s", vol.Name, vol.Spec.ClaimRef.UID)
	}
	delete(m.dirty, vol.Name)
	delete(m.volumes, vol.Name)
}

// draw binds a spare to a tenant's claim, as a binder does.
func (m *model) draw(vol *corev1.PersistentVolume) {
	if vol.Spec.ClaimRef != nil || vol.DeletionTimestamp != nil || vol.Status.Phase != corev1.VolumeAvailable || vol.Spec.StorageClassName != testClass {
		return
	}
	if m.dirty[vol.Name] {
		m.fail("volume %s is drawn with another tenant's data on it", vol.Name)
	}
	uid := "tenant-" + m.next()
	vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "tenant", Name: uid, UID: types.UID(uid)}
	m.given(vol, uid)
	m.touch(vol, corev1.VolumeBound)
}

// given applies what a binder writes to a volume besides its claim, and records the tenant.
func (m *model) given(vol *corev1.PersistentVolume, uid string) {
	if m.tarns {
		volume.Drawn(vol)
	}
	vol.Annotations = merge(vol.Annotations, map[string]string{volume.AnnBoundByController: "yes"})
	m.tenants[uid], m.written[vol.Name] = true, true
}

// seize binds a volume that was just freed to a claim that names it. A binder does that in any
// phase, and writes the phase afterwards.
func (m *model) seize(vol *corev1.PersistentVolume) {
	if vol.Spec.ClaimRef == nil && vol.DeletionTimestamp == nil && vol.Status.Phase == corev1.VolumeReleased && !m.dirty[vol.Name] {
		uid := "tenant-" + m.next()
		vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "tenant", Name: uid, UID: types.UID(uid)}
		m.given(vol, uid)
		m.touch(vol, corev1.VolumeReleased)
	}
}

// leave deletes the claim of a tenant.
func (m *model) leave(vol *corev1.PersistentVolume) {
	if ref := vol.Spec.ClaimRef; ref != nil && strings.HasPrefix(string(ref.UID), "tenant-") {
		delete(m.tenants, string(ref.UID))
		m.dirty[vol.Name] = true
	}
}

// reuse is an administrator who clears the claimRef of a released volume, and takes
// responsibility for its data.
func (m *model) reuse(vol *corev1.PersistentVolume) {
	if ref := vol.Spec.ClaimRef; ref != nil && vol.Status.Phase == corev1.VolumeReleased && ref.Namespace == "tenant" &&
		vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
		vol.Spec.ClaimRef = nil
		delete(m.dirty, vol.Name)
		m.touch(vol, corev1.VolumeReleased)
	}
}

// lose removes a claimRef while the claim exists, as an edit by hand or a restore does.
func (m *model) lose(vol *corev1.PersistentVolume) {
	if ref := vol.Spec.ClaimRef; ref != nil && m.tenants[string(ref.UID)] {
		delete(m.tenants, string(ref.UID))
		m.holders[vol.Name] = true
		vol.Spec.ClaimRef = nil
		m.touch(vol, corev1.VolumeAvailable)
	}
}
