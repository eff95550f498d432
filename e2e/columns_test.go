//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// The resources that `kubectl get pav,pavvol,pavstage` shows.
const (
	provisioners = "/apis/pav.albertofaria.github.io/v1alpha1/pavprovisioners"
	records      = "/apis/tarn.dev/v1alpha1/pavvolumes"
	stages       = "/apis/tarn.dev/v1alpha1/pavstages"
)

// row is a line of kubectl's output, by column name in capitals. Blank columns are left out.
type row map[string]string

// shown gives the row of the object that has a value in a column. The API server makes it, as for
// kubectl.
func (s *scenario) shown(resource, column, value string) (row, error) {
	var table metav1.Table
	text, err := suite.logs.CoreV1().RESTClient().Get().AbsPath(resource).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(s.ctx)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &table); err != nil {
		return nil, err
	}
	for _, line := range table.Rows {
		found := row{}
		for i, definition := range table.ColumnDefinitions {
			if cell := line.Cells[i]; cell != nil && cell != "" {
				found[strings.ToUpper(definition.Name)] = fmt.Sprint(cell)
			}
		}
		if found[column] == value {
			return found, nil
		}
	}
	return nil, nil
}

// shows waits until the row of an object has the given text in each column. A column with "" must
// be blank; "*" matches anything.
func (s *scenario) shows(resource, column, value string, want row) {
	s.t.Helper()
	s.await(fmt.Sprintf("%s %s to have %q", resource, value, want), func() (bool, string) {
		got, err := s.shown(resource, column, value)
		if err != nil {
			return false, err.Error()
		}
		for name, text := range want {
			if text == "" && got[name] != "" || text == "*" && got[name] == "" || text != "*" && !strings.Contains(got[name], text) {
				return false, fmt.Sprintf("column %s is %q in %q", name, got[name], got)
			}
		}
		return true, ""
	})
}

func TestTheColumnsSayThatAllIsWell(t *testing.T) {
	t.Parallel()
	s := begin(t, "columns")
	s.fiveSections()
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claimWith("data", asksModes(corev1.ReadOnlyMany)))
	pod := s.consumer("reader", claim.Name, stays)
	s.ready(pod)
	if err := s.get(pod); err != nil {
		t.Fatal(err)
	}
	s.shows(provisioners, "NAME", s.name, row{
		"MODES": `["Dynamic","Static"]`, "ACCEPTED": "True", "READY": "True", "NODES": "1", "VOLUMES": "1", "AGE": "*",
	})
	volume := claim.Spec.VolumeName
	s.shows(records, "NAME", volume, row{
		"PHASE": string(tarn.VolumeCreated), "PROVISIONER": s.name, "NAMESPACE": s.name, "CLAIM": claim.Name, "ATTEMPTS": "1", "HANDLE": "*", "AGE": "*", "ERROR": "",
	})
	s.shows(stages, "VOLUME", volume, row{
		"NAME": "*", "NODE": pod.Spec.NodeName, "READONLY": "true", "STAGE": string(tarn.StageStaged), "POD": string(tarn.StagePodSucceeded), "HEALTHY": "True", "AGE": "*",
		"MESSAGE": "", "POD-MESSAGE": "",
	})
	if suite.machine.here() {
		out := s.kubectlSays("get", "pav,pavvol,pavstage")
		for _, want := range []string{"pavprovisioner.pav.albertofaria.github.io/" + s.name, "pavvolume.tarn.dev/" + volume, "pavstage.tarn.dev/"} {
			if !strings.Contains(out, want) {
				t.Errorf("kubectl get pav,pavvol,pavstage does not show %s:\n%s", want, out)
			}
		}
	}
}

func TestTheColumnsSayWhatHasFailed(t *testing.T) {
	t.Parallel()
	t.Run("a template", func(t *testing.T) {
		t.Parallel()
		s := begin(t, "columns-template")
		s.create(s.provisioner(fields{"volumeCreation": fields{"capacity": "{{ 1 + }}"}, "volumeStaging": greeting}))
		s.shows(provisioners, "NAME", s.name, row{"ACCEPTED": "False", "AGE": "*", "MESSAGE": "volumeCreation.capacity"})
	})
	t.Run("a creation", func(t *testing.T) {
		t.Parallel()
		s := begin(t, "columns-creation")
		s.create(s.provisioner(fields{"volumeCreation": fails(asRequested), "volumeStaging": greeting}))
		s.class(corev1.PersistentVolumeReclaimDelete)
		claim := s.claim("data")
		s.shows(records, "PROVISIONER", s.name, row{"NAME": "pvc-" + string(claim.UID), "PHASE": "*", "CLAIM": claim.Name, "ATTEMPTS": "*", "ERROR": complaint})
	})
	t.Run("a staging", func(t *testing.T) {
		t.Parallel()
		s := begin(t, "columns-staging")
		s.create(s.provisioner(fields{
			"volumeCreation": asRequested, "volumeStaging": fails(nil), "volumeUnstaging": script{text: "sleep 2"}.section(nil), // long enough for the case to see the stage
		}))
		s.class(corev1.PersistentVolumeReclaimDelete)
		claim := s.bound(s.claim("data"))
		s.consumer("reader", claim.Name, "true")
		s.shows(stages, "VOLUME", claim.Spec.VolumeName, row{"STAGE": string(tarn.StageFailed), "POD": "*", "HEALTHY": "", "MESSAGE": complaint})
	})
}
