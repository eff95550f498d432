package volume

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// RecycleMethodOf is the recycle method of a volume: its own or, where it has none, that of its
// class, which may be nil. The method is not checked. It is empty if neither sets one.
func RecycleMethodOf(v *corev1.PersistentVolume, class *storagev1.StorageClass) tarnv1.RecycleMethod {
	said := v.Annotations[tarnv1.AnnotationRecycle]
	if said == "" && class != nil {
		said = class.Annotations[tarnv1.AnnotationRecycle]
	}
	return tarnv1.RecycleMethod(said)
}

// CertificateOf is the certificate of the last time a volume was recycled, nil for none.
func CertificateOf(v *corev1.PersistentVolume) *tarnv1.RecycleCertificate {
	cert := &tarnv1.RecycleCertificate{}
	if json.Unmarshal([]byte(v.Annotations[tarnv1.AnnotationRecycled]), cert) != nil {
		return nil
	}
	return cert
}

// Drawn removes the mark that says that no claim has had the volume since it was made or recycled.
// The mark allows its storage to be destroyed whatever its policy. The caller removes it in the
// write that gives the volume to a claim.
func Drawn(v *corev1.PersistentVolume) {
	delete(v.Annotations, tarnv1.AnnotationPoolUnused)
	cert := CertificateOf(v)
	if cert == nil || cert.Freed == nil {
		return
	}
	cert.Freed = nil
	if text, err := json.Marshal(cert); err == nil { // a type without channels and functions has one
		v.Annotations[tarnv1.AnnotationRecycled] = string(text)
	}
}

// ScrubClaim is the name of the claim of a volume while it is scrubbed.
func ScrubClaim(v *corev1.PersistentVolume) string { return tarnv1.ScrubPrefix + string(v.UID) }
