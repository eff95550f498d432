//go:build e2e

package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// asks makes a claim request what a case is about.
type asks = func(*corev1.PersistentVolumeClaim)

func asksModes(modes ...corev1.PersistentVolumeAccessMode) asks {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes = modes }
}

// asksSize requests a size, with a limit unless that is empty.
func asksSize(request, limit string) asks {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests = size(request)
		if limit != "" {
			c.Spec.Resources.Limits = size(limit)
		}
	}
}

// refusedFor waits until a claim's record says that a step failed for a reason. The record keeps
// that while the next attempt runs.
func (s *scenario) refusedFor(claim *corev1.PersistentVolumeClaim, step tarn.Step, reason string) {
	s.t.Helper()
	record := &tarn.PavVolume{ObjectMeta: named("pvc-" + string(claim.UID))}
	s.await(fmt.Sprintf("the record of claim %s to say %s of the %s", claim.Name, reason, step), func() (bool, string) {
		if err := s.get(record); err != nil {
			return false, err.Error()
		}
		last := record.Status.LastError
		return last != nil && last.Step == step && last.Reason == reason, fmt.Sprintf("it says %+v", last)
	})
}

// For a claim that its provisioner does not serve, no pod runs. The claim's user finds the reason
// in kubectl describe.
func TestAClaimThatItsProvisionerDoesNotServeIsToldWhy(t *testing.T) {
	t.Parallel()
	s := begin(t, "refusal")
	s.create(s.provisioner(fields{
		"volumeValidation": fields{
			"volumeModes": []any{"Filesystem"}, "accessModes": []any{"ReadWriteOnce", "ReadWriteMany"},
			"minCapacity": "8Mi", "maxCapacity": "64Mi",
		},
		"volumeCreation": script{text: "true"}.section(asRequested),
		"volumeDeletion": script{text: "true"}.section(nil),
		"volumeStaging":  greeting,
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	block := corev1.PersistentVolumeBlock
	for _, c := range []struct {
		name string
		asks asks
		want string
	}{
		{"volume-mode", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block },
			"can only provision volumes with volume mode Filesystem, the claim asks for Block"},
		{"access-mode", asksModes(corev1.ReadWriteOnce, corev1.ReadOnlyMany),
			"can only provision volumes supporting access mode ReadWriteOnce, ReadWriteMany, the claim asks for ReadOnlyMany"},
		{"one-pod", asksModes(corev1.ReadWriteOncePod),
			"can only provision volumes supporting access mode ReadWriteOnce, ReadWriteMany, the claim asks for ReadWriteOncePod"},
		{"too-small", asksSize("1Mi", "4Mi"),
			"cannot provision volumes with capacity less than 8388608 bytes, the claim's limit is 4194304"},
		{"too-large", asksSize("65Mi", ""),
			"cannot provision volumes with capacity greater than 67108864 bytes, the claim requests 68157440"},
	} {
		claim := s.claimWith(c.name, c.asks)
		t.Run(c.name, func(t *testing.T) {
			s := s.part(t)
			s.told(claim, "ProvisioningFailed", s.name, c.want)
			s.refusedFor(claim, tarn.StepValidation, "ClaimRefused")
			if phase := s.phase(claim); phase != corev1.ClaimPending {
				t.Errorf("the claim is %s, want Pending", phase)
			}
			s.remove(claim)
		})
	}
	s.never(tarn.StepValidation, tarn.StepCreation, tarn.StepDeletion)
}

// A volume whose size the claim does not allow is deleted again.
func TestACreatedVolumeIsHeldAgainstTheSizesOfItsClaim(t *testing.T) {
	t.Parallel()
	bySection := func(capacity string) fields { return fields{"capacity": capacity} }
	byPod := func(capacity string) fields {
		return script{text: "echo " + capacity + " > /pav/capacity"}.section(nil)
	}
	for _, c := range []struct {
		name     string
		creation fields
		// want is the message on the claim; "" where it is served.
		want string
	}{
		{"by-section-less", bySection("{{ requestedMinCapacity - 1 }}"), "the volume has 2097151 bytes, the claim requests at least 2097152"},
		{"by-section-more", bySection("{{ requestedMaxCapacity + 1 }}"), "the volume has 4194305 bytes, the claim's limit is 4194304"},
		{"by-pod-less", byPod("1Mi"), "the volume has 1048576 bytes, the claim requests at least 2097152"},
		{"by-pod-more", byPod("5Mi"), "the volume has 5242880 bytes, the claim's limit is 4194304"},
		{"by-pod-between", byPod("3Mi"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := begin(t, c.name)
			claim := s.madeBy(c.creation)
			if c.want == "" {
				s.isSized(s.bound(claim), "3Mi")
				return
			}
			s.refusesWhatIsMade(claim, c.creation, c.want)
		})
	}
}

// A volume whose handle is not valid for a CSI driver is deleted again too.
func TestACreatedVolumeWhoseHandleIsTooLongIsUndone(t *testing.T) {
	t.Parallel()
	s := begin(t, "long-handle")
	creation := script{text: "echo 3Mi > /pav/capacity; printf %0129d 7 > /pav/handle"}.section(nil)
	s.refusesWhatIsMade(s.madeBy(creation), creation, "/pav/handle: a volume handle must have at most 128 bytes, this one has 129")
}

// madeBy gives a claim, for 2 to 4 MiB, whose volume a section makes.
func (s *scenario) madeBy(creation fields) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	s.create(s.provisioner(fields{"volumeCreation": creation, "volumeDeletion": script{text: "true"}.section(nil), "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	return s.claimWith("data", asksSize("2Mi", "4Mi"))
}

// refusesWhatIsMade waits until a claim has the message why it does not get what a section makes,
// and the result was deleted.
func (s *scenario) refusesWhatIsMade(claim *corev1.PersistentVolumeClaim, creation fields, why string) {
	s.t.Helper()
	s.told(claim, "ProvisioningFailed", why)
	s.refusedFor(claim, tarn.StepCreation, "ResultInvalid")
	if creation["podTemplate"] != nil {
		s.await("what the creation pod made to be undone", func() (bool, string) {
			return suite.news.of(s.name).pods[tarn.StepDeletion] > 0, "there is no deletion pod"
		})
	}
	if phase := s.phase(claim); phase != corev1.ClaimPending {
		s.t.Errorf("the claim is %s, want Pending", phase)
	}
	s.remove(claim)
}

// isSized waits until a claim has a size, and wants its volume to have it.
func (s *scenario) isSized(claim *corev1.PersistentVolumeClaim, want string) {
	s.t.Helper()
	now, quantity := claim.DeepCopy(), resource.MustParse(want)
	s.await("claim "+claim.Name+" to have "+want, func() (bool, string) {
		if err := s.get(now); err != nil {
			return false, err.Error()
		}
		return now.Status.Capacity.Storage().Cmp(quantity) == 0, "it has " + now.Status.Capacity.Storage().String()
	})
	volume := &corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)}
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(volume), volume); err != nil {
		s.t.Fatal(err)
	}
	if got := volume.Spec.Capacity.Storage(); got.Cmp(quantity) != 0 {
		s.t.Errorf("volume %s has %s, want %s", volume.Name, got, want)
	}
}

// ReadWriteOncePod is a mode like the others.
func TestAClaimForOnePodIsServedWhereItsProvisionerHasThatMode(t *testing.T) {
	t.Parallel()
	s := begin(t, "one-pod")
	s.create(s.provisioner(fields{
		"volumeValidation": fields{"accessModes": []any{"ReadWriteOncePod"}}, "volumeCreation": asRequested, "volumeStaging": greeting,
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claimWith("data", asksModes(corev1.ReadWriteOncePod)))
	pod := s.consumer("reader", claim.Name, "grep -x hello /data/greeting")
	s.succeeded(pod)
	s.remove(pod)
	shared := s.claimWith("shared", asksModes(corev1.ReadWriteOnce))
	s.told(shared, "ProvisioningFailed", "supporting access mode ReadWriteOncePod, the claim asks for ReadWriteOnce")
	s.remove(shared)
}
