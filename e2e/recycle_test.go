//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

const secret = "the combination of tenant A is 31-07-19"

// disk is a loop device of 64 MiB. Its image shows what is really stored on it.
func (s *scenario) disk() (device, image string) {
	s.t.Helper()
	s.needsThisMachine()
	image = filepath.Join(s.t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Truncate(image, 64<<20); err != nil {
		s.t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", image).CombinedOutput()
	if err != nil {
		s.t.Fatalf("losetup: %v: %s", err, out)
	}
	device = strings.TrimSpace(string(out))
	s.t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			s.t.Errorf("losetup: %v: %s", err, out)
		}
	})
	return device, image
}

// recycled makes a local volume of the case's class that is to be recycled.
func (s *scenario) recycled(path string, method tarn.RecycleMethod, mode corev1.PersistentVolumeMode, edits ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	s.t.Helper()
	nodes := &corev1.NodeList{}
	if err := suite.live.List(s.ctx, nodes); err != nil || len(nodes.Items) == 0 {
		s.t.Fatalf("no node: %v", err)
	}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: s.name, Annotations: map[string]string{tarn.AnnotationRecycle: string(method)}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size("64Mi"), StorageClassName: s.name, VolumeMode: &mode, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany, corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{nodes.Items[0].Name}}},
			}}}},
		},
	}
	for _, edit := range edits {
		edit(volume)
	}
	s.create(volume)
	s.t.Cleanup(func() {
		s.deleteIfThere(volume)
		s.gone(volume)
	})
	return volume
}

// tenant makes a claim of the case's class.
func (s *scenario) tenant(name string, mode corev1.PersistentVolumeMode) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &s.name, VolumeMode: &mode, Resources: corev1.VolumeResourceRequirements{Requests: size("64Mi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		},
	}
	s.create(claim)
	return s.bound(claim)
}

// phased waits until a volume is in a phase. For Available, it waits until the volume has no claim
// too.
func (s *scenario) phased(volume *corev1.PersistentVolume, phase corev1.PersistentVolumePhase) {
	s.t.Helper()
	s.await("volume "+volume.Name+" to be "+string(phase), func() (bool, string) {
		err := s.get(volume)
		return err == nil && volume.Status.Phase == phase && (phase != corev1.VolumeAvailable || volume.Spec.ClaimRef == nil),
			fmt.Sprintf("it is %s, claimRef %v, annotations %v (%v)", volume.Status.Phase, volume.Spec.ClaimRef, volume.Annotations, err)
	})
}

func (s *scenario) certificate(volume *corev1.PersistentVolume) tarn.RecycleCertificate {
	s.t.Helper()
	var cert tarn.RecycleCertificate
	if err := json.Unmarshal([]byte(volume.Annotations[tarn.AnnotationRecycled]), &cert); err != nil {
		s.t.Fatalf("certificate %q: %v", volume.Annotations[tarn.AnnotationRecycled], err)
	}
	return cert
}

// holds reports whether a text is anywhere on a disk.
func holds(t *testing.T, image, text string) bool {
	t.Helper()
	if out, err := exec.Command("sync").CombinedOutput(); err != nil {
		t.Fatalf("sync: %v: %s", err, out)
	}
	data, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(data, []byte(text))
}

func TestASecretIsNowhereOnTheDeviceForTheNextTenant(t *testing.T) {
	t.Parallel()
	s := begin(t, "zero")
	device, image := s.disk()
	volume := s.recycled(device, tarn.RecycleZero, corev1.PersistentVolumeFilesystem)
	a := s.tenant("a", corev1.PersistentVolumeFilesystem)
	pod := s.consumer("a", a.Name, `for i in $(seq 500); do yes "`+secret+`" | head -n 500 >"/data/.$i"; done; sync; rm -f /data/.1*; sync`)
	s.succeeded(pod)
	if !holds(t, image, secret) {
		t.Fatal("the secret was never on the device")
	}
	s.remove(pod)
	s.remove(a)
	s.phased(volume, corev1.VolumeAvailable)
	if holds(t, image, secret) {
		t.Error("the secret is still on the device")
	}
	if cert := s.certificate(volume); cert.Method != tarn.RecycleZero || cert.Bytes < 40<<20 || cert.Files < 300 || cert.Image == "" {
		t.Errorf("the certificate says %+v", cert)
	}
	b := s.tenant("b", corev1.PersistentVolumeFilesystem)
	next := s.consumer("b", b.Name, `test "$(ls -A /data)" = lost+found && echo mine >/data/mine`)
	s.succeeded(next)
	s.remove(next)
	s.remove(b)
	s.phased(volume, corev1.VolumeAvailable)
}

// aBlockVolumeIsWiped though the controller is killed meanwhile.
func aBlockVolumeIsWiped(t *testing.T) {
	s := begin(t, "wipe")
	s.step = manyKills
	device, image := s.disk()
	volume := s.recycled(device, tarn.RecycleZero, corev1.PersistentVolumeBlock)
	a := s.tenant("a", corev1.PersistentVolumeBlock)
	pod := s.consumer("a", a.Name, `yes "`+secret+`" | head -c 20000000 | dd of=/dev/data bs=1M conv=fsync`, func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.VolumeMounts, c.VolumeDevices = nil, []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/data"}}
	})
	s.succeeded(pod)
	if !holds(t, image, secret) {
		t.Fatal("the secret was never on the device")
	}
	s.remove(pod)
	s.delete(a)
	scrub := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tarn-system", Name: "scrub-" + string(volume.UID)}}
	s.await("the scrub pod to be there", func() (bool, string) {
		err := s.get(scrub)
		return err == nil, fmt.Sprint(err)
	})
	if err := suite.machine.kill("tarn-controller"); err != nil {
		t.Fatal(err)
	}
	s.phased(volume, corev1.VolumeAvailable)
	data, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(bytes.Trim(data, "\x00")); n != 0 {
		t.Errorf("%d bytes of the device are not zero", n)
	}
	if cert := s.certificate(volume); cert.Bytes != 64<<20 {
		t.Errorf("the certificate says %+v", cert)
	}
	s.gone(scrub)
}
