package recycle

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// state is where a volume stands on its way from one claim to the next; a closed set.
type state string

const (
	// used: a claim's, reserved for one, or to be had.
	used state = "Used"
	// joining: being added to a pool, out of it, or to a claim of Tarn's own.
	joining state = "Joining"
	// released: its claim is gone.
	released state = "Released"
	// scrubbing: it points at its scrub claim, which is there.
	scrubbing state = "Scrubbing"
	// verified: there is a certificate of the scrub claim it points at.
	verified state = "Verified"
	// failed: the scrub claim it points at could do nothing.
	failed state = "Failed"
	// leaving: being deleted.
	leaving state = "Leaving"
)

func stateOf(v *View) state {
	vol := v.Volume
	ref := vol.Spec.ClaimRef
	gone := vol.Status.Phase == corev1.VolumeReleased || vol.Status.Phase == corev1.VolumeFailed
	switch {
	case vol.DeletionTimestamp != nil:
		return leaving
	case ref == nil:
		return used
	case v.ours():
		return stateOfOurs(v, gone)
	case volume.Passing(vol, v.Namespace):
		return joining
	case ref.UID != "" && gone:
		return released
	}
	return used
}

func stateOfOurs(v *View, gone bool) state {
	uid := string(v.Volume.Spec.ClaimRef.UID)
	cert, failure := volume.CertificateOf(v.Volume), failureOf(v.Volume)
	switch {
	case cert != nil && cert.Claim == uid:
		return verified
	case failure != nil && failure.Claim == uid:
		return failed
	case v.Claim != nil && string(v.Claim.UID) == uid:
		return scrubbing
	case gone: // somebody has deleted the scrub claim
		return released
	}
	return joining // the binder is about to say that it is gone
}

// ours says that the volume points at its scrub claim.
func (v *View) ours() bool {
	ref := v.Volume.Spec.ClaimRef
	return ref != nil && ref.Namespace == v.Namespace && ref.Name == volume.ScrubClaim(v.Volume)
}

// concerned says that the volume may have to do with recycling at all.
func (v *View) concerned() bool {
	vol := v.Volume
	return volume.RecycleMethodOf(vol, v.Class) != "" || vol.Annotations[tarnv1.AnnotationRecyclePolicy] != "" || v.ours() || vol.Status.Reason == eventFailed || wasFreed(vol) ||
		vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle
}

// methodOf is how a volume is to be recycled, empty for not at all; or why what is
// asked for cannot be.
func methodOf(v *View) (method tarnv1.RecycleMethod, wrong string) {
	vol := v.Volume
	policy := vol.Spec.PersistentVolumeReclaimPolicy
	if own := vol.Annotations[tarnv1.AnnotationRecyclePolicy]; own != "" && policy == corev1.PersistentVolumeReclaimRetain {
		policy = corev1.PersistentVolumeReclaimPolicy(own)
	}
	block := volume.ModeOfVolume(vol) == corev1.PersistentVolumeBlock
	said := volume.RecycleMethodOf(vol, v.Class)
	switch {
	case policy != corev1.PersistentVolumeReclaimRetain && policy != corev1.PersistentVolumeReclaimRecycle:
		return "", ""
	case said == "" && policy == corev1.PersistentVolumeReclaimRetain:
		return "", ""
	case said == "" && block && len(v.provided(tarnv1.RecycleFiles)) == 0:
		return "", "no recycler for volumeMode Block without a method: set annotation " + tarnv1.AnnotationRecycle + " to Zero or Discard"
	case said == "":
		return tarnv1.RecycleFiles, ""
	case said == tarnv1.RecycleRecreate:
		return recreateOf(v)
	case said == tarnv1.RecycleFiles && block && len(v.provided(said)) == 0:
		return "", "annotation " + tarnv1.AnnotationRecycle + " is Files, but volumeMode is Block: set it to Zero or Discard"
	case said == tarnv1.RecycleFiles, said == tarnv1.RecycleZero, said == tarnv1.RecycleDiscard:
		return said, ""
	}
	return "", fmt.Sprintf("annotation %s is %q: set it to Files, Zero, Discard or Recreate", tarnv1.AnnotationRecycle, said)
}

// recreateOf is Recreate where the volume can be made anew, or why it cannot.
func recreateOf(v *View) (method tarnv1.RecycleMethod, wrong string) {
	switch {
	case v.Record == nil:
		return "", "annotation " + tarnv1.AnnotationRecycle + " is Recreate, but no PavProvisioner created the volume; set reclaim policy Delete instead, and let a PersistentVolumeSet or a new claim create another volume"
	case v.Provisioner == nil:
		return "", fmt.Sprintf("PavProvisioner %q, which created the volume, is gone, and nothing else can create it again; set annotation %s to Files, Zero or Discard", v.Record.Spec.Provisioner.Name, tarnv1.AnnotationRecycle)
	case len(v.provided(tarnv1.RecycleRecreate)) == 0:
		return "", fmt.Sprintf("PavProvisioner %q cannot create a volume again; give it spec.volumeDeletion.podTemplate and spec.volumeCreation.podTemplate, or set annotation %s to Files, Zero or Discard", v.Provisioner.Name, tarnv1.AnnotationRecycle)
	}
	return tarnv1.RecycleRecreate, ""
}

// kubernetesRecycles says that the recycler of Kubernetes' own binder knows the source.
func kubernetesRecycles(vol *corev1.PersistentVolume) bool {
	return vol.Spec.HostPath != nil || vol.Spec.NFS != nil
}

// inTrash says that a volume waits until its claim may be had back no more, and until
// when where that is known; why is empty for one that the trash has told of.
func inTrash(v *View, now time.Time) (waits bool, until time.Time, why string) {
	vol := v.Volume
	until, known, err := volume.TrashedUntil(vol)
	switch {
	case err != nil:
		return true, time.Time{}, ""
	case known && now.Before(until):
		return true, until, ""
	case known || volume.Held(vol):
		return volume.Held(vol), time.Time{}, ""
	}
	why, until = volume.KeptBy(vol, volume.RetentionOf(vol, v.Sets, v.Class), v.Namespace, now)
	return why != "", until, why
}

func failureOf(vol *corev1.PersistentVolume) *tarnv1.RecycleFailure {
	failure := &tarnv1.RecycleFailure{}
	if json.Unmarshal([]byte(vol.Annotations[tarnv1.AnnotationRecycleFailure]), failure) != nil {
		return nil
	}
	return failure
}

// kept is a volume whose policy waits until it is recycled.
func kept(vol *corev1.PersistentVolume) *corev1.PersistentVolume {
	vol = vol.DeepCopy()
	metav1.SetMetaDataAnnotation(&vol.ObjectMeta, tarnv1.AnnotationRecyclePolicy, string(vol.Spec.PersistentVolumeReclaimPolicy))
	vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	return vol
}

// given is a volume that points at its scrub claim. What would bring its former claim
// back goes with the data.
func given(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	vol = vol.DeepCopy()
	if former := vol.Spec.ClaimRef; reservedByHand(vol) && former.Namespace != claim.Namespace {
		metav1.SetMetaDataAnnotation(&vol.ObjectMeta, tarnv1.AnnotationRecycleFor, former.Namespace+"/"+former.Name)
	}
	vol.Spec.ClaimRef = &corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
	}
	volume.Untrash(vol)
	delete(vol.Annotations, tarnv1.AnnotationClaim)
	delete(vol.Annotations, volume.AnnBoundByController)
	return vol
}

func certified(vol *corev1.PersistentVolume, cert tarnv1.RecycleCertificate) *corev1.PersistentVolume {
	vol, cert.Freed = vol.DeepCopy(), nil
	metav1.SetMetaDataAnnotation(&vol.ObjectMeta, tarnv1.AnnotationRecycled, encode(cert))
	delete(vol.Annotations, tarnv1.AnnotationRecycleFailure)
	return vol
}

func withFailure(vol *corev1.PersistentVolume, failure tarnv1.RecycleFailure) *corev1.PersistentVolume {
	vol = vol.DeepCopy()
	metav1.SetMetaDataAnnotation(&vol.ObjectMeta, tarnv1.AnnotationRecycleFailure, encode(failure))
	return vol
}

// reservedByHand says that whoever wrote a volume of policy Recycle chose its claim:
// neither a binder did, nor the provisioner that made the volume for one. With policy
// Retain it may as well be a claim that was had back from the trash.
func reservedByHand(vol *corev1.PersistentVolume) bool {
	_, bound := vol.Annotations[volume.AnnBoundByController]
	_, made := vol.Annotations[volume.AnnProvisionedBy]
	return !bound && !made && vol.Annotations[tarnv1.AnnotationRecyclePolicy] == string(corev1.PersistentVolumeReclaimRecycle)
}

// freed is a volume that is nobody's, which its certificate says from when on, or whoever
// it is reserved for by hand.
func freed(vol *corev1.PersistentVolume, now time.Time) *corev1.PersistentVolume {
	vol = vol.DeepCopy()
	vol.Spec.ClaimRef = nil
	if cert := volume.CertificateOf(vol); cert != nil {
		cert.Freed = &metav1.Time{Time: now.UTC().Truncate(time.Second)}
		metav1.SetMetaDataAnnotation(&vol.ObjectMeta, tarnv1.AnnotationRecycled, encode(cert))
	}
	if namespace, name, reserved := strings.Cut(vol.Annotations[tarnv1.AnnotationRecycleFor], "/"); reserved {
		vol.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: namespace, Name: name}
	}
	delete(vol.Annotations, tarnv1.AnnotationRecycleFor)
	delete(vol.Annotations, volume.AnnBoundByController)
	return vol
}

// wasFreed says that a volume is said to be nobody's since it was recycled.
func wasFreed(vol *corev1.PersistentVolume) bool {
	cert := volume.CertificateOf(vol)
	return cert != nil && cert.Freed != nil
}

// hadSince is a volume that somebody has had since it was recycled.
func hadSince(vol *corev1.PersistentVolume) *corev1.PersistentVolume {
	vol = vol.DeepCopy()
	volume.Drawn(vol)
	return vol
}

// restored is a volume with its own policy, unless somebody has set another meanwhile.
func restored(vol *corev1.PersistentVolume) *corev1.PersistentVolume {
	vol = vol.DeepCopy()
	if vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
		vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimPolicy(vol.Annotations[tarnv1.AnnotationRecyclePolicy])
	}
	delete(vol.Annotations, tarnv1.AnnotationRecyclePolicy)
	return vol
}

// encode gives the JSON of a certificate or a failure, types that always have one.
func encode(o any) string {
	text, err := json.Marshal(o)
	if err != nil {
		return ""
	}
	return string(text)
}
