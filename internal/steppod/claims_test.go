package steppod

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// over is a provisioner with a claim backing of that template, which its creation pod mounts.
func over(template string) *pavv1.PavProvisioner {
	return testkit.Provisioner("prov", func(p *pavv1.PavProvisioner) {
		p.Spec.Claims = []pavv1.VolumeClaim{{Name: "backing", Template: testkit.Section(template)}}
		p.Spec.VolumeCreation = testkit.Section(`{"podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}],
			"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "{{ claims.backing }}"}}]}}}`)
	})
}

func recordAt(depth int) *tarnv1.PavVolume {
	return testkit.Record(testkit.Claim("ns", "data", "u1", "prov"), "prov", tarnv1.VolumePending, func(r *tarnv1.PavVolume) {
		r.Spec.ClaimSnapshot = apiextensionsv1.JSON{Raw: fmt.Appendf(nil, `{"metadata": {"name": "data", "annotations": {"tarn.dev/depth": "%d"}}}`, depth)}
	})
}

func TestTheClaimOfAVolumeIsThatOfItsTemplateAndTheCreationPodMountsIt(t *testing.T) {
	p, record, steps := over(`{"metadata": {"labels": {"a": "{{ params.tier }}", "tarn.dev/app": "x"}}, "spec": {"storageClassName": "{{ params.tier }}"}}`), recordAt(1), &Steps{}
	claims, err := steps.PrepareClaims(t.Context(), p, record, nil, 0)
	if err != nil || len(claims) != 1 {
		t.Fatalf("claims %v, %v, want one", claims, err)
	}
	c := claims[0]
	if c.Namespace != tarnv1.StepNamespace || c.Name != "pvc-u1-backing" || c.Labels["a"] != "gold" || c.Labels["tarn.dev/app"] != "" ||
		c.Labels[tarnv1.LabelDeletionProtection] != "true" || !OwnsClaim(record, c) || c.Annotations[tarnv1.AnnotationDepth] != "2" {
		t.Errorf("got metadata %+v", c.ObjectMeta)
	}
	if size := c.Spec.Resources.Requests[corev1.ResourceStorage]; size.Value() != 1<<30 || *c.Spec.StorageClassName != "gold" || !slices.Equal(c.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}) {
		t.Errorf("got spec %+v", c.Spec)
	}
	prepared, err := steps.PrepareCreation(t.Context(), p, record, nil, 1)
	if err != nil || prepared.Pod.Namespace != c.Namespace || prepared.Pod.Spec.Volumes[1].PersistentVolumeClaim.ClaimName != c.Name {
		t.Errorf("the creation pod is %+v, %v, want it to mount %s", prepared, err, c.Name)
	}
	larger, err := steps.PrepareClaims(t.Context(), p, record, nil, 3<<30)
	if size := larger[0].Spec.Resources.Requests[corev1.ResourceStorage]; err != nil || size.Value() != 3<<30 {
		t.Errorf("for 3Gi it asks for %s, %v", size.String(), err)
	}
}

func TestAClaimThatCannotBeIsRefused(t *testing.T) {
	const field = "spec.claims[0].template"
	for template, want := range map[string]string{
		`{"spec": {"volumeName": "{{ 'a' }}"}}`:                       field + ".spec.volumeName: may not be set",
		`{"spec": {"dataSource": {"kind": "VolumeSnapshot"}}}`:        field + ".spec.dataSource: may not be set",
		`{"spec": "{% set yaml = true %}{volumeName: other}"}`:        field + ".spec.volumeName: may not be set",
		`{"metadata": {"name": "x"}}`:                                 field + ".metadata.name: may not be set",
		`{"sepc": {}}`:                                                field + ".sepc: unknown field",
		`{"spec": {"storageClassName": "{{ params.nope.deeper }}"}}`:  field + ".spec.storageClassName",
		`{"spec": {"resources": {"requests": {"storage": "{{ 1 "}}}}`: field + ".spec.resources.requests.storage",
		`{"spec": {"resources": {"requests": {"storage": "much"}}}}`:  field + ": ",
	} {
		_, err := (&Steps{}).PrepareClaims(t.Context(), over(template), recordAt(0), nil, 0)
		if step := AsStepError(err); step == nil || !strings.Contains(step.Message, want) {
			t.Errorf("%s: got %v, want %q", template, err, want)
		}
	}
	if _, err := (&Steps{}).PrepareClaims(t.Context(), over(`{}`), recordAt(maxDepth), nil, 0); AsStepError(err) == nil {
		t.Errorf("a claim below %d volumes: got %v, want it rejected", maxDepth+1, err)
	}
}

func TestAProvisionerWithClaimsIsCheckedAsWritten(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*pavv1.PavProvisioner)
		want   string
	}{
		"right":            {func(*pavv1.PavProvisioner) {}, ""},
		"where its claims": {func(p *pavv1.PavProvisioner) { p.Spec.Topology = pavv1.TopologyClaims }, ""},
		"no claims":        {func(p *pavv1.PavProvisioner) { p.Spec.Claims, p.Spec.Topology = nil, pavv1.TopologyClaims }, "spec.topology: is Claims, but"},
		"no creation pod":  {func(p *pavv1.PavProvisioner) { p.Spec.VolumeCreation = testkit.Section(`{"capacity": "1Gi"}`) }, "spec.volumeCreation.podTemplate: is missing"},
		"the data of others": {func(p *pavv1.PavProvisioner) {
			p.Spec.Claims[0].Template = testkit.Section(`{"spec": {"volumeName": "x"}}`)
		}, "spec.claims[0].template.spec.volumeName"},
		"a template": {func(p *pavv1.PavProvisioner) {
			p.Spec.Claims[0].Template = testkit.Section(`{"spec": {"storageClassName": "{{ 1"}}`)
		}, "spec.claims[0].template.spec.storageClassName: line 1"},
		"by hand": {func(p *pavv1.PavProvisioner) {
			p.Spec.ProvisioningModes, p.Spec.VolumeDeletion = []pavv1.ProvisioningMode{pavv1.ModeStatic}, nil
		}, "spec.claims: needs Dynamic"},
	} {
		p := over(`{"spec": {"storageClassName": "{{ params.backingClass }}"}}`)
		c.change(p)
		var got []string
		for _, problem := range Check(p, nil) {
			got = append(got, problem.String())
		}
		if text := strings.Join(got, "\n"); c.want == "" && text != "" || !strings.Contains(text, c.want) {
			t.Errorf("%s: problems %q, want %q", name, got, c.want)
		}
	}
}

func TestWithTopologyClaimsTheCreationAloneIsBoundToANode(t *testing.T) {
	p, record := over(`{}`), recordAt(0)
	p.Spec.Topology, record.Status.NodeName = pavv1.TopologyClaims, "node-a"
	for step, want := range map[tarnv1.Step]int{tarnv1.StepValidation: 1, tarnv1.StepCreation: 1, tarnv1.StepDeletion: 0, tarnv1.StepExpansion: 0} {
		if got := nodesOf(step, p, record); len(got) != want {
			t.Errorf("%s: nodes %v, want %d terms", step, got, want)
		}
	}
}
