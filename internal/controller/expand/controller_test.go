package expand

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
)

// The record decides the size of a volume that Tarn created. If a user could set it by hand, a
// resize in progress would count as done.
func TestASizeThatIsSetByHandWakesVolumesWithoutARecord(t *testing.T) {
	record := &tarnv1.PavVolume{ObjectMeta: metav1.ObjectMeta{Name: "made"}}
	r := &reconciler{client: fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(record).Build()}
	for name, want := range map[string]int{"made": 0, "by-hand": 1} {
		got := r.mapVolume(t.Context(), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}})
		if len(got) != want || want > 0 && got[0].Name != name {
			t.Errorf("volume %s wakes %v", name, got)
		}
	}
}
