package volume

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// DeletionProtected says that an object carries the label against deletion. The API
// server refuses to delete it then; what stands behind it must not be destroyed either.
func DeletionProtected(o metav1.Object) bool {
	return o.GetLabels()[tarnv1.LabelDeletionProtection] == "true"
}
