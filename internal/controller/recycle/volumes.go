package recycle

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// state is where a volume stands between one claim and the next; a closed set.
type state string

const (
	// used: bound to a claim, reserved for one, or free for one.
	used state = "Used"
	// joining: being added to a pool, removed from one, or handed to a claim of Tarn's own.
	joining state = "Joining"
	// released: its claim is gone.
	released state = "Released"
	// scrubbing: it points at its scrub claim, which exists.
	scrubbing state = "Scrubbing"
	// verified: it has a certificate for the scrub claim that it points at.
	verified state = "Verified"
	// failed: it has a failure for the scrub claim that it points at.
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
	case gone: // the scrub claim was deleted from outside
		return released
	}
	return joining // the binder has yet to release it
}

// ours reports whether the volume points at its scrub claim.
func (v *View) ours() bool {
	ref := v.Volume.Spec.ClaimRef
	return ref != nil && ref.Namespace == v.Namespace && ref.Name == volume.ScrubClaim(v.Volume)
}

// concerned reports whether recycling may have to act on the volume at all.
func (v *View) concerned() bool {
	vol := v.Volume
	return volume.RecycleMethodOf(vol, v.Class) != "" || vol.Annotations[tarnv1.AnnotationRecyclePolicy] != "" || v.ours() || vol.Status.Reason == eventFailed || wasFreed(vol) ||
		vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle
}

// methodOf returns how a volume is to be recycled; empty means not at all. wrong says why the
// requested method is impossible.
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
	case vol.Spec.CSI != nil && steppod.SecretPerClaim(vol.Spec.CSI.VolumeAttributes):
		return "", fmt.Sprintf("StorageClass %q gives each claim a Secret of its own, so the next claim could not use the volume: set its reclaim policy to Delete", vol.Spec.StorageClassName)
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

// recreateOf returns Recreate if the volume can be created again, or says why it cannot.
func recreateOf(v *View) (method tarnv1.RecycleMethod, wrong string) {
	switch {
	case v.Record == nil:
		return "", "annotation " + tarnv1.AnnotationRecycle + " is Recreate, but no PavProvisioner created the volume; set reclaim policy Delete instead, and let a PersistentVolumeSet or a new claim create another volume"
	case len(v.Record.Status.Claims) > 0:
		return "", "annotation " + tarnv1.AnnotationRecycle + " is Recreate, but the volume's data is in the claims of its PavProvisioner, which recycling does not create again; set reclaim policy Delete, or the annotation to Files, Zero or Discard"
	case v.Provisioner == nil:
		return "", fmt.Sprintf("PavProvisioner %q, which created the volume, is gone, and nothing else can create it again; set annotation %s to Files, Zero or Discard", v.Record.Spec.Provisioner.Name, tarnv1.AnnotationRecycle)
	case len(v.provided(tarnv1.RecycleRecreate)) == 0:
		return "", fmt.Sprintf("PavProvisioner %q cannot create a volume again; give it spec.volumeDeletion.podTemplate and spec.volumeCreation.podTemplate, or set annotation %s to Files, Zero or Discard", v.Provisioner.Name, tarnv1.AnnotationRecycle)
	}
	return tarnv1.RecycleRecreate, ""
}

// kubernetesRecycles reports whether the recycler of Kubernetes' own binder supports the
// volume's source.
func kubernetesRecycles(vol *corev1.PersistentVolume) bool {
	return vol.Spec.HostPath != nil || vol.Spec.NFS != nil
}

// inTrash reports whether a volume is kept until its claim can no longer be restored. The
// result until is the end of that, if it is known. The result why is the cause; it is empty if
// the retention controller has reported it.
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

// kept is a volume whose policy is put off until it is recycled.
func kept(vol *corev1.PersistentVolume) *corev1.PersistentVolume {
	vol = vol.DeepCopy()
	metav1.SetMetaDataAnnotation(&vol.ObjectMeta, tarnv1.AnnotationRecyclePolicy, string(vol.Spec.PersistentVolumeReclaimPolicy))
	vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	return vol
}

// given is a volume that points at its scrub claim. What could restore its former claim is
// removed, because the data will be too.
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

// reservedByHand reports whether the author of a volume with policy Recycle chose its claim.
// Neither a binder did, nor a provisioner that made the volume for one. With policy Retain,
// tarn undelete may have chosen the claim as well.
func reservedByHand(vol *corev1.PersistentVolume) bool {
	_, bound := vol.Annotations[volume.AnnBoundByController]
	_, made := vol.Annotations[volume.AnnProvisionedBy]
	return !bound && !made && vol.Annotations[tarnv1.AnnotationRecyclePolicy] == string(corev1.PersistentVolumeReclaimRecycle)
}

// freed is a volume without claimRef, or with the claimRef that was reserved by hand. Its
// certificate records since when.
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

// wasFreed reports whether a certificate says that the volume was freed after recycling.
func wasFreed(vol *corev1.PersistentVolume) bool {
	cert := volume.CertificateOf(vol)
	return cert != nil && cert.Freed != nil
}

// hadSince is a volume that a claim has used since it was recycled.
func hadSince(vol *corev1.PersistentVolume) *corev1.PersistentVolume {
	vol = vol.DeepCopy()
	volume.Drawn(vol)
	return vol
}

// restored is a volume with its own policy, unless an edit has set another meanwhile.
func restored(vol *corev1.PersistentVolume) *corev1.PersistentVolume {
	vol = vol.DeepCopy()
	if vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
		vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimPolicy(vol.Annotations[tarnv1.AnnotationRecyclePolicy])
	}
	delete(vol.Annotations, tarnv1.AnnotationRecyclePolicy)
	return vol
}

// encode returns the JSON of a certificate or a failure; encoding these types cannot fail.
func encode(o any) string {
	text, err := json.Marshal(o)
	if err != nil {
		return ""
	}
	return string(text)
}
