package steppod

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func TestStepPodsRunWhereTheyMay(t *testing.T) {
	for _, c := range []struct {
		name    string
		allowed Namespaces
		named   string
		want    string // the namespace, or what the refusal says
	}{
		{"none", nil, "", "tarn-volumes"},
		{"one of the defaults", nil, "tarn-system", "tarn-system"},
		{"a tenant's", nil, "default", `step pods may not run in "default", only in tarn-volumes, tarn-system`},
		{"none, where another is first", Namespaces{"storage", "default"}, "", "storage"},
		{"one that is allowed", Namespaces{"storage", "default"}, "default", "default"},
		{"any, where all are allowed", Namespaces{"storage", "*"}, "shop", "shop"},
		{"that of Kubernetes, though all are allowed", Namespaces{"storage", "*"}, "kube-system", "a namespace of their own"},
		{"no name", Namespaces{"storage", "*"}, "Shop", "is not a valid namespace name"},
	} {
		o := orderOf(tarnv1.StepStaging)
		o.namespaces = c.allowed
		template := &podTemplate{}
		template.Metadata.Namespace = c.named
		meta, err := metadataOf(o, template)
		if err != nil && !strings.Contains(err.Error(), "spec.volumeStaging.podTemplate.metadata.namespace: ") {
			t.Errorf("%s: %v does not name the field", c.name, err)
		}
		if err == nil && meta.Namespace != c.want || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q, %v, want %s", c.name, meta.Namespace, err, c.want)
		}
	}
}

func TestAClaimDoesNotChooseWhereRootRuns(t *testing.T) {
	for _, c := range []struct {
		name, namespace string
		allowed         Namespaces
		want            string // empty for no problem
	}{
		{"by its namespace", "{{ pvc.metadata.namespace }}", nil, "reads pvc"},
		{"by a claim that it names", "{{ get_pvc(params.claim, params.namespace).metadata.annotations.where }}", nil, "reads get_pvc"},
		{"by its handle", "ns-{{ handle }}", nil, "reads handle"},
		{"but a class does", "{{ params.namespace }}", nil, ""},
		{"and it does where all are allowed", "{{ pvc.metadata.namespace }}", Namespaces{"storage", "*"}, ""},
		{"a name that is not allowed", "shop", nil, `step pods may not run in "shop"`},
		{"a name that is", "tarn-system", nil, ""},
		{"that of Kubernetes, though all are allowed", "kube-system", Namespaces{"storage", "*"}, "a namespace of their own"},
	} {
		p := &pavv1.PavProvisioner{}
		p.Spec.ProvisioningModes = []pavv1.ProvisioningMode{pavv1.ModeStatic}
		p.Spec.VolumeStaging = &apiextensionsv1.JSON{Raw: []byte(`{"podTemplate": {"metadata": {"namespace": "` + c.namespace + `"}, "spec": {"containers": [{"name": "main", "image": "i"}]}}}`)}
		problems := Check(p, c.allowed)
		if c.want == "" && len(problems) == 0 {
			continue
		}
		if len(problems) != 1 || c.want == "" || problems[0].Field != "spec.volumeStaging.podTemplate.metadata.namespace" || !strings.Contains(problems[0].Message, c.want) {
			t.Errorf("%s: %v, want %q", c.name, problems, c.want)
		}
	}
}
