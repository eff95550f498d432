//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// podSpec gives the pod of a section, and container its only container. The caller may change them.
func podSpec(section fields) fields { return section["podTemplate"].(fields)["spec"].(fields) }
func container(section fields) fields {
	return podSpec(section)["containers"].([]any)[0].(fields)
}

// bindsShelf is a staging section whose volume is the directory "data" of a shelf. Its pod waits
// until the shelf has a file "now", and then runs rest.
func bindsShelf(shelf, rest string) fields {
	return script{privileged: true, hostDir: shelf, text: `set -e
mkdir /pav/volume
mount --bind /host/data /pav/volume
touch /pav/ready
trap exit TERM
until [ -e /host/now ]; do sleep 0.1 & wait $!; done
rm /host/now
` + rest}.section(nil)
}

// shelfWithData makes a shelf with the directory that bindsShelf stages.
func shelfWithData(t *testing.T) string {
	t.Helper()
	shelf := t.TempDir()
	if err := os.Mkdir(filepath.Join(shelf, "data"), 0o777); err != nil {
		t.Fatal(err)
	}
	return shelf
}

// put makes an empty file.
func put(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		t.Fatal(err)
	}
}

// writes is a script that adds a line to a file of the volume ten times per second, and prints each
// line written. It ends at the first failed write.
const writes = `trap exit TERM
n=0
while true; do
n=$((n+1))
echo "line $n" >> /data/log
echo "wrote $n"
sleep 0.1 & wait $!
done`

// stillWrites proves that the consumer continues to write into the volume on the shelf, and that
// none of its lines is missing.
func (s *scenario) stillWrites(pod *corev1.Pod, shelf string) {
	s.t.Helper()
	read := func() []string {
		text, err := os.ReadFile(filepath.Join(shelf, "data", "log"))
		if err != nil {
			s.t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	s.prints(pod, fmt.Sprintf("wrote %d", len(read())+3))
	for i, line := range read() {
		if want := fmt.Sprintf("line %d", i+1); line != want {
			s.t.Fatalf("line %d of the volume is %q, want %q", i+1, line, want)
		}
	}
	s.neverRestarted(pod)
}

func TestDataAndConsumerOutliveAStagingPodThatIs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// rest is what the staging pod runs in the end, and limits are the pod's resource limits.
		rest   string
		limits fields
		// wantTold is in the Event on the consumer.
		wantTold string
		// wantEvicted says that the kubelet reports an eviction.
		wantEvicted bool
	}{
		{"killed for its memory", "exec tail /dev/zero", fields{"memory": "32Mi"}, "exited with 137", false},
		{"evicted for its disk", "dd if=/dev/zero of=/big bs=1M count=24; sleep 1d & wait $!", fields{"ephemeral-storage": "8Mi"}, "the staging pod ended", true}, // by the exit code, or by the pod's status, whichever arrives first
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			shelf := shelfWithData(t)
			s := begin(t, "outlive")
			s.needsThisMachine()
			staging := bindsShelf(shelf, c.rest)
			container(staging)["resources"] = fields{"limits": c.limits}
			// The kubelet never evicts a critical pod, and staging pods are critical by default.
			class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Value: 1}
			s.create(class)
			t.Cleanup(func() { s.deleteIfThere(class) })
			podSpec(staging)["priorityClassName"] = class.Name
			s.create(s.provisioner(fields{
				"volumeCreation": asRequested, "volumeStaging": staging,
				"volumeUnstaging": script{hostDir: shelf, text: "echo once >> /host/unstaged"}.section(nil),
			}))
			s.class(corev1.PersistentVolumeReclaimDelete)
			claim := s.bound(s.claim("data"))
			pod := s.consumer("writer", claim.Name, writes)
			s.ready(pod)
			s.prints(pod, "wrote 3")

			for nth := int32(1); nth <= 2; nth++ {
				first := s.endsItself(shelf)
				if c.wantEvicted {
					s.told(first, "Evicted", "ephemeral local storage")
				}
				s.told(pod, "VolumeLost", claim.Spec.VolumeName, c.wantTold)
				s.bindsAgain(first, nth)
			}
			s.told(pod, "VolumeRebound", claim.Spec.VolumeName)
			s.stillWrites(pod, shelf)
			s.remove(pod)
			s.remove(claim)
			if text := unstaged(t, shelf); text != "once\n" {
				t.Errorf("the unstaging pods wrote %q, want one line", text)
			}
		})
	}
}

// endsItself makes the staging pod of the only stage, which bindsShelf has staged, end. The loss of
// the volume must be noticed in time after the end of the pod's process.
func (s *scenario) endsItself(shelf string) (ended *corev1.Pod) {
	s.t.Helper()
	before := int32(0)
	stage := s.stageOf("staged", func(g *tarn.PavStage) bool {
		if g.Status.Node.Loss != nil {
			before = g.Status.Node.Loss.Number
		}
		return healthy(tarn.ReasonStaged)(g) || healthy(tarn.ReasonRebound)(g)
	})
	ended = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Status.Pod.Namespace, Name: stage.Status.Pod.Name}}
	// The volume may exist before the kubelet has reported that its pod runs.
	s.await("staging pod "+ended.Name+" to run", func() (bool, string) {
		err := s.get(ended)
		return err == nil && len(ended.Status.ContainerStatuses) > 0 && ended.Status.ContainerStatuses[0].State.Running != nil, fmt.Sprintf("it is %s (%v)", ended.Status.Phase, err)
	})
	end, slowest := endOfProcess(s.t, ended), answers(s.t, suite.live)
	put(s.t, filepath.Join(shelf, "now"))
	s.stageOf("lost", func(g *tarn.PavStage) bool { return g.Status.Node.Loss != nil && g.Status.Node.Loss.Number > before })
	seen := time.Now()
	select {
	case at := <-end:
		s.noticedInTime(seen.Sub(at), slowest(at))
	case <-time.After(s.limit()):
		s.t.Fatalf("the volume is lost, and its staging pod %s runs on", ended.Name)
	}
	return ended
}

// bindsAgain waits until another pod binds the volume that was lost with a staging pod for the nth
// time.
func (s *scenario) bindsAgain(ended *corev1.Pod, nth int32) *tarn.PavStage {
	s.t.Helper()
	again := s.stageOf("healthy again", func(g *tarn.PavStage) bool {
		return healthy(tarn.ReasonRebound)(g) && g.Status.Pod.Name != ended.Name
	})
	if lost := again.Status.Node.Loss; lost.Number != nth || lost.Reason != tarn.ReasonPodEnded || len(lost.Left) > 0 {
		s.t.Errorf("the stage tells of %+v, want loss %d, for %s, and nothing left", lost, nth, tarn.ReasonPodEnded)
	}
	return again
}

// onBlock gives a pod the volume as a device.
func onBlock(pod *corev1.Pod) {
	c := &pod.Spec.Containers[0]
	c.VolumeMounts, c.VolumeDevices = nil, []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/data"}}
}

func TestABlockVolumeWhoseStagingPodDiesIs(t *testing.T) {
	t.Parallel()
	// marks writes a number to the start of the device repeatedly, without caching, and prints what
	// it reads there.
	const marks = `trap exit TERM
n=0
while true; do
n=$((n+1))
printf 'mark %06d\n' $n | dd of=/dev/data conv=notrunc,fsync 2>/dev/null
echo "device has $(dd if=/dev/data bs=11 count=1 2>/dev/null)"
sleep 0.1 & wait $!
done`
	for _, c := range []struct {
		name string
		// attach is how the staging pod attaches the file $f as a device.
		attach     string
		wantReason string
	}{
		{"the same device again where its author sees to it", `loop=$(losetup -j $f | head -n 1 | cut -d: -f1); [ -n "$loop" ] || loop=$(losetup -f --show $f)`, "VolumeRebound"},
		{"told to be another device where it is", `loop=$(losetup -f --show $f)`, "VolumeNotRebound"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			shelf := t.TempDir()
			s := begin(t, "block-dies")
			s.needsThisMachine()
			section := func(text string, more fields) fields {
				made := script{hostDir: shelf, privileged: true, text: "set -e; f=/host/{{ handle|default(defaultHandle)|tobash }}; " + text}.section(more)
				seesDevices(made["podTemplate"])
				return made
			}
			s.create(s.provisioner(fields{
				"volumeValidation": fields{"volumeModes": []any{"Block"}},
				"volumeCreation":   section("truncate -s {{ requestedMinCapacity }} $f", asRequested),
				"volumeDeletion":   section("rm $f", nil),
				"volumeStaging":    section(c.attach+"; cp -a $loop /pav/volume; touch /pav/ready; "+stays, nil),
				"volumeUnstaging":  section("for l in $(losetup -j $f | cut -d: -f1); do losetup -d $l; done", nil),
			}))
			claim := s.growable(func(claim *corev1.PersistentVolumeClaim) {
				block := corev1.PersistentVolumeBlock
				claim.Spec.VolumeMode = &block
			})
			pod := s.consumer("writer", claim.Name, marks, onBlock)
			s.ready(pod)
			s.prints(pod, "device has mark 000003")
			staging := s.stepPods(tarn.StepStaging)
			if err := suite.live.Delete(s.ctx, &staging[0], client.GracePeriodSeconds(0)); err != nil {
				t.Fatal(err)
			}
			s.told(pod, "VolumeLost", "was deleted")
			s.told(pod, c.wantReason, claim.Spec.VolumeName)

			// The pod can still use its open device, and its writes reach the volume: a later pod
			// finds them.
			s.prints(pod, "device has mark 000020")
			s.neverRestarted(pod)
			if c.wantReason == "VolumeNotRebound" {
				const why = "its mount could not be replaced: the volume is a different block device now, and a running container keeps the one it started with"
				s.explains("volume", claim.Spec.VolumeName, "is Bound: volume "+claim.Spec.VolumeName+" was lost on node ", "but not for container main of pod "+s.name+"/writer, which keeps the lost mount: "+why)
				s.explainsKept(pod, claim, "main", why)
			} else if e := s.explains("pod", s.name+"/writer", "is running: "); !e.Healthy {
				t.Errorf("a pod whose device is the same again keeps what was lost: %+v", e)
			}
			s.remove(pod)
			late := s.consumer("late", claim.Name, `dd if=/dev/data bs=5 count=1 2>/dev/null | grep -x "mark "`, onBlock)
			s.succeeded(late)
		})
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
