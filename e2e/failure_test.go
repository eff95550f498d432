//go:build e2e

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

// complaint is what a failing pod leaves in /pav/error.
const complaint = "shelf 7 is full"

// fails gives a section whose pod complains and fails.
func fails(more fields) fields {
	return script{text: "echo '" + complaint + "' > /pav/error; false"}.section(more)
}

func TestAFailingProvisioningPodLeavesTheClaimPending(t *testing.T) {
	t.Parallel()
	works := script{text: "true"}
	for _, c := range []struct {
		step     tarn.Step
		sections fields
		// wantUndone says that the deletion pod runs for what may have been made.
		wantUndone bool
	}{
		{tarn.StepValidation, fields{"volumeValidation": fails(nil), "volumeCreation": works.section(asRequested)}, false},
		{tarn.StepCreation, fields{"volumeValidation": works.section(nil), "volumeCreation": fails(asRequested)}, true},
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
			seen := suite.news.of(s.name)
			if undone := seen.pods[tarn.StepDeletion] > 0; undone != c.wantUndone {
				t.Errorf("a deletion pod ran: %t, want %t", undone, c.wantUndone)
			}
			if c.step == tarn.StepValidation && seen.pods[tarn.StepCreation] > 0 {
				t.Error("a creation pod ran after a failed validation")
			}
		})
	}
}

func TestAFailingStagingPodLeavesThePodPending(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		staging fields
		want    string
	}{
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

func TestAClaimDeletedWhileItsVolumeIsMadeLeavesNothing(t *testing.T) {
	t.Parallel()
	s := begin(t, "abandoned")
	s.create(s.provisioner(fields{
		"volumeCreation": script{text: "sleep 2"}.section(asRequested),
		"volumeDeletion": script{text: "true"}.section(nil),
		"volumeStaging":  greeting,
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.claim("data")
	s.await("the creation pod", func() (bool, string) {
		return suite.news.of(s.name).pods[tarn.StepCreation] > 0, "there is none"
	})
	s.remove(claim)
	s.remove(&pav.PavProvisioner{ObjectMeta: named(s.name)})
	if seen := suite.news.of(s.name); seen.pods[tarn.StepDeletion] == 0 {
		t.Error("no deletion pod ran for what the creation pod may have made")
	}
}
