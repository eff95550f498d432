package steppod

import (
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
)

func measuring(path, reserve string) *pavv1.PavProvisioner {
	p := &pavv1.PavProvisioner{}
	p.Spec.Topology, p.Spec.NodeCapacity = pavv1.TopologyNode, &pavv1.NodeCapacity{Path: path, Reserve: reserve}
	return p
}

func TestNodeCapacityIsEvaluatedWithTheParametersOfTheClassAlone(t *testing.T) {
	class := &storagev1.StorageClass{Parameters: map[string]string{"folder": "/mnt/fast/", "kept": "5"}}
	for _, c := range []struct{ path, reserve, wantPath, wantReserve, wantErr string }{
		{"/var/lib/x", "", "/var/lib/x", "", ""},
		{"{{ params.folder }}", "{{ params.kept }}%", "/mnt/fast", "5%", ""},
		{"{{ params.other | default('/var/lib/x') }}", "1Gi", "/var/lib/x", "1Gi", ""},
		{"{% set yaml = true %}/x", "{% set yaml = true %}1024", "/x", "1024", ""},
		{"{{ params.other }}", "", "", "", "spec.nodeCapacity.path"},
		{"{{ pvc.metadata.name }}", "", "", "", "spec.nodeCapacity.path"},
		{"{{ get_pvc('a', 'b') }}", "", "", "", "spec.nodeCapacity.path"},
		{"x{{ params.folder }}", "", "", "", `spec.nodeCapacity.path: "x/mnt/fast/" is not an absolute path`},
		{"/x", "{{ params.folder }}", "", "", `spec.nodeCapacity.reserve: reserve "/mnt/fast/" is neither`},
	} {
		path, reserve, err := RoomFor(t.Context(), measuring(c.path, c.reserve), class)
		if path != c.wantPath || reserve != c.wantReserve || (err == nil) != (c.wantErr == "") || err != nil && !strings.Contains(err.Error(), c.wantErr) {
			t.Errorf("%q and %q give %q, %q, %v, want %q, %q, %q", c.path, c.reserve, path, reserve, err, c.wantPath, c.wantReserve, c.wantErr)
		}
	}
}

func TestMistakesInNodeCapacityAreFoundWithoutAClass(t *testing.T) {
	of := func(p *pavv1.PavProvisioner) (fields []string) {
		for _, problem := range checkCapacity(p) {
			fields = append(fields, problem.Field)
		}
		return fields
	}
	anywhere := measuring("/x", "")
	anywhere.Spec.Topology = pavv1.TopologyCluster
	for want, p := range map[string]*pavv1.PavProvisioner{
		"":                          measuring("{{ params.folder }}", "{{ params.kept }}"),
		"spec.nodeCapacity":         anywhere,
		"spec.nodeCapacity.path":    measuring("var/lib", "2%"),
		"spec.nodeCapacity.reserve": measuring("/x", "2.5%"),
		"spec.nodeCapacity.path spec.nodeCapacity.reserve": measuring("{{ params.", "{{ params."),
	} {
		if got := strings.Join(of(p), " "); got != want {
			t.Errorf("%+v has mistakes in %q, want %q", *p.Spec.NodeCapacity, got, want)
		}
	}
	if got := Check(measuring("var", ""), nil); len(got) == 0 || got[len(got)-1].Field != "spec.nodeCapacity.path" {
		t.Errorf("Check gives %v", got)
	}
}
