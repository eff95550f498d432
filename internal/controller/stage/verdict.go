package stage

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// Verdicts on whether a provisioner may be used for a new stage.
const (
	usable  = ""
	unknown = "unknown"
)

// verdict says whether a new stage may begin: usable, unknown if the provisioner was not judged
// yet, or else the cause and the remedy.
func verdict(v View) string {
	if v.Missing != "" {
		return v.Missing + "; a volume can be staged only while its PavProvisioner, PersistentVolume and claim exist"
	}
	p := v.Provisioner
	if p.DeletionTimestamp != nil {
		return fmt.Sprintf("PavProvisioner %q is being deleted and stages no more volumes; create it again once it is gone", p.Name)
	}
	c := meta.FindStatusCondition(p.Status.Conditions, pavv1.ConditionAccepted)
	switch {
	case c == nil:
		return unknown
	case c.Status != metav1.ConditionTrue:
		return fmt.Sprintf("PavProvisioner %q is not accepted (%s): %s; correct it", p.Name, c.Reason, c.Message)
	case !v.Made && !slices.Contains(p.Spec.ProvisioningModes, pavv1.ModeStatic):
		return notStatic(v)
	}
	return usable
}

// made reports whether a volume was made for a claim rather than written by an administrator.
// The volume's own annotations do not prove that, because a restored or copied volume has them
// too. Its record proves it, or the mark that tarn uninstall leaves when it removes the record.
func (r *Reconciler) made(ctx context.Context, vol *corev1.PersistentVolume) (bool, error) {
	uid := types.UID(vol.Annotations[tarnv1.AnnotationRecord])
	switch {
	case uid == "":
		return false, nil
	case vol.Annotations[tarnv1.AnnotationKept] == string(vol.UID):
		return true, nil
	}
	record, err := find(ctx, r, &tarnv1.PavVolume{}, client.ObjectKey{Name: vol.Name}, uid)
	return record != nil, err
}

// notStatic says why a volume that was not made for a claim is not staged: its provisioner
// serves only volumes made for claims.
func notStatic(v View) string {
	of := "was written by hand"
	if v.Volume.Annotations[tarnv1.AnnotationRecord] != "" {
		of = "has no PavVolume (it may have been restored from a backup), so it counts as written by hand"
	}
	return fmt.Sprintf("PersistentVolume %q %s, and PavProvisioner %q does not have Static in spec.provisioningModes; add it", v.Volume.Name, of, v.Provisioner.Name)
}
