//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// inMemory gives the sections of a provisioner whose volumes are file systems in memory, each of
// the volume's size. Any privileged pod can grow them while they are in use. resize2fs needs
// CAP_SYS_RESOURCE, which some test machines lack.
func inMemory() fields {
	return fields{
		"volumeCreation": asRequested,
		"volumeStaging": script{privileged: true,
			text: "set -e; mkdir /pav/volume; mount -t tmpfs -o size={{ capacity }} tmpfs /pav/volume",
		}.section(nil),
	}
}

// refusing is a script that fails for a volume of more than 128Mi.
const refusing = `if [ {{ newCapacity }} -gt 134217728 ]; then echo "no room for {{ newCapacity }} bytes" > /pav/error; exit 1; fi
`

// remounting grows a volume of inMemory on the node.
func remounting(before string) any {
	return script{privileged: true, text: "set -e\n" + before + "mount -o remount,size={{ newCapacity }} /pav/volume"}.section(nil)["podTemplate"]
}

// growable makes the case's class, which allows expansion, and a claim of 32Mi.
func (s *scenario) growable(edits ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	policy, allow := corev1.PersistentVolumeReclaimDelete, true
	s.create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Provisioner: s.name, ReclaimPolicy: &policy, AllowVolumeExpansion: &allow})
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: s.name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &s.name,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: size("32Mi")},
		},
	}
	for _, edit := range edits {
		edit(claim)
	}
	s.create(claim)
	return s.bound(claim)
}

// ask makes a claim request another size.
func (s *scenario) ask(claim *corev1.PersistentVolumeClaim, size string) {
	s.t.Helper()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"resources": {"requests": {"storage": "`+size+`"}}}}`))
	if err := suite.live.Patch(s.ctx, claim.DeepCopy(), patch); err != nil {
		s.t.Fatalf("asking for %s: %v", size, err)
	}
}

// nudge makes the kubelet synchronize a pod. The kubelet sees that a volume has grown only then,
// which otherwise happens about once a minute.
func (s *scenario) nudge(pod *corev1.Pod) {
	s.t.Helper()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"annotations": {"e2e/nudge": "`+fmt.Sprint(len(suite.news.of(s.name).pods))+`"}}}`))
	if err := suite.live.Patch(s.ctx, pod.DeepCopy(), patch); err != nil {
		s.t.Fatalf("nudging pod %s: %v", pod.Name, err)
	}
}

// resizedTo waits until a claim has a size and no resize is under way. It gives the claim's volume.
func (s *scenario) resizedTo(claim *corev1.PersistentVolumeClaim, want string) *corev1.PersistentVolume {
	s.t.Helper()
	now := claim.DeepCopy()
	s.await("claim "+claim.Name+" to have "+want, func() (bool, string) {
		if err := s.get(now); err != nil {
			return false, err.Error()
		}
		has := now.Status.Capacity[corev1.ResourceStorage]
		return has.String() == want && len(now.Status.Conditions) == 0 && len(now.Status.AllocatedResourceStatuses) == 0, fmt.Sprintf("%+v", now.Status)
	})
	if allocated := now.Status.AllocatedResources[corev1.ResourceStorage]; allocated.String() != want {
		s.t.Errorf("allocated are %s, want %s", allocated.String(), want)
	}
	vol := &corev1.PersistentVolume{ObjectMeta: named(now.Spec.VolumeName)}
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(vol), vol); err != nil {
		s.t.Fatal(err)
	}
	return vol
}

// sized wants volume and record to have a size.
func (s *scenario) sized(vol *corev1.PersistentVolume, want string) {
	s.t.Helper()
	record := &tarn.PavVolume{ObjectMeta: named(vol.Name)}
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(record), record); err != nil {
		s.t.Fatal(err)
	}
	has := vol.Spec.Capacity[corev1.ResourceStorage]
	if has.String() != want || record.Status.Capacity != has.Value() || record.Status.Expansion.TargetCapacity != 0 {
		s.t.Errorf("the volume has %s, want %s; its record says %d, %+v", has.String(), want, record.Status.Capacity, record.Status.Expansion)
	}
}

// complains waits until a claim has a condition whose message contains a text.
func (s *scenario) complains(claim *corev1.PersistentVolumeClaim, which corev1.PersistentVolumeClaimConditionType, text string) {
	s.t.Helper()
	now := claim.DeepCopy()
	s.await(fmt.Sprintf("claim %s to have %s with %q", claim.Name, which, text), func() (bool, string) {
		if err := s.get(now); err != nil {
			return false, err.Error()
		}
		for _, c := range now.Status.Conditions {
			if c.Type == which && c.Status == corev1.ConditionTrue && strings.Contains(c.Message, text) {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%+v", now.Status)
	})
}

// writesOn keeps writing into the volume, and reports when the volume has become larger than 50
// MiB. It fails at the first failed write.
const writesOn = `while true; do
echo tick >> /data/log; sync
if [ $(df -k /data | tail -1 | awk '{print $2}') -gt 50000 ] && [ ! -e /data/told ]; then touch /data/told; echo "it has grown"; fi
sleep 0.1
done`

func TestAVolumeGrowsUnderAPodThatGoesOnWriting(t *testing.T) {
	t.Parallel()
	s := begin(t, "grow")
	sections := inMemory()
	sections["volumeExpansion"] = fields{"nodePodTemplate": remounting("")}
	s.create(s.provisioner(sections))
	claim := s.growable()
	pod := s.consumer("writer", claim.Name, writesOn)
	s.ready(pod)
	s.ask(claim, "64Mi")
	s.told(claim, "FileSystemResizeRequired")
	s.nudge(pod)
	s.sized(s.resizedTo(claim, "64Mi"), "64Mi")
	s.prints(pod, "it has grown")
	s.ran(tarn.StepNodeExpansion, 1)
	s.ran(tarn.StepStaging, 1)
	s.remove(pod)

	// An unused volume grows on the node of its next consumer.
	s.ask(claim, "96Mi")
	s.told(claim, "FileSystemResizeRequired", "96Mi")
	s.succeeded(s.consumer("next", claim.Name, `test $(df -k /data | tail -1 | awk '{print $2}') -gt 80000`))
	s.sized(s.resizedTo(claim, "96Mi"), "96Mi")
}

func TestANodeThatCannotGrowRecoversWhenItsClaimAsksForLess(t *testing.T) {
	t.Parallel()
	s := begin(t, "grow-node-less")
	s.step = 3 * soon
	sections := inMemory()
	sections["volumeExpansion"] = fields{"nodePodTemplate": remounting(refusing)}
	s.create(s.provisioner(sections))
	claim := s.growable()
	pod := s.consumer("writer", claim.Name, writesOn)
	s.ready(pod)
	s.ask(claim, "256Mi")
	s.told(claim, "FileSystemResizeRequired")
	s.nudge(pod)
	s.complains(claim, corev1.PersistentVolumeClaimNodeResizeError, "no room for 268435456 bytes")
	s.explainsClaim(claim.Name, "its volume has been expanded, but its file system cannot be on node ")
	s.ask(claim, "64Mi")
	s.nudge(pod)
	s.resizedTo(claim, "64Mi")
	s.prints(pod, "it has grown")
}

func TestABlockVolumeGrowsUnderItsPod(t *testing.T) {
	t.Parallel()
	shelf := t.TempDir()
	s := begin(t, "grow-block")
	s.needsThisMachine()
	onShelf := func(text string, more fields) fields {
		section := script{hostDir: shelf, privileged: true, text: "set -e; " + text}.section(more)
		seesDevices(section["podTemplate"])
		return section
	}
	// A loop device that is not mounted disappears with its last user, so unstaging detaches it.
	grow := onShelf("truncate -s {{ newCapacity }} /host/{{ handle|tobash }}; losetup -c $(cat /pav/loop)", nil)
	s.create(s.provisioner(fields{
		"volumeValidation": fields{"volumeModes": []any{"Block"}},
		"volumeCreation":   onShelf("truncate -s {{ requestedMinCapacity }} /host/{{ defaultHandle|tobash }}", asRequested),
		"volumeDeletion":   onShelf("rm /host/{{ handle|tobash }}", nil),
		"volumeExpansion":  fields{"nodePodTemplate": grow["podTemplate"]},
		"volumeStaging":    onShelf("loop=$(losetup -f --show /host/{{ handle|tobash }}); echo $loop > /pav/loop; cp -a $loop /pav/volume", nil),
		"volumeUnstaging":  onShelf("losetup -d $(cat /pav/loop)", nil),
	}))
	claim := s.growable(func(claim *corev1.PersistentVolumeClaim) {
		block := corev1.PersistentVolumeBlock
		claim.Spec.VolumeMode = &block
	})
	pod := s.consumer("reader", claim.Name, `until [ $(blockdev --getsize64 /dev/data) = 67108864 ]; do sleep 0.1; done; echo "it has grown"; `+stays, func(pod *corev1.Pod) {
		c := &pod.Spec.Containers[0]
		c.VolumeMounts, c.VolumeDevices = nil, []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/data"}}
	})
	s.ready(pod)
	s.ask(claim, "64Mi")
	s.told(claim, "FileSystemResizeRequired")
	s.nudge(pod)
	s.sized(s.resizedTo(claim, "64Mi"), "64Mi")
	s.prints(pod, "it has grown")

	// The next pod still gets the volume that was staged.
	s.succeeded(s.consumer("second", claim.Name, "test $(blockdev --getsize64 /dev/data) = 67108864", func(pod *corev1.Pod) {
		c := &pod.Spec.Containers[0]
		c.VolumeMounts, c.VolumeDevices = nil, []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/data"}}
	}))
	s.ran(tarn.StepStaging, 1)
}

// seesDevices gives the pod of a section the tools to make loop devices. It also mounts the
// machine's /dev, so that new devices appear.
func seesDevices(podTemplate any) {
	spec := podTemplate.(fields)["spec"].(fields)
	container := spec["containers"].([]any)[0].(fields)
	container["image"] = "ubuntu:20.04"
	container["volumeMounts"] = append(container["volumeMounts"].([]any), fields{"name": "dev", "mountPath": "/dev"})
	spec["volumes"] = append(spec["volumes"].([]any), fields{"name": "dev", "hostPath": fields{"path": "/dev", "type": "Directory"}})
}
