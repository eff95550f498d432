package steppod

import (
	"testing"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

func TestAVolumeIsStagedApartWhereATemplateReadsReadOnly(t *testing.T) {
	for name, c := range map[string]struct {
		staging, unstaging string
		want               bool
	}{
		"in none":                       {`{"podTemplate": {"spec": {"containers": [{"args": ["{{ handle }} readOnly"], "volumeMounts": [{"readOnly": true}]}]}}}`, `{}`, false},
		"in staging":                    {`{"podTemplate": {"spec": {"containers": [{"args": ["{{ 'ro' if readOnly else 'rw' }}"]}]}}}`, `{}`, true},
		"in unstaging":                  {`{}`, `{"podTemplate": "{% if readOnly %}{% endif %}"}`, true},
		"before it is assigned":         {`{"podTemplate": "{% set readOnly = readOnly or handle == 'x' %}"}`, `{}`, true},
		"where the section is one text": {`"{% set yaml = true %}podTemplate: {spec: {volumes: [{nfs: {readOnly: true}}]}} # {{ pv.spec.csi.readOnly }}"`, `{}`, false},
		"in what is no template":        {`"{% raw %}{{ readOnly }}{% endraw %}{# readOnly #}"`, `{}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := testkit.Provisioner("p", func(p *pavv1.PavProvisioner) {
				p.Spec.VolumeStaging, p.Spec.VolumeUnstaging = testkit.Section(c.staging), testkit.Section(c.unstaging)
			})
			if got := StagesApart(p); got != c.want {
				t.Errorf("staged apart: %v, want %v", got, c.want)
			}
		})
	}
	if StagesApart(testkit.Provisioner("without unstaging")) {
		t.Error("a provisioner without templates stages volumes apart")
	}
}
