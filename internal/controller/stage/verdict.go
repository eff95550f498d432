package stage

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// Verdicts on whether a provisioner may be used for a new stage.
const (
	usable  = ""
	unknown = "unknown"
)

// verdict says whether a new stage may begin: usable, unknown where nobody has
// judged the provisioner yet, else why not and what to do.
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
	case byHand(v.Volume) && !slices.Contains(p.Spec.ProvisioningModes, pavv1.ModeStatic):
		return fmt.Sprintf("PersistentVolume %q was written by hand, and PavProvisioner %q does not have Static in spec.provisioningModes; add it", v.Volume.Name, p.Name)
	}
	return usable
}

// byHand says whether a volume was written by an administrator rather than made for
// a claim.
func byHand(vol *corev1.PersistentVolume) bool {
	return vol.Annotations[tarnv1.AnnotationRecord] == "" && vol.Annotations["pv.kubernetes.io/provisioned-by"] == ""
}
