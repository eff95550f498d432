package steppod

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

func secretClass(name, namespace string) *storagev1.StorageClass {
	return testkit.Class("prov", func(s *storagev1.StorageClass) {
		s.Parameters = map[string]string{SecretNameParameter: name, SecretNamespaceParameter: namespace}
	})
}

func TestAClassNamesTheSecretOfAClaim(t *testing.T) {
	claim := testkit.Claim("shop", "data", "u1", "prov")
	claim.Annotations = map[string]string{"team.example.com/key": "mine", "bad": "../x", "other": "${pvc.name}"}
	for _, c := range []struct{ name, namespace, want string }{
		{"key", "vault", "vault/key"},
		{"key", "${pvc.namespace}", "shop/key"},
		{"${pvc.namespace}-${pvc.name}", "vault", "vault/shop-data"},
		{"${pvc.annotations['team.example.com/key']}", "${pvc.namespace}", "shop/mine"},
		{"${pv.name}", "ns-${pv.name}", "ns-pvc-u1/pvc-u1"},
		{"${pvc.annotations['none']}", "vault", `the claim has no annotation "none"; set it`},
		{"${pvc.annotations['bad']}", "vault", `gives "../x" for this claim`},
		{"${pvc.annotations['other']}", "vault", `gives "${pvc.name}" for this claim`}, // a value is not expanded again
		{"key", "${pvc.annotations['team.example.com/key']}", `there is no variable "pvc.annotations['team.example.com/key']"; use ${pv.name} or ${pvc.namespace}`},
		{"key", "${pvc.name}", `there is no variable "pvc.name"`},
		{"${pvc.uid}", "vault", `there is no variable "pvc.uid"`},
		{"Key", "vault", `gives "Key"`},
		{"key", "va.ult", `gives "va.ult"`},
	} {
		got, err := SecretOf(secretClass(c.name, c.namespace), "pvc-u1", claim)
		switch {
		case err != nil && (strings.Contains(c.want, "/") && !strings.Contains(c.want, " ") || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s in %s: error %v, want %s", c.name, c.namespace, err, c.want)
		case err == nil && got.Namespace+"/"+got.Name != c.want:
			t.Errorf("%s in %s: got %s/%s, want %s", c.name, c.namespace, got.Namespace, got.Name, c.want)
		}
	}
	for _, class := range []*storagev1.StorageClass{secretClass("", ""), secretClass("key", ""), secretClass("", "vault"), testkit.Class("prov")} {
		if got, err := SecretOf(class, "pvc-u1", claim); got != nil || err != nil {
			t.Errorf("of a class with parameters %v: got %v, %v", class.Parameters, got, err)
		}
	}
}

func TestASecretOfAClassIsForStagingPodsOnlyWithItsNamespace(t *testing.T) {
	if got := UnreadSecret(reading("x"), secretClass("key", "vault")); got != "" {
		t.Errorf("with a namespace: %s", got)
	}
	if got := UnreadSecret(reading("x"), secretClass("key", "")); !strings.Contains(got, "create the class again with both") {
		t.Errorf("without a namespace: %s", got)
	}
}

func TestAVolumeServesNoOtherClaimWithTheSecretOfItsFirst(t *testing.T) {
	first := testkit.Claim("shop", "data", "u1", "prov")
	for _, c := range []struct {
		what, name, namespace string
		next                  *corev1.PersistentVolumeClaim
		refused               bool
	}{
		{"its own claim", "key", "${pvc.namespace}", first, false},
		{"its claim, brought back", "key", "${pvc.namespace}", testkit.Claim("shop", "data", "u2", "prov"), false},
		{"a claim of another tenant", "key", "${pvc.namespace}", testkit.Claim("else", "data", "u2", "prov"), true},
		{"another claim, of keys by claim", "${pvc.namespace}-${pvc.name}", "vault", testkit.Claim("shop", "other", "u2", "prov"), true},
		{"another tenant, of one key for all", "key", "vault", testkit.Claim("else", "data", "u2", "prov"), false},
	} {
		vol := testkit.Volume(testkit.Record(first, "prov", tarnv1.VolumeCreated))
		class := secretClass(c.name, c.namespace)
		vol.Spec.CSI.VolumeAttributes = class.Parameters
		var err error
		if vol.Spec.CSI.NodePublishSecretRef, err = SecretOf(class, vol.Name, first); err != nil {
			t.Fatal(err)
		}
		stage := &tarnv1.PavStage{}
		stage.Status.Pod.Staged = true
		_, err = (&Steps{StateDir: "/state"}).PrepareStage(t.Context(), tarnv1.StepStaging, reading("x"), stage, vol, c.next, &corev1.Node{}, 1)
		if refused := AsStepError(err); (refused != nil) != c.refused || refused != nil && !strings.Contains(refused.Message, "was made with Secret") {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
