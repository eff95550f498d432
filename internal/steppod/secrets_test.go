package steppod

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// reading builds a provisioner whose creation pod has this argument.
func reading(argument string) *pavv1.PavProvisioner {
	return testkit.Provisioner("prov", func(p *pavv1.PavProvisioner) {
		p.Spec.VolumeCreation = testkit.Section(`{"podTemplate": {"spec": {"containers": [{"name": "c", "args": ["` + argument + `"]}]}}}`)
	})
}

func TestASecretOfAClassIsReadOrNamed(t *testing.T) {
	const stage, expand = "csi.storage.k8s.io/node-stage-secret-name", "csi.storage.k8s.io/controller-expand-secret-name"
	both := map[string]string{stage: "s", "csi.storage.k8s.io/node-stage-secret-namespace": "n", expand: "e", "tier": "gold"}
	for _, c := range []struct {
		name       string
		argument   string
		parameters map[string]string
		want       string
	}{
		{"no Secret", "x", map[string]string{"tier": "gold", FSTypeParameter: "ext4"}, ""},
		{"no parameter is read", "{{ requestedMinCapacity }}", both, expand},
		{"a word is no reading", "params sc pv", both, expand},
		{"it is read", "{{ params['" + expand + "'] }}", both, ""},
		{"it may be read by a name put together", "{{ params['csi.storage.k8s.io/' ~ step ~ '-secret-name'] }}", both, ""},
		{"all are gone through", "{% for k in params -%}{{ k }}{%- endfor %}", both, ""},
		{"those of the class", "{{ sc['parameters'] | tojson }}", both, ""},
		{"those that the volume has", "{{ pv.spec.csi.volumeAttributes | tojson }}", both, ""},
	} {
		class := testkit.Class("prov", func(s *storagev1.StorageClass) { s.Parameters = c.parameters })
		if got := UnreadSecret(reading(c.argument), class); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want it to name %q", c.name, got, c.want)
		}
	}
}

func TestASecretOfAVolumeIsReadOrRefused(t *testing.T) {
	ref := &corev1.SecretReference{Namespace: "vault", Name: "key"}
	block := corev1.PersistentVolumeBlock
	for field, set := range map[string]func(*corev1.CSIPersistentVolumeSource){
		"controllerPublishSecretRef": func(c *corev1.CSIPersistentVolumeSource) { c.ControllerPublishSecretRef = ref },
		"nodeStageSecretRef":         func(c *corev1.CSIPersistentVolumeSource) { c.NodeStageSecretRef = ref },
		"nodePublishSecretRef":       func(c *corev1.CSIPersistentVolumeSource) { c.NodePublishSecretRef = ref },
		"controllerExpandSecretRef":  func(c *corev1.CSIPersistentVolumeSource) { c.ControllerExpandSecretRef = ref },
		"nodeExpandSecretRef":        func(c *corev1.CSIPersistentVolumeSource) { c.NodeExpandSecretRef = ref },
	} {
		vol := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{VolumeMode: &block}}
		vol.Name, vol.Spec.CSI = "by-hand", &corev1.CSIPersistentVolumeSource{Driver: "prov"}
		if err := checkSecrets(reading("x"), vol); err != nil {
			t.Errorf("without a Secret: %v", err)
		}
		set(vol.Spec.CSI)
		refused := AsStepError(checkSecrets(reading("{{ params.tier }}"), vol))
		if refused == nil || refused.Reason != ReasonVolumeRefused || !strings.Contains(refused.Message, `"by-hand": spec.csi.`+field+` is "vault/key"`) {
			t.Errorf("%s: got %v", field, refused)
		}
		for _, argument := range []string{"{{ pv.spec.csi." + field + ".name }}", "{{ pv | tojson }}", "{{ pv['spec'].csi.items() }}"} {
			if err := checkSecrets(reading(argument), vol); err != nil {
				t.Errorf("%s, read by %s: %v", field, argument, err)
			}
		}
	}
}

func TestAVolumeWithASecretThatNobodyReadsIsNotStaged(t *testing.T) {
	claim := testkit.Claim("ns", "data", "u1", "prov")
	vol := testkit.Volume(testkit.Record(claim, "prov", tarnv1.VolumeCreated))
	stage := &tarnv1.PavStage{}
	prepare := func(step tarnv1.Step) error {
		_, err := (&Steps{StateDir: "/state"}).PrepareStage(t.Context(), step, reading("x"), stage, vol, claim, &corev1.Node{}, 1)
		return err
	}
	if err := prepare(tarnv1.StepStaging); err != nil {
		t.Fatal(err)
	}
	vol.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "vault", Name: "key"}
	if refused := AsStepError(prepare(tarnv1.StepStaging)); refused == nil || !strings.Contains(refused.Message, "nodeStageSecretRef") {
		t.Errorf("got %v", refused)
	}
	if err := prepare(tarnv1.StepUnstaging); err != nil {
		t.Errorf("what was staged before cannot be unstaged: %v", err)
	}
	stage.Status.Pod.Staged = true
	if err := prepare(tarnv1.StepStaging); err != nil {
		t.Errorf("what was staged before cannot be staged again when it is lost: %v", err)
	}
}
