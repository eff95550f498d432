package volume

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// DeletionProtected says whether an object has the label against deletion. The API server then
// rejects its deletion, and its storage must not be destroyed either.
func DeletionProtected(o metav1.Object) bool {
	return o.GetLabels()[tarnv1.LabelDeletionProtection] == "true"
}
