//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

// handWritten makes a volume of the case's provisioner as an administrator does. It also makes a
// claim of the same name bound to it.
func (s *scenario) handWritten(name, handle string, edits ...func(*corev1.PersistentVolume)) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	vol := &corev1.PersistentVolume{ObjectMeta: named(s.name + "-" + name)}
	vol.Spec = corev1.PersistentVolumeSpec{
		Capacity: size("2Mi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: s.name, VolumeHandle: handle}},
	}
	for _, edit := range edits {
		edit(vol)
	}
	s.create(vol)
	s.t.Cleanup(func() { s.deleteIfThere(vol) })
	return s.claimOf(name, vol)
}

// claimOf makes a claim that asks for a handwritten volume, and waits until it is bound.
func (s *scenario) claimOf(name string, vol *corev1.PersistentVolume, edits ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: named(name)}
	claim.Namespace = s.name
	claim.Spec = corev1.PersistentVolumeClaimSpec{
		StorageClassName: ptr.To(""), VolumeName: vol.Name, AccessModes: vol.Spec.AccessModes,
		Resources: corev1.VolumeResourceRequirements{Requests: size("1Mi")},
	}
	for _, edit := range edits {
		edit(claim)
	}
	s.create(claim)
	return s.bound(claim)
}

// never fails the case if a pod of one of the steps was seen.
func (s *scenario) never(steps ...tarn.Step) {
	s.t.Helper()
	for _, step := range steps {
		if n := suite.news.of(s.name).pods[step]; n > 0 {
			s.t.Errorf("saw %d pods for %s, want none", n, step)
		}
	}
}

func TestAVolumeWrittenByHandIsStagedOnlyIfItFits(t *testing.T) {
	t.Parallel()
	s := begin(t, "by-hand")
	sections := fields{
		"volumeValidation": fields{"maxCapacity": "1Mi"},
		"volumeStaging":    greeting,
		"volumeUnstaging":  script{text: "true"}.section(nil),
	}
	p := s.provisioner(sections)
	s.create(p)
	claim := s.handWritten("data", "shelf-7")
	pod := s.consumer("reader", claim.Name, "grep -q hello /data/greeting")
	s.told(pod, "FailedMount", "spec.capacity.storage is 2097152 bytes", "1048576 in spec.volumeValidation.maxCapacity")
	s.never(tarn.StepValidation, tarn.StepStaging, tarn.StepUnstaging)
	sections["volumeValidation"] = fields{"maxCapacity": "2Mi"}
	s.edit(s.provisioner(sections))
	s.succeeded(pod)
	s.remove(pod)
	s.remove(claim)
}

// The kubelet asks with the first of the volume's modes, which need not be a mode of the claim.
func TestAClaimOfAnotherModeThanTheVolumesFirstIsStaged(t *testing.T) {
	t.Parallel()
	s := begin(t, "second-mode")
	modes := `{{ pvc.spec.accessModes|join(',')|tobash }}`
	s.create(s.provisioner(fields{
		"volumeValidation": fields{"accessModes": []any{"ReadWriteOnce", "ReadWriteMany"}},
		"volumeStaging":    script{text: "mkdir /pav/volume && echo " + modes + " > /pav/volume/modes"}.section(nil),
		"volumeUnstaging":  script{text: "true"}.section(nil),
	}))
	vol := &corev1.PersistentVolume{ObjectMeta: named(s.name)}
	vol.Spec = corev1.PersistentVolumeSpec{
		Capacity: size("2Mi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany},
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: s.name, VolumeHandle: "shelf-7"}},
	}
	s.create(vol)
	t.Cleanup(func() { s.deleteIfThere(vol) })
	claim := s.claimOf("data", vol, func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	pod := s.consumer("reader", claim.Name, `test "$(cat /data/modes)" = ReadWriteMany`)
	s.succeeded(pod)
	s.remove(pod)
	s.remove(claim)
}

func TestTheValidationPodSeesAVolumeWrittenByHandBeforeItIsStaged(t *testing.T) {
	t.Parallel()
	s := begin(t, "by-hand-pod")
	check := `test {{ handle|tobash }} = good && test {{ requestedMinCapacity }} = 2097152 || { echo 'there is no shelf {{ handle }}' > /pav/error; false; }`
	s.create(s.provisioner(fields{
		"volumeValidation": script{text: check}.section(nil),
		"volumeStaging":    greeting,
		"volumeUnstaging":  script{text: "true"}.section(nil),
	}))
	bad := s.consumer("bad", s.handWritten("bad", "bad").Name, "true")
	s.told(bad, "FailedMount", "Validation pod failed: there is no shelf bad")
	s.never(tarn.StepStaging, tarn.StepUnstaging)
	s.remove(bad)
	good := s.consumer("good", s.handWritten("good", "good").Name, "grep -q hello /data/greeting")
	s.succeeded(good)
	s.remove(good)
}

// A PersistentVolume restored from a backup equals the provisioned one, but its record and its uid
// are gone.
func TestAVolumeRestoredFromABackupCountsAsWrittenByHand(t *testing.T) {
	t.Parallel()
	s := begin(t, "restored")
	sections := fields{
		"volumeValidation": script{text: `{% if handle is defined %}echo 'no such shelf' > /pav/error; exit 1{% endif %}`}.section(nil),
		"volumeCreation":   asRequested,
		"volumeStaging":    greeting,
	}
	p := s.provisioner(sections)
	p.Object["spec"].(fields)["provisioningModes"] = []any{"Dynamic"}
	s.create(p)
	s.class(corev1.PersistentVolumeReclaimDelete)
	made := &corev1.PersistentVolume{ObjectMeta: named(s.bound(s.claim("made")).Spec.VolumeName)}
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(made), made); err != nil {
		t.Fatal(err)
	}
	claim := s.handWritten("restored", "shelf-7", func(vol *corev1.PersistentVolume) { vol.Annotations = maps.Clone(made.Annotations) })
	pod := s.consumer("reader", claim.Name, "grep -q hello /data/greeting")
	s.told(pod, "FailedMount", "restored from a backup", "does not have Static")
	s.explains("pod", s.name+"/"+pod.Name, "stages no volumes written by hand, and one without its PavVolume counts as such")
	s.remove(pod)

	s.edit(s.provisioner(sections))
	again := s.consumer("again", claim.Name, "grep -q hello /data/greeting")
	s.told(again, "FailedMount", "Validation pod failed: no such shelf")
	s.never(tarn.StepStaging)
	s.remove(again)
}

func TestOneStageOfAHandleAtATime(t *testing.T) {
	t.Parallel()
	s := begin(t, "shared-handle")
	s.create(s.provisioner(fields{"volumeStaging": greeting, "volumeUnstaging": script{text: "true"}.section(nil)}))
	first := s.consumer("first", s.handWritten("one", "shelf-7").Name, stays)
	s.ready(first)
	other := s.handWritten("other", "shelf-7")
	second := s.consumer("second", other.Name, "grep -q hello /data/greeting")
	s.told(second, "FailedMount", s.name+"-one", "one of them at a time can be staged")
	if e := s.explains("pod", s.name+"/"+second.Name, "one of them at a time can be staged"); e.command() != "" {
		t.Errorf("the command is %q, want none: the pods of the other volume have to end", e.command())
	}
	s.never(tarn.StepUnstaging)
	s.ran(tarn.StepStaging, 1) // for the first volume
	s.remove(first)
	s.succeeded(second)
	s.remove(second)
}

func TestACreationThatGivesAnothersHandleDeletesNothing(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]string{"that succeeds": "true", "that fails": "test {{ pvc.metadata.name|tobash }} = first"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := begin(t, "same-handle")
			s.create(s.provisioner(fields{
				"volumeCreation": script{text: "echo shared > /pav/handle; " + end}.section(asRequested),
				"volumeDeletion": script{text: "true"}.section(nil),
				"volumeStaging":  greeting,
			}))
			s.class(corev1.PersistentVolumeReclaimDelete)
			first := s.bound(s.claim("first"))
			second := s.claim("second")
			s.told(second, "ProvisioningFailed", `volumeHandle "shared"`, `PersistentVolume "`+first.Spec.VolumeName+`"`, "kubectl delete pavvolume pvc-"+string(second.UID))
			record := &tarn.PavVolume{ObjectMeta: named("pvc-" + string(second.UID))}
			s.await("the record to be Disputed", func() (bool, string) {
				err := s.get(record)
				return err == nil && record.Status.Phase == tarn.VolumeDisputed, fmt.Sprintf("it is %q, %v", record.Status.Phase, err)
			})
			s.remove(second)
			s.gone(record)
			s.never(tarn.StepDeletion)
			pod := s.consumer("reader", first.Name, "grep -q hello /data/greeting")
			s.succeeded(pod)
			s.remove(pod)
			s.remove(first)
			s.remove(&pav.PavProvisioner{ObjectMeta: named(s.name)})
			s.ran(tarn.StepDeletion, 1) // for the first volume
		})
	}
}

func TestAClaimThatIsMadeAgainGetsTheHandleOnceItsOldVolumeIsGone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, field, pod string
		wait             []string // the texts on the wait
		made, destroyed  int      // pods, until the claim is bound again
	}{
		{"the field names it", "{{ pvc.metadata.name }}", "true", []string{`is Pending: volumeHandle "data" is still that of PersistentVolume "`}, 2, 1},
		{"the pod names it", "", "echo data > /pav/handle", []string{"Tarn cannot yet remove what an attempt may have left", `volumeHandle "data" is still that of PersistentVolume "`}, 3, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			shelf := t.TempDir() // until the last pod of the case is gone
			s := begin(t, "again")
			s.needsThisMachine()
			creation := script{hostDir: shelf, text: "mkdir -p -m 777 /host/data; " + c.pod}.section(asRequested)
			if c.field != "" {
				creation["handle"] = c.field
			}
			s.create(s.provisioner(fields{
				"volumeCreation": creation,
				"volumeDeletion": script{hostDir: shelf, text: "until [ -e /host/go ]; do sleep 0.1; done; rm -rf /host/{{ handle|tobash }}"}.section(nil),
				"volumeStaging":  script{hostDir: shelf, privileged: true, text: "mkdir /pav/volume && mount --bind /host/{{ handle|tobash }} /pav/volume"}.section(nil),
			}))
			s.class(corev1.PersistentVolumeReclaimDelete)
			first := s.bound(s.claim("data"))
			writer := s.consumer("writer", "data", "touch /data/old")
			s.succeeded(writer)
			s.remove(writer)
			s.remove(first)
			second := s.claim("data")
			s.explainsClaim("data", append(c.wait, first.Spec.VolumeName)...)
			s.told(second, "HandleGoing", `volumeHandle "data"`, first.Spec.VolumeName)
			put(t, filepath.Join(shelf, "go"))
			s.bound(second)
			s.ran(tarn.StepCreation, c.made)
			s.ran(tarn.StepDeletion, c.destroyed)
			if c.field != "" { // the storage of a claim that its pod names may be deleted under it
				s.remove(second)
				s.bound(s.claim("data"))
			}
			reader := s.consumer("reader", "data", "test ! -e /data/old && touch /data/new")
			s.succeeded(reader)
			s.remove(reader)
		})
	}
}

func TestMountOptionsAndFileSystemAreToldOrWarnedOf(t *testing.T) {
	t.Parallel()
	s := begin(t, "options")
	s.create(s.provisioner(fields{
		"volumeCreation": asRequested,
		"volumeStaging":  script{text: `mkdir /pav/volume && echo {{ (mountOptions | join(',') ~ ' ' ~ fsType)|tobash }} > /pav/volume/told`}.section(nil),
	}))
	class := s.class(corev1.PersistentVolumeReclaimDelete)
	s.remove(class)
	class.ResourceVersion, class.UID = "", ""
	class.MountOptions, class.Parameters = []string{"noexec", "ttl=5s"}, map[string]string{"csi.storage.k8s.io/fstype": "xfs"}
	s.create(class)
	claim := s.bound(s.claim("data"))
	pod := s.consumer("reader", claim.Name, `test "$(cat /data/told)" = "noexec,ttl=5s xfs"`)
	s.succeeded(pod)
	s.remove(pod)
	s.remove(claim)

	unread := s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting})
	s.edit(unread)
	warned := s.handWritten("warned", "warned", func(vol *corev1.PersistentVolume) { vol.Spec.MountOptions = []string{"noexec", "ttl=5s"} })
	pod = s.consumer("warned", warned.Name, "true")
	s.succeeded(pod)
	s.told(warned, "MountOptionsUnread", `without its spec.mountOptions "noexec,ttl=5s"`, "let the template read mountOptions")
	s.remove(pod)
	s.remove(warned)
}

func TestAVolumeWhoseSecretNobodyReadsIsRefusedBeforeAnyPod(t *testing.T) {
	t.Parallel()
	s := begin(t, "secret")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	refused := s.handWritten("refused", "refused", func(vol *corev1.PersistentVolume) {
		vol.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "vault", Name: "key"}
	})
	pod := s.consumer("refused", refused.Name, "true")
	s.told(pod, "FailedMount", `spec.csi.nodeStageSecretRef is "vault/key"`)
	for _, e := range s.events(pod.Namespace, pod.Name) {
		if strings.Contains(e.Message, "Staging pod failed") {
			t.Errorf("a staging pod is blamed that was never sent: %s", e.Message)
		}
	}
	s.remove(pod)
}
