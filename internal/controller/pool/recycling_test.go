package pool

import (
	"encoding/json"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// asksToRecycle has the volumes of a set recycled, by an annotation of their own.
func asksToRecycle(s *tarnv1.PersistentVolumeSet) {
	s.Spec.Template.Metadata.Annotations = map[string]string{tarnv1.AnnotationRecycle: string(tarnv1.RecycleFiles)}
	s.Spec.Template.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
}

// mustBeIdle reports a pool that takes a volume away from its tenant or from a scrub.
func (m *model) mustBeIdle(vol *corev1.PersistentVolume, what string) {
	switch ref := vol.Spec.ClaimRef; {
	case ref != nil && m.tenants[string(ref.UID)]:
		m.fail("volume %s is %s while tenant %s has it", vol.Name, what, ref.UID)
	case ref != nil && isScrubbed(vol, testNamespace):
		m.fail("volume %s is %s while it is being recycled", vol.Name, what)
	case m.dirty[vol.Name]:
		m.fail("volume %s is %s with the data of a former tenant on it", vol.Name, what)
	}
}

// stepsOfRecycling are the steps of the recycle controller, and of its scrub claims. A failed
// scrub is not among them, because it is retried.
func (m *model) stepsOfRecycling(vol *corev1.PersistentVolume) []func() {
	ref := vol.Spec.ClaimRef
	if ref == nil || ref.UID == "" || vol.Annotations[tarnv1.AnnotationRecycle] == "" {
		return nil
	}
	ours, uid := isScrubbed(vol, testNamespace), string(ref.UID)
	switch {
	case ours && m.scrubs[uid]:
		return []func(){func() { // the pod has succeeded, and the claim is deleted
			delete(m.scrubs, uid)
			m.scrubbed[uid] = true
		}}
	case vol.DeletionTimestamp != nil:
	case ours && m.scrubbed[uid]:
		return []func(){func() {
			vol.Spec.ClaimRef = nil
			delete(vol.Annotations, volume.AnnBoundByController)
			certify(vol, uid, m.clock())
			delete(m.dirty, vol.Name)
			delete(m.written, vol.Name)
			m.touch(vol, vol.Status.Phase)
		}}
	case m.mayScrub(vol):
		return []func(){func() {
			uid := "scrub-" + m.next()
			vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: testNamespace, Name: tarnv1.ScrubPrefix + string(vol.UID), UID: types.UID(uid)}
			m.scrubs[uid] = true
			m.touch(vol, corev1.VolumeBound)
		}}
	}
	return nil
}

// certify records on a volume that it was recycled for a scrub claim, and freed at a time.
func certify(vol *corev1.PersistentVolume, claim string, at time.Time) {
	data, err := json.Marshal(tarnv1.RecycleCertificate{Method: tarnv1.RecycleFiles, Claim: claim, Freed: &metav1.Time{Time: at}})
	if err != nil {
		panic(err)
	}
	metav1.SetMetaDataAnnotation(&vol.ObjectMeta, tarnv1.AnnotationRecycled, string(data))
}

// recycledBefore adds a spare of the set that was drawn, recycled and freed.
func (m *model) recycledBefore(name string) {
	vol := volumeOf(m.set, name, retained)
	delete(vol.Annotations, tarnv1.AnnotationPoolUnused)
	vol.Annotations[tarnv1.AnnotationRecycle] = string(tarnv1.RecycleFiles)
	certify(vol, "scrub-"+m.next(), m.clock())
	vol.Status.Phase = ""
	m.touch(vol, corev1.VolumeAvailable)
	m.volumes[name] = vol
}

// mayScrub decides as the recycle controller does. The volume is released, or could not be
// recycled, and is not on a way into a pool or out of one.
func (m *model) mayScrub(vol *corev1.PersistentVolume) bool {
	gone := vol.Status.Phase == corev1.VolumeReleased || vol.Status.Phase == corev1.VolumeFailed
	passing := volume.Passing(vol, testNamespace) && !isScrubbed(vol, testNamespace)
	return gone && !passing && !m.there(vol.Spec.ClaimRef) && !volume.DeletionProtected(vol) &&
		vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain
}

// spoil is a scrub that fails: its claim is deleted, and the volume is Failed until the next
// attempt.
func (m *model) spoil(vol *corev1.PersistentVolume) {
	if ref := vol.Spec.ClaimRef; ref != nil && m.scrubs[string(ref.UID)] && strings.HasPrefix(ref.Name, tarnv1.ScrubPrefix) {
		delete(m.scrubs, string(ref.UID))
		m.touch(vol, corev1.VolumeFailed)
	}
}

// ask is an administrator who requests that a volume be recycled when it is released.
func (m *model) ask(vol *corev1.PersistentVolume) {
	metav1.SetMetaDataAnnotation(&vol.ObjectMeta, tarnv1.AnnotationRecycle, string(tarnv1.RecycleFiles))
	m.touch(vol, vol.Status.Phase)
}
