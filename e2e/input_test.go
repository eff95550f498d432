//go:build e2e

package e2e

import (
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
)

func TestAProvisionerOfTheWrongShapeIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what     string
		sections fields
		want     []string
	}{
		{"an unknown section", fields{"volumeCloning": fields{}, "volumeStaging": greeting}, []string{"volumeCloning"}},
		{"an unknown field of a section", fields{"volumeCreation": fields{"capcity": "1Gi"}, "volumeStaging": greeting}, []string{"volumeCreation"}},
		{"a list for a section", fields{"volumeCreation": []any{"1Gi"}, "volumeStaging": greeting}, []string{"volumeCreation"}},
		{"a number for a pod template", fields{"volumeStaging": fields{"podTemplate": int64(7)}}, []string{"volumeStaging"}},
		{"no time for staging", fields{"volumeStaging": fields{"deadlineSeconds": int64(0), "podTemplate": greeting["podTemplate"]}}, []string{"volumeStaging.deadlineSeconds"}},
		{"an unknown field of a pod on nodes", fields{"volumeExpansion": fields{"nodePodTemplate": fields{"spce": fields{}}}, "volumeStaging": greeting}, []string{"volumeExpansion", "nodePodTemplate"}},
		{"expansion without Dynamic", fields{"provisioningModes": []any{"Static"}, "volumeExpansion": fields{}, "volumeStaging": greeting}, []string{"volumeExpansion", "Dynamic"}},
		{"creation without Dynamic", fields{"provisioningModes": []any{"Static"}, "volumeCreation": asRequested, "volumeStaging": greeting}, []string{"volumeCreation", "Dynamic"}},
		{"deletion without Dynamic", fields{"provisioningModes": []any{"Static"}, "volumeDeletion": greeting, "volumeStaging": greeting}, []string{"volumeDeletion", "Dynamic"}},
		{"recycling without Dynamic", fields{"provisioningModes": []any{"Static"}, "volumeRecycling": greeting, "volumeStaging": greeting}, []string{"volumeRecycling", "Dynamic"}},
		{"a text for the modes", fields{"provisioningModes": "Dynamic", "volumeStaging": greeting}, []string{"provisioningModes"}},
		{"an unknown mode", fields{"provisioningModes": []any{"Lazy"}, "volumeStaging": greeting}, []string{"provisioningModes"}},
		{"no mode", fields{"provisioningModes": []any{}, "volumeStaging": greeting}, []string{"provisioningModes"}},
		{"no staging", fields{"volumeCreation": asRequested}, []string{"volumeStaging"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			s := begin(t, "shape")
			s.refused(suite.live.Create(s.ctx, s.provisioner(c.sections)), c.want...)
		})
	}
}

func TestAProvisionerWhoseNameIsNoLabelIsRefused(t *testing.T) {
	t.Parallel()
	s := begin(t, "name")
	for _, name := range []string{s.name + ".example", s.name + strings.Repeat("a", 64-len(s.name))} {
		o := s.provisioner(fields{"volumeStaging": greeting})
		o.SetName(name)
		s.refused(suite.live.Create(s.ctx, o), "metadata.name", "DNS label")
	}
}

func TestATemplateThatDoesNotParseIsNotUsed(t *testing.T) {
	t.Parallel()
	s := begin(t, "syntax")
	s.create(s.provisioner(fields{
		"volumeCreation": fields{"capacity": "{{ requestedMinCapacity }}\n  {{ 1 + }}"},
		"volumeStaging":  script{text: "mkdir /pav/volume\n\n: {{ handle | }}\n{% if capacity > %}: {{ handle }}{% endif %} {{ handle | nosuch }}"}.section(nil),
	}))
	// All errors are reported, also of each string, and none that only follows from another, so
	// that authors can correct them at once.
	where := regexp.MustCompile(`^[^;]*volumeCreation\.capacity: line 2, column \d+[^;]*; ` +
		`[^;]*volumeStaging\.podTemplate\.[^;]*: line 3, column \d+[^;]*; [^;]*: line 4, column \d+[^;]*; [^;]*: line 4, column \d+[^;]*nosuch[^;]*$`)
	provisioner := &pav.PavProvisioner{ObjectMeta: named(s.name)}
	s.await("the provisioner not to be accepted", func() (bool, string) {
		if err := s.get(provisioner); err != nil {
			return false, err.Error()
		}
		c := condition(provisioner, pav.ConditionAccepted)
		return c.Status == metav1.ConditionFalse && where.MatchString(c.Message), "Accepted=" + string(c.Status) + ": " + c.Message
	})
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.claim("data")
	s.told(claim, "ProvisioningFailed", s.name, "not accepted")
	if phase := s.phase(claim); phase != corev1.ClaimPending {
		t.Errorf("the claim is %s, want Pending", phase)
	}
	if seen := suite.news.of(s.name); len(seen.pods) > 0 {
		t.Errorf("pods were made for it: %v", seen.pods)
	}
}

// condition gives a condition of a provisioner, Unknown where it has none.
func condition(p *pav.PavProvisioner, kind string) metav1.Condition {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown}
}

func TestAClaimIsToldWhatItWaitsForAsThatChanges(t *testing.T) {
	t.Parallel()
	s := begin(t, "missing")
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.claim("data")
	s.told(claim, "ProvisioningFailed", s.name, "no PavProvisioner")
	s.create(s.provisioner(fields{"volumeCreation": fields{"capacity": "{{ requestedMinCapacity"}, "volumeStaging": greeting}))
	s.told(claim, "ProvisioningFailed", s.name, "not accepted")
	s.edit(s.provisioner(fields{"volumeCreation": fields{"capacity": "{{ nobody }}"}, "volumeStaging": greeting}))
	s.told(claim, "ProvisioningFailed", "nobody")
	if phase := s.phase(claim); phase != corev1.ClaimPending {
		t.Errorf("the claim is %s, want Pending", phase)
	}
	s.edit(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	s.bound(claim)
}
