//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestAVolumeWrittenByHandPassesTarnPavTest(t *testing.T) {
	t.Parallel()
	document := func(staging script, change func(spec fields)) string {
		p := (&scenario{name: "by-hand"}).provisioner(fields{"volumeStaging": staging.section(nil)})
		spec := p.Object["spec"].(fields)
		spec["provisioningModes"] = []any{"Static"}
		change(spec)
		text, err := yaml.Marshal(p.Object)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	asIs := func(fields) {}
	volume := objectFile(t, "PersistentVolume", fields{"metadata": fields{"name": "any"}, "spec": fields{
		"capacity": fields{"storage": "2Gi"}, "accessModes": []any{"ReadWriteMany"},
		"csi": fields{"driver": "any", "volumeHandle": "disk-7", "volumeAttributes": fields{"region": "eu"}},
	}})
	shown := objectFile(t, "PersistentVolume", fields{"metadata": fields{"name": "any"}, "spec": fields{
		"capacity": fields{"storage": "2Gi"}, "accessModes": []any{"ReadOnlyMany"}, "csi": fields{"driver": "any", "volumeHandle": "disk-7"},
	}})
	// The staging pod reads a Secret of the namespace where step pods run.
	const key = namePrefix + "try-key"
	secret := objectFile(t, "Secret", fields{"metadata": fields{"name": key, "namespace": "tarn-volumes"}, "stringData": fields{"word": "open"}})
	keyed := func(spec fields) {
		pod := spec["volumeStaging"].(fields)["podTemplate"].(fields)
		pod["spec"].(fields)["containers"].([]any)[0].(fields)["env"] = []any{fields{"name": "WORD", "valueFrom": fields{"secretKeyRef": fields{"name": key, "key": "word"}}}}
	}
	staged := script{text: "mkdir /pav/volume && test {{ handle|tobash }}/{{ params.region|default('none')|tobash }} = "}
	of := func(what string) script { return script{text: staged.text + what} }
	small := func(spec fields) { spec["volumeValidation"] = fields{"maxCapacity": "1Gi"} }
	for _, c := range []struct {
		name, text string
		args       []string
		wantStatus int
		// want is the result of a step.
		step, want string
	}{
		{"a made-up one", document(script{text: "mkdir /pav/volume"}, asIs), nil, 0, "bound", "of 1Gi, handle by-hand-"},
		{"one that is given", document(of("disk-7/eu"), asIs), []string{"--volume", volume}, 0, "bound", "of 2Gi, handle disk-7"},
		{"one that can only be read", document(script{text: "mkdir /pav/volume && echo a > /pav/volume/b"}, asIs), []string{"--volume", shown}, 0, "written", "read, not written: the volume is read-only"},
		{"one with a Secret", document(script{text: "test $WORD = open && mkdir /pav/volume"}, keyed), []string{"--with", secret}, 0, "staged", "on node "},
		{"one that cannot be staged", document(of("disk-8/eu"), asIs), []string{"--volume", volume}, 1, "staged", "exited with 1"},
		{"one that is refused", document(of("disk-7/eu"), small), []string{"--volume", volume}, 1, "staged", "spec.volumeValidation.maxCapacity"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := tries(t, c.wantStatus, c.text, append(c.args, "-")...)
			found := false
			for _, step := range r.Steps {
				found = found || step.Name == c.step && step.Passed == (c.wantStatus == 0) && strings.Contains(step.Detail, c.want)
			}
			if last := r.Steps[len(r.Steps)-1]; !found || r.Passed != (c.wantStatus == 0) || len(r.Left) > 0 || last.Name != "cleaned up" || c.wantStatus == 0 && len(r.Steps) != 11 {
				t.Errorf("want the step %s to say %q:\n%+v", c.step, c.want, r)
			}
		})
	}
}
