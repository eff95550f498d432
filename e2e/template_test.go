//go:build e2e

package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// A whole section, or its pod template, may be one text.
const (
	// wholeValidation allows two access modes, and any size.
	wholeValidation = `{% set yaml = true %}
accessModes:
{% for mode in ['ReadWriteOnce', 'ReadWriteMany'] %}
- {{ mode }}
{% endfor %}
`
	// wholeCreation has a handle and a pod only for a claim of one name.
	wholeCreation = `{% set yaml = true %}
capacity: {{ requestedMinCapacity }}
{% if pvc.metadata.name == 'made' %}
handle: {{ ('shelf-' ~ defaultHandle) | tojson }}
podTemplate:
  spec:
    restartPolicy: Never
    containers:
    - name: main
      image: busybox:1.36
      command: [test, -d, /pav]
{% endif %}
`
	// wholePod is a pod template of staging.
	wholePod = `{% set yaml = true %}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 5
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -ec]
    args: [{{ ('mkdir /pav/volume; echo ' ~ handle ~ ' > /pav/volume/handle') | tojson }}]
`
	// wholeDeletion is a section in JSON, whose pod fails unless the handle is wholeCreation's.
	wholeDeletion = `{% set yaml = true %}{"podTemplate": {"spec": {"restartPolicy": "Never", "containers": [
{"name": "main", "image": "busybox:1.36", "command": ["test", {{ handle | tojson }}, "!=", {{ defaultHandle | tojson }}]}
]}}}`
)

func TestASectionOrAPodTemplateMayBeOneTemplate(t *testing.T) {
	t.Parallel()
	s := begin(t, "whole")
	s.create(s.provisioner(fields{
		"volumeValidation": wholeValidation,
		"volumeCreation":   wholeCreation,
		"volumeDeletion":   wholeDeletion,
		"volumeStaging":    fields{"podTemplate": wholePod},
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	refused := s.claimWith("refused", asksModes(corev1.ReadOnlyMany))
	s.told(refused, "ProvisioningFailed", "supporting access mode ReadWriteOnce, ReadWriteMany, the claim asks for ReadOnlyMany")
	s.remove(refused)

	claim := s.bound(s.claim("made"))
	handle := "shelf-pvc-" + string(claim.UID)
	volume := &corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)}
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(volume), volume); err != nil {
		t.Fatal(err)
	}
	if got := volume.Spec.CSI.VolumeHandle; got != handle {
		t.Errorf("the volume's handle is %q, want %q", got, handle)
	}
	pod := s.consumer("reader", claim.Name, "grep -x "+handle+" /data/handle")
	s.succeeded(pod)
	s.remove(pod)
	s.remove(claim)
	s.gone(volume)
	for _, step := range []tarn.Step{tarn.StepCreation, tarn.StepStaging, tarn.StepDeletion} {
		s.await(fmt.Sprintf("the pod of the %s to have been seen", step), func() (bool, string) {
			return suite.news.of(s.name).pods[step] > 0, "it was not"
		})
	}
}

// A user of claims tries to read what the author keeps in the environment of a pod.
func TestTheUserOfAClaimReadsNothingOfAnAuthorsEnvironment(t *testing.T) {
	t.Parallel()
	s := begin(t, "dollar")
	script := `mkdir /pav/volume; printf '%s\n' {{ pvc.metadata.annotations.note | tobash }} "$LABEL" "$1" "$2" > /pav/volume/seen`
	s.create(s.provisioner(fields{
		"volumeCreation": asRequested,
		"volumeStaging": fields{"podTemplate": fields{"spec": fields{
			"restartPolicy": "Never",
			"containers": []any{fields{
				"name": "main", "image": "busybox:1.36",
				"env":     []any{fields{"name": "PASSWORD", "value": "top-secret"}, fields{"name": "LABEL", "value": "{{ pvc.metadata.annotations.note }}"}},
				"command": []any{"sh", "-ec"},
				"args":    []any{script, "sh", "${{ pvc.metadata.annotations.rest }}", "$(PASSWORD)"},
			}},
		}}},
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	const note, rest = "costs $$5, is $(PASSWORD)", "(PASSWORD)"
	claim := s.bound(s.claimWith("data", func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{"note": note, "rest": rest}
	}))
	pod := s.consumer("reader", claim.Name, "cat /data/seen")
	s.succeeded(pod)
	if got, want := s.printed(pod), note+"\n"+note+"\n$"+rest+"\ntop-secret\n"; got != want {
		t.Errorf("the volume holds\n%s\nwant\n%s", got, want)
	}
}
