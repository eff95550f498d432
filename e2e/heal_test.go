//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// noticing is how long the loss of a volume may go unnoticed, beside the API server's answer time.
// Staging it again takes as long as a pod's start.
const noticing = 2 * time.Second

// served is a staging section whose pod serves a file system. In it, "greeting" contains the pod's
// name.
func served(dir string) fields {
	return script{privileged: true, hostDir: dir, text: `set -e
mkdir /pav/volume
/host/fusefs /pav/volume "$HOSTNAME" &
until grep -q ' /pav/volume fuse' /proc/self/mounts; do sleep 0.05; done
touch /pav/ready
wait
`}.section(nil)
}

// fusefs builds the file system server and gives its directory.
func fusefs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "fusefs"), "./fusefs")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building fusefs: %v: %s", err, out)
	}
	return dir
}

// changes is a script that prints what it finds in the volume, and ends when that changes.
const changes = `first=$(cat /data/greeting); echo "began with $first"
while now=$(cat /data/greeting 2>/dev/null) || now=$first; [ "$now" = "$first" ]; do sleep 0.1; done`

// reads is a script that prints, ten times per second, what it finds in the volume.
const reads = `while true; do cat /data/greeting 2>&1 || true; sleep 0.1; done`

// stageOf waits until the case has one stage for which want holds, and gives it.
func (s *scenario) stageOf(what string, want func(*tarn.PavStage) bool) *tarn.PavStage {
	s.t.Helper()
	var found *tarn.PavStage
	s.await("a stage that is "+what, func() (bool, string) {
		var list tarn.PavStageList
		if err := suite.cached.List(s.ctx, &list, client.MatchingLabels{tarn.LabelProvisioner: s.name}); err != nil {
			return false, err.Error()
		}
		for i := range list.Items {
			if want(&list.Items[i]) {
				found = &list.Items[i]
				return true, ""
			}
		}
		return false, strconv.Itoa(len(list.Items)) + " stages are not"
	})
	return found
}

func healthy(reason string) func(*tarn.PavStage) bool {
	return func(g *tarn.PavStage) bool {
		c := meta.FindStatusCondition(g.Status.Node.Conditions, tarn.ConditionHealthy)
		return c != nil && c.Reason == reason
	}
}

// killIn kills by SIGKILL the process of that name in a pod's containers.
func (s *scenario) killIn(pod *corev1.Pod, name string) {
	s.t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, path := range entries {
		comm, err := os.ReadFile(path)
		groups, err2 := os.ReadFile(filepath.Join(filepath.Dir(path), "cgroup"))
		if err != nil || err2 != nil || strings.TrimSpace(string(comm)) != name || !strings.Contains(string(groups), string(pod.UID)) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			s.t.Fatal(err)
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			s.t.Fatal(err)
		}
		return
	}
	s.t.Fatalf("no process %s runs in pod %s", name, pod.Name)
}

func TestAVolumeWhoseServerIsKilledIsThereAgainInTheRunningPod(t *testing.T) {
	t.Parallel()
	s := begin(t, "killed")
	s.needsThisMachine()
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": served(fusefs(t))}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	pod := s.consumer("reader", claim.Name, reads)
	parts := s.consumer("parts", claim.Name, changes, func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyAlways
		named := p.Spec.Containers[0].DeepCopy()
		p.Spec.Containers[0].VolumeMounts[0].SubPath = "sub"
		named.Name, named.Env, named.VolumeMounts[0].SubPathExpr = "named", []corev1.EnvVar{{Name: "PART", Value: "sub"}}, "$(PART)"
		p.Spec.Containers = append(p.Spec.Containers, *named)
	})
	s.ready(pod)
	s.ready(parts)
	first := s.stageOf("healthy", healthy(tarn.ReasonStaged)).Status.Pod
	s.prints(pod, first.Name)

	for nth := int32(1); nth <= 2; nth++ {
		s.losesItsServer(pod, first, nth)
		s.await("both containers with a subPath to have seen the volume, and to be started anew with it", func() (bool, string) {
			text := s.printed(parts)
			return strings.Count(text, "began with "+strings.TrimSuffix(first.Name, "1")+strconv.Itoa(int(nth)+1)) == 2, text
		})
	}
	s.told(pod, "VolumeLost", claim.Spec.VolumeName)
	s.told(pod, "VolumeRebound", claim.Spec.VolumeName)
	s.neverRestarted(pod)
}

// noticedInTime fails the case if a loss was noticed too late. The limit includes answer, the API
// server's longest answer time meanwhile. The node agent's write must reach it, and the test must
// see that.
func (s *scenario) noticedInTime(after, answer time.Duration) {
	s.t.Helper()
	s.t.Logf("noticed after %s, where an answer of the API server takes up to %s", after, answer)
	if limit := noticing + 8*answer; after > limit {
		s.t.Errorf("the loss was noticed after %s, want at most %s", after, limit)
	}
}

// losesItsServer kills the server of the only volume for the nth time, and waits until its user can
// open files again. first is the volume's first staging pod. Staging pods are named by attempt.
func (s *scenario) losesItsServer(user *corev1.Pod, first tarn.PavStagePodStatus, nth int32) {
	s.t.Helper()
	attempt := strings.TrimSuffix(first.Name, "1")
	serving := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: first.Namespace, Name: attempt + strconv.Itoa(int(nth))}}
	if err := s.get(serving); err != nil {
		s.t.Fatal(err)
	}
	isNth := func(g *tarn.PavStage) bool { return g.Status.Node.Loss != nil && g.Status.Node.Loss.Number == nth }
	slowest, killed := answers(s.t, suite.live), time.Now()
	s.killIn(serving, "fusefs")
	s.stageOf("lost", isNth)
	s.noticedInTime(time.Since(killed), slowest(killed))
	s.prints(user, attempt+strconv.Itoa(int(nth)+1))
	s.t.Logf("new opens work %s after the kill", time.Since(killed))
	again := s.stageOf("healthy again", func(g *tarn.PavStage) bool { return isNth(g) && healthy(tarn.ReasonRebound)(g) })
	if lost := again.Status.Node.Loss; len(lost.Left) != 0 || lost.ReboundTime == nil {
		s.t.Errorf("the stage tells of %+v", lost)
	}
}

// neverRestarted fails the case if a container of the pod was restarted.
func (s *scenario) neverRestarted(pod *corev1.Pod) {
	s.t.Helper()
	if err := s.get(pod); err != nil {
		s.t.Fatal(err)
	}
	if c := pod.Status.ContainerStatuses[0]; c.RestartCount != 0 || c.State.Running == nil {
		s.t.Errorf("the consumer was restarted: %+v", c)
	}
}

// tmpfs is a staging section whose pod stays, and whose mount contains the pod's name.
var tmpfs = script{privileged: true, text: `set -e
mkdir /pav/volume
mount -t tmpfs -o size=1m tmpfs /pav/volume
echo "$HOSTNAME" > /pav/volume/greeting
mkdir /pav/volume/sub
echo "$HOSTNAME" > /pav/volume/sub/greeting
touch /pav/ready
` + stays}.section(nil)

// losesStaging deletes the staging pods of the case at once.
func (s *scenario) losesStaging() {
	s.t.Helper()
	pods := s.stepPods(tarn.StepStaging)
	if len(pods) == 0 {
		s.t.Fatal("there is no staging pod")
	}
	for i := range pods {
		if err := suite.live.Delete(s.ctx, &pods[i], client.GracePeriodSeconds(0)); err != nil {
			s.t.Fatal(err)
		}
	}
}

func TestAVolumeWhoseStagingPodIsDeletedIsStagedAgain(t *testing.T) {
	t.Parallel()
	s := begin(t, "deleted")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": tmpfs}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	pod := s.consumer("reader", claim.Name, reads)
	part := s.consumer("part", claim.Name, reads, func(p *corev1.Pod) {
		p.Spec.Containers[0].VolumeMounts[0].SubPath = "sub"
	})
	s.ready(pod)
	s.ready(part)
	first := s.stageOf("healthy", healthy(tarn.ReasonStaged)).Status.Pod
	s.losesStaging()
	for _, p := range []*corev1.Pod{pod, part} {
		s.prints(p, strings.TrimSuffix(first.Name, "-1")+"-2")
		s.told(p, "VolumeLost", "was deleted")
		s.told(p, "VolumeRebound", claim.Spec.VolumeName)
		s.neverRestarted(p)
	}
	// A new pod sees the same.
	late := s.consumer("late", claim.Name, "grep -e -2$ /data/greeting")
	s.succeeded(late)
}
