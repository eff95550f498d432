//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// aVolumeOfAnEarlierBootIsStagedAnew proves that a pod does not get a volume staged before the
// machine's last start. Here the machine stays up. The case edits the record to name an earlier
// boot, and restarts the agent.
func aVolumeOfAnEarlierBootIsStagedAnew(t *testing.T) {
	s := begin(t, "boot")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	first := s.consumer("first", claim.Name, "touch /data/old; echo written; "+stays)
	s.ready(first)
	s.prints(first, "written")
	stage := s.stageOf("staged", healthy(tarn.ReasonStaged))

	s.ofAnotherBoot(stage)
	if err := suite.machine.kill(nodeAgent); err != nil {
		t.Fatal(err)
	}
	second := s.consumer("second", claim.Name, "grep -qx hello /data/greeting && ! test -e /data/old")
	s.succeeded(second)
	s.gone(stage)
	s.remove(second)
	s.remove(first)
	s.remove(claim)
}

// ofAnotherBoot edits the record of a stage, as if it had been written before the machine's last
// start.
func (s *scenario) ofAnotherBoot(stage *tarn.PavStage) {
	s.t.Helper()
	pid, err := suite.machine.kubelet()
	if err != nil {
		s.t.Fatal(err)
	}
	path := fmt.Sprintf("/proc/%d/root%s/stages/%s/record.json", pid, stateDir, stage.UID)
	data, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	var record fields
	if err := json.Unmarshal(data, &record); err != nil {
		s.t.Fatalf("%s: %v", path, err)
	}
	if boot, _ := record["boot"].(string); boot == "" {
		s.t.Fatalf("the record names no boot: %s", data)
	}
	record["boot"] = "another"
	if data, err = json.Marshal(record); err != nil {
		s.t.Fatal(err)
	}
	// In one step, because the agent may be reading the file.
	if err := errors.Join(os.WriteFile(path+".edited", data, 0o600), os.Rename(path+".edited", path)); err != nil {
		s.t.Fatal(err)
	}
}
