//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// apart is set where the suite runs in the cluster whose nodes may fail. Its value is the arguments
// that started that suite, one a line.
const apart = "TARN_E2E_APART"

const (
	// diskSize is the apparent size of that cluster's disk. The file behind it is sparse. Below
	// leastFree its kubelet frees space.
	diskSize  = 16 << 30
	leastFree = "8Gi"
	// calm is how long the node stays under pressure after space is free again. Until then, it
	// rejects staging pods that may be evicted. The default is 5 minutes.
	calm = 5 * time.Second
	// failing is how long those cases may take, whatever else the machine does.
	failing = 45 * time.Minute
)

// This needs a cluster of its own. A node short of disk accepts no pods and deletes its images, and
// on one without a kubelet new pods wait.
func TestWhenANodeFails(t *testing.T) {
	t.Parallel()
	if os.Getenv(apart) == "" {
		inAClusterApart(t)
		return
	}
	// Not parallel: the cluster has one node, and the pressure affects all of it.
	t.Run("a creation is repeated elsewhere", aCreationIsRepeatedElsewhere)
	t.Run("a volume of one node is made on another where the first choice has no room", aVolumeOfOneNodeIsMadeOnAnother)
	t.Run("of a node that is deleted a volume in the making is made elsewhere, and a used one waits", theVolumesOfANodeThatIsDeleted)
	t.Run("what was staged before the last boot is staged anew", aVolumeOfAnEarlierBootIsStagedAnew)
	t.Run("for want of disk, a staging pod stays and another pod makes room", aStagingPodStaysUnderPressure)
	t.Run("for want of disk, a staging pod of low priority is evicted, and its volume bound again", aStagingPodIsEvictedForPressure)
	t.Run("for want of disk, a deletion pod is evicted and has failed, though it exits with 0", aDeletionPodThatIsEvictedHasFailed)
	t.Run("in a shutdown a staging pod outlives its consumers", aStagingPodOutlivesItsConsumersInAShutdown)
}

// inAClusterApart runs the calling test once more, in a cluster whose data lie on a separate disk.
// Tarn runs there as it does here: as processes, or as pods installed by helm.
func inAClusterApart(t *testing.T) {
	if !suite.machine.here() {
		t.Skip("no tarn-cluster to start a cluster with: TARN_CLUSTER_BINARY and TARN_CLUSTER_NAME are not set")
	}
	m := suite.machine
	m.name += "-apart"
	cluster := func(args ...string) string {
		t.Helper()
		out, err := m.run(args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	cluster("down") // an interrupted run may have left one
	disk := smallDisk(t, filepath.Join(os.TempDir(), m.name))
	t.Cleanup(func() { cluster("down") })
	up := []string{"up", "--data-dir", filepath.Join(disk, "data"),
		"--kubelet-arg=--eviction-hard=nodefs.available<" + leastFree, "--kubelet-arg=--eviction-pressure-transition-period=" + calm.String()}
	if inPods() {
		up = append(up, "--stock", "--kubelet-arg=--root-dir="+kubeletDir)
	} else {
		up = append(up, "--without-api")
	}
	cluster(up...)
	if inPods() {
		needsAddOn(t).installedApart(t, m, cluster)
	}

	ctx, stop := context.WithTimeout(t.Context(), failing)
	defer stop()
	inside := exec.CommandContext(ctx, os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v", "-test.count", "1")
	inside.Env = append(os.Environ(), apart+"="+strings.Join(up, "\n"), "TARN_CLUSTER_NAME="+m.name, "KUBECONFIG="+cluster("kubeconfig"),
		"TARN_HOST_PATH_ROOT=") // which is the suite's
	out, err := inside.CombinedOutput()
	// The prefix keeps lines from being mistaken for results of this run's tests.
	t.Logf("in cluster %s:\n| %s", m.name, bytes.ReplaceAll(bytes.TrimSpace(out), []byte("\n"), []byte("\n| ")))
	if err != nil {
		t.Errorf("the cases in cluster %s: %v; end of its kubelet's log:\n%s", m.name, err, m.log("kubelet", 40))
	}
}

// installedApart installs Tarn in another cluster as hack/addon.sh did in the suite's, from the
// same image.
func (a addOn) installedApart(t *testing.T, m machine, cluster func(...string) string) {
	t.Helper()
	release := a.releases[0]
	cluster("image", "import", filepath.Join(os.Getenv("TARN_IMAGES"), release, "tarn.tar"))
	kubectl := filepath.Join(filepath.Dir(m.binary), "kubectl")
	for _, command := range [][]string{
		{a.helm, "upgrade", "--install", "tarn", a.chart, "--set", "image.tag=" + release, "--set", "node.kubeletDir=" + kubeletDir},
		{kubectl, "-n", tarnSystem, "rollout", "status", "deployment/" + controller, "--timeout=180s"},
		{kubectl, "-n", tarnSystem, "rollout", "status", "daemonset/" + nodeAgent, "--timeout=180s"},
	} {
		c := exec.Command(command[0], command[1:]...)
		c.Env = append(os.Environ(), "KUBECONFIG="+cluster("kubeconfig"))
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(command, " "), err, out)
		}
	}
}

// smallDisk mounts a separate disk at a directory, until the test ends.
func smallDisk(t *testing.T, at string) string {
	t.Helper()
	image := at + ".disk"
	remove := func() {
		if err := unix.Unmount(at, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			t.Errorf("unmounting %s: %v", at, err)
		}
		for _, path := range []string{image, at} { // a directory that is not empty stays
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
		}
	}
	remove() // an interrupted run may have left it
	t.Cleanup(remove)
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, diskSize); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{
		{"mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1", image},
		{"mount", "-o", "loop", image, at},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command[0], err, out)
		}
	}
	return at
}
