package steppod

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

func TestTheHandleASectionGivesIsTrimmedAsThatOfThePod(t *testing.T) {
	for _, c := range []struct{ name, handle, want, wantError string }{
		{"as it is", "shelf-7", "shelf-7", ""},
		{"a block of YAML ends with a newline", "shelf-7\n", "shelf-7", ""},
		{"blanks around it", " \t shelf-7 \n\n", "shelf-7", ""},
		{"blanks within it stay", "shelf 7", "shelf 7", ""},
		{"nothing but blanks", " \n", "", "spec.volumeCreation.handle: a volume handle must not be empty"},
		{"two lines", "a\nb\n", "", "control characters"},
		{"too long", strings.Repeat("x", 129), "", "at most 128 bytes"},
		{"not too long without its newline", strings.Repeat("x", 128) + "\n", strings.Repeat("x", 128), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			section, err := json.Marshal(map[string]string{"capacity": "1Gi", "handle": c.handle})
			if err != nil {
				t.Fatal(err)
			}
			p := testkit.Provisioner("prov")
			p.Spec.VolumeCreation = testkit.Section(string(section))
			claim := testkit.Claim("ns", "data", "u1", "prov")
			claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
			prepared, err := (&Steps{}).PrepareCreation(t.Context(), p, testkit.Record(claim, "prov", tarnv1.VolumePending), claim, 1)
			if c.wantError != "" {
				if AsStepError(err) == nil || !strings.Contains(err.Error(), c.wantError) {
					t.Errorf("error %v, want a StepError with %q", err, c.wantError)
				}
				return
			}
			if err != nil || prepared.Inputs.Handle != c.want {
				t.Errorf("handle %+v, %v, want %q", prepared, err, c.want)
			}
		})
	}
}
