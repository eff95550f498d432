//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

func TestAStagingPodThatStaysServesUntilTheLastPodIsGone(t *testing.T) {
	t.Parallel()
	s := begin(t, "ready")
	// The staging pod makes the mount, and Tarn has to unmount it.
	s.create(s.provisioner(fields{
		"volumeCreation": asRequested,
		"volumeStaging": script{privileged: true, text: `set -e
mkdir /pav/volume
mount -t tmpfs -o size=1m tmpfs /pav/volume
echo hello > /pav/volume/greeting
touch /pav/ready
` + stays}.section(nil),
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	pod := s.consumer("reader", claim.Name, "grep -x hello /data/greeting; "+stays)
	s.ready(pod)
	s.prints(pod, "hello")
	var staging []corev1.Pod
	s.await("one staging pod to run while the volume is used", func() (bool, string) { // the kubelet reports that with a delay
		staging = s.stepPods(tarn.StepStaging)
		return len(staging) == 1 && staging[0].Status.Phase == corev1.PodRunning, fmt.Sprintf("there are %d", len(staging))
	})
	s.remove(pod)
	s.gone(&staging[0])
}

// stepPods gives the present pods for a step of the case's provisioner.
func (s *scenario) stepPods(step tarn.Step) []corev1.Pod {
	s.t.Helper()
	var list corev1.PodList
	labels := client.MatchingLabels{tarn.LabelProvisioner: s.name, tarn.LabelStep: string(step)}
	if err := suite.live.List(s.ctx, &list, labels); err != nil {
		s.t.Fatal(err)
	}
	return list.Items
}

func TestTwoPodsShareAVolumeAndItsStage(t *testing.T) {
	t.Parallel()
	shelf := t.TempDir()
	s := begin(t, "shared")
	s.needsThisMachine()
	s.create(s.provisioner(shelved(shelf)))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	first := s.consumer("first", claim.Name, "exec 2>&1; until grep -qsx both /data/note; do sleep 0.1; done; if touch /data/mine; then exit 1; fi; echo tried; "+stays, func(p *corev1.Pod) {
		p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	})
	writer := s.consumer("writer", claim.Name, "echo both > /data/note; "+stays)
	second := s.consumer("second", claim.Name, "until grep -qsx both /data/note; do sleep 0.1; done; touch /data/seen; "+stays)
	s.ready(first)
	s.ready(writer)
	s.ready(second)
	if text := s.prints(first, "tried"); !strings.Contains(text, "Read-only file system") {
		t.Errorf("writing to a read-only volume said %q", text)
	}
	if seen := suite.news.of(s.name); seen.stages != 1 || seen.pods[tarn.StepStaging] != 1 {
		t.Errorf("three pods on one node have %d stages with %d staging pods, want 1 and 1", seen.stages, seen.pods[tarn.StepStaging])
	}

	// The end of the others does not affect the second.
	s.remove(first)
	s.remove(writer)
	if text := unstaged(t, shelf); text != "" {
		t.Errorf("the volume was unstaged under a pod that uses it: %q", text)
	}
	late := s.consumer("late", claim.Name, "test -e /data/seen && grep -qx both /data/note")
	s.succeeded(late)
	s.remove(late)
	s.remove(second)

	s.await("the unstaging to be done", func() (bool, string) {
		return suite.news.of(s.name).podPhases[tarn.StagePodUnstaged], "it is not"
	})
	if text := unstaged(t, shelf); strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "pvc-") {
		t.Errorf("the unstaging pod wrote %q, want one line with the handle", text)
	}
	s.remove(claim)
	s.gone(&corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)})
	if left := entriesOf(t, shelf); len(left) > 0 {
		t.Errorf("the deletion pod has left %q on the shelf", left)
	}
}

func TestAReadOnlyMountIsReadOnly(t *testing.T) {
	t.Parallel()
	s := begin(t, "readonly")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	pod := s.consumer("reader", claim.Name, `exec 2>&1
grep -qx hello /data/greeting
if touch /data/mine; then exit 1; fi
if echo changed > /data/greeting; then exit 1; fi
echo tried
`+stays, func(p *corev1.Pod) {
		p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	})
	s.ready(pod)
	if err := s.get(pod); err != nil {
		t.Fatal(err)
	}
	if text := s.prints(pod, "tried"); strings.Count(text, "Read-only file system") != 2 {
		t.Errorf("writing to a read-only volume said %q", text)
	}
	if suite.machine.here() {
		s.mountedReadOnly(pod)
	}
}

// mountedReadOnly proves that the mount at the kubelet's target is itself read-only, not only the
// container's view of it.
func (s *scenario) mountedReadOnly(pod *corev1.Pod) {
	s.t.Helper()
	mounts, err := suite.machine.mounts(kubeletDir + "/pods/" + string(pod.UID) + "/volumes/kubernetes.io~csi")
	if err != nil {
		s.t.Fatal(err)
	}
	if len(mounts) != 1 {
		s.t.Fatalf("the pod's volume has %d mounts, want 1: %v", len(mounts), mounts)
	}
	if options := "," + mounts[0].options + ","; !strings.Contains(options, ",ro,") {
		s.t.Errorf("the kubelet's target is mounted %s, want ro", mounts[0].options)
	}
}

func asksModes(modes ...corev1.PersistentVolumeAccessMode) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes = modes }
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
