package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appspec "tarn.dev/tarn/internal/app/spec"
)

func TestWhatAHiddenClassAllowsIsLeftToTheController(t *testing.T) {
	file := &appspec.File{App: appspec.App{Image: "a:1", Replicas: 1}, Volumes: []appspec.Volume{{Name: "data", MountPath: "/data", SizeGi: 1, StorageClass: "secret", AccessMode: appspec.ReadWriteMany}}}
	claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("secret")}}
	for _, c := range []struct {
		name                     string
		hidden                   map[string]bool
		wantWarnings, wantErrors int
	}{
		{"a class that does not exist", nil, 1, 1},
		{"a class that may not be read", map[string]bool{"secret": true}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := World{App: &tarnv1.App{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, Hidden: c.hidden}
			if got := Deploy(w, file, nil).Plan.Warnings; len(got) != c.wantWarnings {
				t.Errorf("a plan warns of %q, want %d warnings", got, c.wantWarnings)
			}
			if err := w.Expandable(claim, "data"); (err != nil) != (c.wantErrors > 0) {
				t.Errorf("growth is answered with %v", err)
			}
		})
	}
}
