//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

// complaint is what a failing pod writes to /pav/error.
const complaint = "shelf 7 is full"

// fails gives a section whose pod writes a complaint and fails.
func fails(more fields) fields {
	return script{text: "echo '" + complaint + "' > /pav/error; false"}.section(more)
}

func TestAFailingProvisioningPodLeavesTheClaimPending(t *testing.T) {
	t.Parallel()
	works := script{text: "true"}
	for _, c := range []struct {
		step     tarn.Step
		sections fields
		// wantUndone says that the deletion pod runs for anything that may have been made.
		wantUndone bool
	}{
		{tarn.StepValidation, fields{"volumeValidation": fails(nil), "volumeCreation": works.section(asRequested)}, false},
		// Without a text in /pav/error, the message has the last output.
		{tarn.StepCreation, fields{"volumeValidation": works.section(nil), "volumeCreation": script{text: "echo '" + complaint + "'; exit 127"}.section(asRequested)}, true},
	} {
		t.Run(string(c.step), func(t *testing.T) {
			t.Parallel()
			s := begin(t, "fail-"+string(c.step))
			c.sections["volumeDeletion"] = works.section(nil)
			c.sections["volumeStaging"] = greeting
			s.create(s.provisioner(c.sections))
			s.class(corev1.PersistentVolumeReclaimDelete)
			claim := s.claim("data")
			s.told(claim, "ProvisioningFailed", complaint)
			s.await("a second attempt", func() (bool, string) {
				n := suite.news.of(s.name).pods[c.step]
				return n >= 2, "there was one"
			})
			if phase := s.phase(claim); phase != corev1.ClaimPending {
				t.Errorf("the claim is %s, want Pending", phase)
			}
			s.remove(claim)
			s.remove(&pav.PavProvisioner{ObjectMeta: named(s.name)})
			s.wasUndone(c.wantUndone)
			if c.step == tarn.StepValidation && suite.news.of(s.name).pods[tarn.StepCreation] > 0 {
				t.Error("a creation pod ran after a failed validation")
			}
		})
	}
}

// isAProblem waits until tarn status names a claim that cannot be staged among the problems, whatever
// the kubelet waits for.
func (s *scenario) isAProblem(claim *corev1.PersistentVolumeClaim, want string) {
	s.t.Helper()
	s.await("tarn status to name claim "+claim.Name+" among the problems", func() (bool, string) {
		out, said, status, err := tool("", "status", "--output", "json")
		if err != nil || status > 1 {
			return false, fmt.Sprintf("exit status %d, %v: %s", status, err, said)
		}
		var all struct {
			Healthy  bool
			Problems []struct {
				Object  struct{ Namespace, Name string }
				Message string
			}
		}
		if err := json.Unmarshal([]byte(out), &all); err != nil || all.Healthy != (status == 0) {
			s.t.Fatalf("exit status %d, %v:\n%s", status, err, out)
		}
		for _, p := range all.Problems {
			if strings.Contains(p.Message, want) && (p.Object.Namespace == s.name && p.Object.Name == claim.Name || strings.Contains(p.Message, claim.Spec.VolumeName)) {
				return true, ""
			}
		}
		return false, fmt.Sprintf("the problems are %+v", all.Problems)
	})
}

func TestAFailingStagingPodLeavesThePodPending(t *testing.T) {
	t.Parallel()
	// By default the kubelet restarts the pod, and it would find its own directory.
	crashes := script{text: "mkdir /pav/volume 2> /pav/error || exit 1; echo the server has died > /pav/error; exit 9"}.section(nil)
	delete(podSpec(crashes), "restartPolicy")
	for _, c := range []struct {
		name    string
		staging fields
		want    string
	}{
		{"crash-staging", crashes, "the server has died"},
		{"fail-staging", fails(nil), complaint},
		{"late-staging", script{text: "sleep 1000"}.section(fields{"deadlineSeconds": "{{ 1 + 2 }}"}), "has not made the volume available within 3s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := begin(t, c.name)
			s.create(s.provisioner(fields{
				"volumeCreation":  asRequested,
				"volumeStaging":   c.staging,
				"volumeUnstaging": script{text: "true"}.section(nil),
			}))
			s.class(corev1.PersistentVolumeReclaimDelete)
			claim := s.bound(s.claim("data"))
			pod := s.consumer("reader", claim.Name, "true")
			s.told(pod, "FailedMount", c.want)
			for _, e := range append(s.events(pod.Namespace, pod.Name), s.events(claim.Namespace, claim.Name)...) {
				if strings.Contains(e.Message, "File exists") {
					t.Errorf("a later failure is told: %s", e.Message)
				}
			}
			s.isAProblem(claim, c.want)
			if err := s.get(pod); err != nil {
				t.Fatal(err)
			}
			if pod.Status.Phase != corev1.PodPending {
				t.Errorf("the pod is %s, want Pending", pod.Status.Phase)
			}
			s.remove(pod)
			s.remove(claim)
			s.remove(&pav.PavProvisioner{ObjectMeta: named(s.name)})
		})
	}
}

// wasUndone wants a deletion pod to have run, or none. The report of one may arrive after all
// objects are gone.
func (s *scenario) wasUndone(want bool) {
	s.t.Helper()
	undone := func() bool { return suite.news.of(s.name).pods[tarn.StepDeletion] > 0 }
	if want {
		s.await("the deletion pod to have been seen", func() (bool, string) { return undone(), "it was not" })
	} else if undone() {
		s.t.Error("a deletion pod ran for what was never made")
	}
}

func TestAClaimDeletedWhileItsVolumeIsMadeLeavesNothing(t *testing.T) {
	t.Parallel()
	works := script{text: "true"}
	shelf := t.TempDir() // until the last pod of the cases is gone
	// waits waits until the case of that name has seen that its claim is gone.
	waits := func(name string) script {
		return script{hostDir: shelf, text: "until [ -e /host/" + name + " ]; do sleep 0.1; done"}
	}
	for _, c := range []struct {
		name     string
		sections fields
		reached  func(trace) bool
		// wantUndone says that the deletion pod runs for anything that may have been made.
		wantUndone bool
	}{
		{"validating", fields{"volumeValidation": waits("validating").section(nil), "volumeCreation": works.section(asRequested)},
			func(seen trace) bool { return seen.pods[tarn.StepValidation] > 0 }, false},
		{"creating", fields{"volumeCreation": waits("creating").section(asRequested)},
			// A pod without a node has made nothing, and is withdrawn.
			func(seen trace) bool { return seen.onNodes[tarn.StepCreation] }, true},
		{"created", fields{"volumeCreation": works.section(asRequested)},
			func(seen trace) bool { return seen.volumePhases[tarn.VolumeCreated] }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := begin(t, "abandoned-"+c.name)
			s.needsThisMachine()
			goOn := func() { put(t, filepath.Join(shelf, c.name)) }
			c.sections["volumeDeletion"] = works.section(nil)
			c.sections["volumeStaging"] = greeting
			s.create(s.provisioner(c.sections))
			s.class(corev1.PersistentVolumeReclaimDelete)
			claim := s.claim("data")
			t.Cleanup(goOn)
			s.await("the volume to be that far", func() (bool, string) {
				seen := suite.news.of(s.name)
				return c.reached(seen), fmt.Sprintf("seen were pods %v and phases %v", seen.pods, seen.volumePhases)
			})
			s.remove(claim)
			goOn()
			s.remove(&pav.PavProvisioner{ObjectMeta: named(s.name)})
			s.wasUndone(c.wantUndone)
			if !c.wantUndone && suite.news.of(s.name).pods[tarn.StepCreation] > 0 {
				t.Error("a creation pod ran for a claim that was deleted before")
			}
		})
	}
}

func TestACreationPodThatCannotPullItsImageIsToldAtItsDeadline(t *testing.T) {
	t.Parallel()
	s := begin(t, "no-image")
	s.step = 3 * soon
	creation := script{text: "true"}.section(asRequested)
	container(creation)["image"] = "tarn.invalid/no-such-image:1"
	podSpec(creation)["activeDeadlineSeconds"] = int64(20) // its sandbox and the first pull may take some of it
	s.create(s.provisioner(fields{
		"volumeCreation": creation, "volumeDeletion": script{text: "true"}.section(nil), "volumeStaging": greeting,
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.claim("data")
	s.told(claim, "ProvisioningFailed", "has not ended within 20s", "container main", "ImagePull", "tarn.invalid/no-such-image")
	record := &tarn.PavVolume{ObjectMeta: named("pvc-" + string(claim.UID))}
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(record), record); err != nil {
		t.Fatal(err)
	}
	if last := record.Status.LastError; last == nil || last.Reason != "PodDeadlineExceeded" || last.Step != tarn.StepCreation {
		t.Errorf("the record tells of %+v, want PodDeadlineExceeded in the creation", last)
	}
	s.remove(claim)
	s.remove(&pav.PavProvisioner{ObjectMeta: named(s.name)})
	s.ran(tarn.StepDeletion, 0) // no container has run
}

// The kubelet evicts a deletion pod for what it has written. It exits with 0 after SIGTERM, and has
// failed nevertheless: the volume stays, and another pod deletes it.
func TestADeletionPodThatIsEvictedHasFailedThoughItExitsWith0(t *testing.T) {
	t.Parallel()
	shelf := t.TempDir()
	s := begin(t, "cutoff")
	s.needsThisMachine()
	deletion := script{hostDir: shelf, text: `[ ! -e /host/tried ] || { touch /host/done; exit 0; }
touch /host/tried
trap 'exit 0' TERM
dd if=/dev/zero of=/big bs=1M count=24
sleep 1d & wait`}.section(nil)
	container(deletion)["resources"] = fields{"limits": fields{"ephemeral-storage": "8Mi"}}
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting, "volumeDeletion": deletion}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	vol := &corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)}
	s.remove(claim)
	s.told(vol, "VolumeFailedDelete", "ephemeral local storage")
	if !s.gone(vol) {
		t.FailNow()
	}
	if _, err := os.Stat(filepath.Join(shelf, "done")); err != nil {
		t.Errorf("the volume is gone, and nothing has destroyed it: %v", err)
	}
}
