//go:build e2e && others

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// csi runs a CSI driver with the case's name and Kubernetes' own external-provisioner, both beside
// the kubelet. It returns the directory that holds a directory for each volume. The driver and Tarn
// know nothing of each other.
func (s *scenario) csi() (shelf string) {
	s.t.Helper()
	s.needsThisMachine()
	provisioner := os.Getenv("TARN_CSI_PROVISIONER")
	if provisioner == "" {
		s.t.Fatal("TARN_CSI_PROVISIONER does not name the external-provisioner: run `make e2e-others`")
	}
	pid, err := suite.machine.kubelet()
	if err != nil {
		s.t.Fatal(err)
	}
	bin := s.t.TempDir()
	build := exec.Command("go", "build", "-o", bin, "./csifolders")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		s.t.Fatalf("building csifolders: %v: %s", err, out)
	}
	shelf = s.t.TempDir()
	sockets := filepath.Join(kubeletDir, "plugins", s.name)
	driver := &storagev1.CSIDriver{ObjectMeta: named(s.name), Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}}
	s.create(driver)
	s.t.Cleanup(func() { // after the programs below have ended
		for _, path := range []string{sockets + "/csi.sock", sockets, kubeletDir + "/plugins_registry/" + s.name + "-reg.sock"} {
			if err := os.Remove(fmt.Sprintf("/proc/%d/root%s", pid, path)); err != nil {
				s.t.Error(err)
			}
		}
		s.deleteIfThere(driver)
	})
	s.beside(pid, filepath.Join(bin, "csifolders"), s.name, s.aNode().Name, shelf, kubeletDir)
	s.beside(pid, provisioner, "--csi-address", filepath.Join(sockets, "csi.sock"), "--kubeconfig", os.Getenv("KUBECONFIG"))
	s.t.Cleanup(func() { // while both still run
		s.clear("pods", &corev1.PodList{}, client.InNamespace(s.name))
		s.clear("claims", &corev1.PersistentVolumeClaimList{}, client.InNamespace(s.name))
	})
	return shelf
}

// beside runs a program where the kubelet sees its mounts and sockets, until the case ends. If the
// case fails, the output is logged.
func (s *scenario) beside(kubelet int, program string, args ...string) {
	s.t.Helper()
	var said strings.Builder
	command := exec.Command("nsenter", append([]string{"--target", strconv.Itoa(kubelet), "--mount", "--", program}, args...)...)
	command.Stdout, command.Stderr = &said, &said
	if err := command.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := command.Process.Kill(); err != nil {
			s.t.Errorf("%s has ended before the case: %v", program, err)
		}
		_ = command.Wait() // it was killed
		if s.t.Failed() {
			s.t.Logf("%s says:\n%s", program, said.String())
		}
	})
}

func TestACSIDriverFillsAPool(t *testing.T) {
	t.Parallel()
	for _, mode := range []storagev1.VolumeBindingMode{storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s := begin(t, "csi-pool")
			shelf := s.csi()
			s.create(&storagev1.StorageClass{ObjectMeta: named(s.name), Provisioner: s.name, VolumeBindingMode: &mode})
			set := s.pool(2, 3)
			s.filled(set, 2)
			spares := s.volumes(isSpare)
			if made := entriesOf(t, shelf); len(made) != 2 || spares[0].Spec.CSI == nil || spares[0].Spec.CSI.Driver != s.name || spares[0].Spec.NodeAffinity == nil {
				t.Fatalf("on the shelf are %q, and a spare is %+v", made, spares[0].Spec)
			}
			volume := &corev1.PersistentVolume{}
			claim := s.used("drawn", volume)
			drawn := slices.IndexFunc(spares, func(vol corev1.PersistentVolume) bool { return vol.Name == volume.Name })
			if drawn < 0 {
				t.Fatalf("the claim has got volume %s, want one of the spares", volume.Name)
			}
			s.filled(set, 2)
			if text := readNote(t, shelf, spares[drawn].Spec.CSI.VolumeHandle); text != "drawn\n" {
				t.Errorf("the note on the volume reads %q", text)
			}
			s.remove(claim)
			s.gone(volume)
			if left := entriesOf(t, shelf); len(left) != 2 || slices.Contains(left, spares[drawn].Spec.CSI.VolumeHandle) {
				t.Errorf("on the shelf are %q, want the two spares: the driver destroys what is released", left)
			}
			s.remove(set)
			s.noVolumes()
			if left := entriesOf(t, shelf); len(left) != 0 {
				t.Errorf("left on the shelf: %q", left)
			}
		})
	}
}

func TestAVolumeOfACSIDriverIsUndeletedThenRecycledThenDestroyed(t *testing.T) {
	t.Parallel()
	s := begin(t, "csi-lives")
	shelf := s.csi()
	s.keeps("1h")
	claim, volume := s.written("data", "precious")
	s.trash(claim, volume)
	s.listed(volume.Name)
	mustTool(t, 0, "", "undelete", "volume", volume.Name)
	s.reads(claim, volume.Name, "precious")

	// Out of the trash, to be recycled when it is released.
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"0s",%q:"Retain",%q:"Files"}}}`, tarn.AnnotationRetention, tarn.AnnotationReclaimPolicy, tarn.AnnotationRecycle)
	if err := suite.live.Patch(s.ctx, volume, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		t.Fatal(err)
	}
	claim = s.bound(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "data"}})
	s.remove(claim)
	if cert := s.certified(volume, tarn.RecycleFiles); cert.Files != 1 || cert.Provisioner != "" || len(cert.SampleSHA256) != 64 {
		t.Errorf("the certificate says %+v", cert)
	}
	if left := entriesOf(t, filepath.Join(shelf, volume.Spec.CSI.VolumeHandle)); len(left) != 0 {
		t.Errorf("recycled, it holds %q", left)
	}

	// Recreate does not apply here: the driver makes another volume on request.
	s.asks(volume, tarn.RecycleRecreate)
	s.remove(s.used("next", volume))
	s.phased(volume, corev1.VolumeFailed)
	s.told(volume, "VolumeFailedRecycle", "set reclaim policy Delete instead")
	if err := suite.live.Patch(s.ctx, volume, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`))); err != nil {
		t.Fatal(err)
	}
	s.gone(volume)
	if left := entriesOf(t, shelf); len(left) != 0 {
		t.Errorf("left on the shelf: %q", left)
	}
}
