//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// pooled gives a pool directory for btrfs, and a function that gives the loop devices of its file.
func pooled(t *testing.T) (dir string, devices func() []string) {
	t.Helper()
	dir = t.TempDir()
	return dir, func() []string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "losetup", "--noheadings", "--output", "NAME", "--associated", filepath.Join(dir, "btrfs")).CombinedOutput()
		if err != nil {
			t.Fatalf("losetup: %v: %s", err, out)
		}
		return strings.Fields(string(out))
	}
}

func TestABtrfsVolumeIsHeldToItsSizeGrowsAndFreesItsPool(t *testing.T) {
	t.Parallel()
	// The kernel lists a module once it is loaded. Where modprobe fails, it may be built in.
	_ = exec.CommandContext(t.Context(), "modprobe", "btrfs").Run()
	if text, err := os.ReadFile("/proc/filesystems"); err == nil && !strings.Contains(string(text), "btrfs") {
		t.Skip("the kernel has no btrfs")
	}
	first, devices := pooled(t)
	second, others := pooled(t)
	s := onTheShelfWith(t, "btrfs", map[string]string{"folder": first, "poolSize": "256Mi"})
	class := s.classWith("-second", s.name, late, func(class *storagev1.StorageClass) {
		class.Parameters = map[string]string{"folder": second, "poolSize": "256Mi"}
	})
	of := func(request string) func(*corev1.PersistentVolumeClaim) {
		return func(claim *corev1.PersistentVolumeClaim) { claim.Spec.Resources.Requests = size(request) }
	}

	// More than nine tenths of the pool cannot be had.
	tooLarge := s.claimWith("large", of("240Mi"))
	large := s.consumer("large", tooLarge.Name, stays)
	s.told(tooLarge, "ProvisioningFailed", "no room for 240Mi")
	s.remove(large)
	s.remove(tooLarge)

	claim := s.claimWith("data", of("64Mi"))
	pod := s.consumer("writer", claim.Name, `
		dd if=/dev/zero of=/data/first bs=1M count=200 2>&1 | grep -o 'quota exceeded' || true
		echo "stopped at $(du -m /data/first | cut -f 1) MiB"
		until dd if=/dev/zero of=/data/second bs=1M count=32 2>/dev/null; do sleep 0.2; done
		echo grown; `+stays)
	// Its user makes what no rm can remove: a subvolume in a read-only one.
	nested := s.claimWith("beside", of("64Mi"))
	beside := s.consumer("beside", nested.Name, `
		btrfs subvolume create /data/a && btrfs subvolume create /data/a/b && btrfs property set /data/a ro true
		! touch /data/a/word && echo nested; `+stays, asNobody, func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "tarn.dev/btrfs:1" })
	other := s.consumer("other", s.claimWith("other", of("64Mi"), ofClass(class)).Name, "echo it is here > /data/word; "+stays)
	for _, p := range []*corev1.Pod{pod, beside, other} {
		s.ready(p)
	}
	if out := s.prints(pod, "stopped at 6"); !strings.Contains(out, "quota exceeded") {
		t.Errorf("the pod has printed:\n%s", out)
	}
	if one, two := devices(), others(); len(one) != 1 || len(two) != 1 || one[0] == two[0] {
		t.Errorf("the pools have the loop devices %q and %q, want one each", one, two)
	}
	s.prints(beside, "nested")
	s.ask(claim, "128Mi")
	grown := s.resizedTo(claim, "128Mi")
	s.prints(pod, "grown")
	if wide() {
		s.measured(pod, claim, map[string]float64{"capacity_bytes": 128 << 20}, func() string { return "" })
	}

	// Its space can be had again.
	for _, p := range []*corev1.Pod{pod, beside, other} {
		s.remove(p)
	}
	small := s.volumeOf(s.bound(nested))
	s.remove(claim)
	s.remove(nested)
	s.gone(grown)
	s.gone(small)
	again := s.consumer("again", s.claimWith("again", of("220Mi")).Name, "dd if=/dev/zero of=/data/all bs=1M count=150 && sync && echo full")
	s.succeeded(again)
	s.prints(again, "full")
}
