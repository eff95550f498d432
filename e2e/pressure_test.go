//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// fills reduces the free space of the node's disk below the kubelet's limit.
const fills = "fallocate -l 9663676416 /full" // 9 GiB, none of it written

// low makes a PriorityClass below the default of pods, and gives its name.
func (s *scenario) low() string {
	s.t.Helper()
	class := &schedulingv1.PriorityClass{ObjectMeta: named(s.name), Value: -1}
	s.create(class)
	s.t.Cleanup(func() { s.deleteIfThere(class) })
	return class.Name
}

// pressing makes a volume whose staging pod fills the disk as soon as the shelf has a file "now".
// It gives its claim. An empty priority leaves the pod's priority to Tarn.
func (s *scenario) pressing(shelf, priority, rest string) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	staging := bindsShelf(shelf, fills+"\n"+rest)
	if priority != "" {
		podSpec(staging)["priorityClassName"] = priority
	}
	s.create(s.provisioner(fields{
		"volumeCreation": asRequested, "volumeStaging": staging,
		"volumeUnstaging": script{hostDir: shelf, text: "echo once >> /host/unstaged"}.section(nil),
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	return s.bound(s.claim("data"))
}

// staysUnderPressure makes the kubelet choose other pods than this one for eviction. The files of
// an evicted pod may not be freed yet at the kubelet's next check.
func staysUnderPressure(pod *corev1.Pod) { pod.Spec.PriorityClassName = "system-node-critical" }

// aStagingPodStaysUnderPressure because of the priority that Tarn sets, though it alone has filled
// the disk. The kubelet evicts another pod. Only pods of that priority are left then.
func aStagingPodStaysUnderPressure(t *testing.T) {
	s, shelf := begin(t, "pressed"), shelfWithData(t)
	claim := s.pressing(shelf, "", "sleep 1d & wait $!")
	writer := s.consumer("writer", claim.Name, writes, staysUnderPressure)
	plain := s.consumer("plain", claim.Name, "trap exit TERM; sleep 1d & wait")
	s.ready(writer)
	s.ready(plain)
	first := s.stepPods(tarn.StepStaging)[0]

	put(t, filepath.Join(shelf, "now"))
	s.told(plain, "Evicted", "low on resource: ephemeral-storage")
	node := s.aNode()
	s.await("the kubelet to have looked again for what to evict", func() (bool, string) {
		times := int32(0)
		for _, e := range s.events("", node.Name) {
			if e.Reason == "EvictionThresholdMet" {
				times = max(times, e.Count)
			}
		}
		return times > 2, fmt.Sprintf("it has %d times", times)
	})
	if log := suite.machine.log("kubelet", 10_000); !strings.Contains(log, `cannot evict a critical pod" pod="`+first.Namespace+"/"+first.Name) {
		t.Error("the kubelet has not come by the staging pod")
	}
	now := s.stepPods(tarn.StepStaging)
	if len(now) != 1 || now[0].UID != first.UID || now[0].Status.Phase != corev1.PodRunning || now[0].DeletionTimestamp != nil {
		t.Errorf("the staging pods are %v, want the one there was, running", names(now))
	}
	if lost := s.stageOf("there", func(*tarn.PavStage) bool { return true }).Status.Node.Loss; lost != nil {
		t.Errorf("the stage tells of %+v, want no loss", lost)
	}
	s.stillWrites(writer, shelf)

	// The volume is unstaged under pressure too. The staging pod's files are deleted with it.
	s.remove(plain)
	s.remove(writer)
	if text := unstaged(t, shelf); text != "once\n" {
		t.Errorf("the unstaging pods wrote %q, want one line", text)
	}
	s.nodeBecomes(node.Name, "under no pressure any more", func(n *corev1.Node) bool {
		return !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeDiskPressure })
	})
	s.remove(claim)
}

// aStagingPodIsEvictedForPressure if its priority is lower than its consumers'. It is not admitted
// again before the pressure ends. The consumers continue with their mounts, and the volume is
// staged again then.
func aStagingPodIsEvictedForPressure(t *testing.T) {
	s, shelf := begin(t, "evicted"), shelfWithData(t)
	claim := s.pressing(shelf, s.low(), "sleep 1d & wait $!")
	writer := s.consumer("writer", claim.Name, writes, staysUnderPressure)
	s.ready(writer)
	s.prints(writer, "wrote 3")
	for nth := int32(1); nth <= 2; nth++ {
		first := s.endsItself(shelf)
		s.told(first, "Evicted", "low on resource: ephemeral-storage")
		s.told(writer, "VolumeLost", claim.Spec.VolumeName)
		s.stillWrites(writer, shelf)
		loss := s.bindsAgain(first, nth).Status.Node.Loss
		t.Logf("bound again %s later, by staging pod %d", loss.ReboundTime.Sub(loss.Time.Time), suite.news.of(s.name).pods[tarn.StepStaging])
		for _, c := range s.aNode().Status.Conditions {
			if c.Type == corev1.NodeDiskPressure {
				t.Logf("and %s after the pressure: %s", loss.ReboundTime.Sub(c.LastTransitionTime.Time), c.Status)
			}
		}
	}
	s.told(writer, "VolumeRebound", claim.Spec.VolumeName)
	s.stillWrites(writer, shelf)
	s.remove(writer)
	s.remove(claim)
	if text := unstaged(t, shelf); text != "once\n" {
		t.Errorf("the unstaging pods wrote %q, want one line", text)
	}
}

// aDeletionPodThatIsEvictedHasFailed even if it exits with 0 after SIGTERM, whatever its phase. The
// volume stays, and another pod deletes it when there is space.
func aDeletionPodThatIsEvictedHasFailed(t *testing.T) {
	s, shelf := begin(t, "cutoff"), shelfWithData(t)
	deletion := script{hostDir: shelf, text: "[ ! -e /host/data/tried ] || { touch /host/data/done; exit 0; }\ntouch /host/data/tried\ntrap 'exit 0' TERM\n" + fills + "\nsleep 1d & wait"}.section(nil)
	podSpec(deletion)["priorityClassName"] = s.low()
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": bindsShelf(shelf, ""), "volumeDeletion": deletion}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	vol := &corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)}
	s.remove(claim)
	s.told(vol, "VolumeFailedDelete", "low on resource: ephemeral-storage")
	if _, err := os.Stat(filepath.Join(shelf, "data", "done")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the volume was destroyed before it was told that it could not be (%v)", err)
	}
	s.step = soon + givenUp
	s.gone(vol)
	if _, err := os.Stat(filepath.Join(shelf, "data", "done")); err != nil {
		t.Errorf("the volume is gone, and nothing has destroyed it: %v", err)
	}
}

// endOfProcess sends the time when the first process of a pod's container has ended.
func endOfProcess(t *testing.T, pod *corev1.Pod) <-chan time.Time {
	t.Helper()
	pids, err := suite.machine.processes(pod)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		_, ids, _ := strings.Cut(string(status), "\nNSpid:")
		ids, _, _ = strings.Cut(ids, "\n")
		if !strings.HasSuffix(ids, "\t1") {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan time.Time, 1)
		go func() { // ends with the process, or with this one
			defer unix.Close(fd) //nolint:errcheck // nothing was written
			for {
				if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); !errors.Is(err, unix.EINTR) {
					ended <- time.Now()
					return
				}
			}
		}()
		return ended
	}
	t.Fatalf("none of the processes %v is the first of a container", pids)
	return nil
}
