package cli

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
)

// prepared reads what a test of a provisioner would make.
func prepared(t *testing.T, try *pavTry, text string) error {
	t.Helper()
	cmd := newPavTestCommand()
	cmd.SetIn(strings.NewReader(text))
	try.prefix, try.image = "pav-test-", "busybox"
	return try.prepare(cmd, standardInput)
}

func TestATestUsesThrowAwayNamesAlone(t *testing.T) {
	long := strings.Repeat("long-", 12) + "end"
	try := &pavTry{claimFile: testFile("claim.yaml"), classFile: testFile("claim.yaml")}
	text := strings.NewReplacer("name: right", "name: "+long, "[Static]", "[Dynamic]").Replace(provisioner)
	if err := prepared(t, try, text); err != nil {
		t.Fatal(err)
	}
	name := try.provisioner.GetName()
	if name == long || !strings.HasPrefix(name, "long-long") || len(validation.IsDNS1123Label(name)) > 0 {
		t.Errorf("the provisioner is called %q", name)
	}
	if try.class.Name != name || try.class.Provisioner != name || try.class.Parameters["region"] != "eu" {
		t.Errorf("the class is %+v", try.class)
	}
	claim := try.claim
	if *claim.Spec.StorageClassName != name || claim.Namespace != try.namespace || claim.UID != "" || claim.Annotations["example.org/source"] != "base" {
		t.Errorf("the claim is %+v", claim)
	}
	for _, pod := range []*corev1.Pod{try.writer, try.reader} {
		if pod.Namespace != try.namespace || pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != claim.Name {
			t.Errorf("the pod is %+v", pod)
		}
	}
	if len(validation.IsDNS1123Label(try.namespace)) > 0 {
		t.Errorf("the namespace is called %q", try.namespace)
	}
}

func TestABlockVolumeIsTriedAsADevice(t *testing.T) {
	claim := sampleClaim()
	block := corev1.PersistentVolumeBlock
	claim.Spec.VolumeMode = &block
	writer, reader := tryPods(claim, "busybox", "token")
	for _, c := range []corev1.Container{writer.Spec.InitContainers[0], writer.Spec.Containers[0], reader.Spec.Containers[0]} {
		if len(c.VolumeMounts) > 0 || len(c.VolumeDevices) != 1 {
			t.Errorf("container %s has mounts %v and devices %v", c.Name, c.VolumeMounts, c.VolumeDevices)
		}
	}
	if script := reader.Spec.Containers[0].Command[2]; !strings.Contains(script, "count=5 ") {
		t.Errorf("the reader runs %s", script)
	}
}

func TestACreationIsMadeToFailBeforeItDoesAnything(t *testing.T) {
	pod := func(spec any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"volumeCreation": map[string]any{"podTemplate": map[string]any{"spec": spec}}}}}
	}
	own := map[string]any{"name": "own"}
	p := pod(map[string]any{"restartPolicy": "OnFailure", "initContainers": []any{own}, "containers": []any{own}})
	spoilt, why := spoil(p, "busybox")
	if why != "" {
		t.Fatal(why)
	}
	spec, _, _ := unstructured.NestedMap(spoilt.Object, "spec", "volumeCreation", "podTemplate", "spec")
	list, _, _ := unstructured.NestedSlice(spec, "initContainers")
	if first, _ := list[0].(map[string]any); len(list) != 2 || first["image"] != "busybox" || spec["restartPolicy"] != "Never" {
		t.Errorf("the creation pod is %v", spec)
	}
	if list, _, _ := unstructured.NestedSlice(p.Object, "spec", "volumeCreation", "podTemplate", "spec", "initContainers"); len(list) != 1 {
		t.Errorf("the provisioner itself was changed: %v", list)
	}
	for want, p := range map[string]*unstructured.Unstructured{
		"is a template as a whole":      pod("{{ all }}"),
		"initContainers are a template": pod(map[string]any{"initContainers": "{{ some }}"}),
		"there is no creation pod":      {Object: map[string]any{"spec": map[string]any{}}},
	} {
		if _, why := spoil(p, "busybox"); !strings.Contains(why, want) {
			t.Errorf("got %q, want %q", why, want)
		}
	}
}

func TestATestRefusesWhatItCannotTry(t *testing.T) {
	dynamic := strings.Replace(provisioner, "[Static]", "[Dynamic]", 1)
	const volume = "kind: PersistentVolume\nmetadata: {name: a}\nspec: {csi: {driver: right, volumeHandle: h}"
	byHand := writeFile(t, "volume.yaml", volume+"}\n")
	used := writeFile(t, "used.yaml", volume+"}\nstatus: {phase: Bound}\n")
	fixed := writeFile(t, "fixed.yaml", "kind: PersistentVolume\nmetadata: {name: a}\nspec: {csi: {driver: right, volumeHandle: h, readOnly: true}}\n")
	shown := writeFile(t, "shown.yaml", volume+", accessModes: [ReadOnlyMany]}\n")
	device := writeFile(t, "device.yaml", "kind: PersistentVolumeClaim\nmetadata: {name: a}\nspec: {volumeMode: Block, accessModes: [ReadWriteOnce]}\n")
	block := writeFile(t, "block.yaml", volume+", volumeMode: Block}\n")
	bare := writeFile(t, "bare.yaml", "kind: PersistentVolume\nmetadata: {name: a}\nspec: {hostPath: {path: /a}}\n")
	bound := writeFile(t, "claim.yaml", "kind: PersistentVolumeClaim\nmetadata: {name: a}\nspec: {volumeName: pv-7}\n")
	for want, c := range map[string]struct {
		try  pavTry
		text string
	}{
		"stages no volumes written by hand":                             {pavTry{volumeFile: byHand}, dynamic},
		"--volume: PersistentVolume a has no spec.csi.volumeHandle":     {pavTry{volumeFile: bare}, provisioner},
		"would write over the first bytes of a device":                  {pavTry{volumeFile: block}, provisioner},
		"says status.phase Bound":                                       {pavTry{volumeFile: used}, provisioner},
		"can only be read, by its spec.csi.readOnly":                    {pavTry{volumeFile: fixed}, provisioner},
		"can only be read, by its spec.csi.readOnly or its accessModes": {pavTry{volumeFile: shown}, provisioner},
		"is tried with volumeMode Filesystem alone":                     {pavTry{claimFile: device}, provisioner},
		"--class: a volume written by hand has no class":                {pavTry{classFile: testFile("claim.yaml")}, provisioner},
		`--claim: spec.volumeName "pv-7"`:                               {pavTry{claimFile: bound}, dynamic},
		"has no StorageClass":                                           {pavTry{classFile: bound}, dynamic},
	} {
		if err := prepared(t, &c.try, c.text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestAVolumeWrittenByHandIsTriedUnderAThrowAwayName(t *testing.T) {
	file := writeFile(t, "volume.yaml", `kind: PersistentVolume
metadata:
  name: mine
  uid: abc
  labels: {a: b, tarn.dev/deletion-protection: "true"}
  annotations: {a: b, tarn.dev/recycle: Zero, apps.tarn.dev/x: z, pv.kubernetes.io/provisioned-by: right}
spec:
  capacity: {storage: 3Gi}
  accessModes: [ReadWriteMany]
  mountOptions: [noatime]
  storageClassName: fast
  persistentVolumeReclaimPolicy: Delete
  claimRef: {namespace: prod, name: data, uid: def}
  csi: {driver: right, volumeHandle: disk-7, volumeAttributes: {region: eu}}
status: {phase: Released}
`)
	try := &pavTry{volumeFile: file}
	if err := prepared(t, try, provisioner); err != nil {
		t.Fatal(err)
	}
	v, c := try.volume, try.claim
	if v.Name != try.provisionerName || v.UID != "" || len(v.Labels) > 0 || len(v.Annotations) != 1 || v.Annotations["a"] != "b" || v.Status.Phase != "" || v.Spec.CSI.Driver != try.provisionerName ||
		v.Spec.CSI.VolumeHandle != "disk-7" || v.Spec.CSI.VolumeAttributes["region"] != "eu" || v.Spec.MountOptions[0] != "noatime" {
		t.Errorf("the volume is %+v", v)
	}
	if v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || v.Spec.ClaimRef.Namespace != try.namespace || v.Spec.ClaimRef.UID != "" {
		t.Errorf("the volume is %+v", v.Spec)
	}
	if size := c.Spec.Resources.Requests[corev1.ResourceStorage]; c.Spec.VolumeName != v.Name || *c.Spec.StorageClassName != "" || v.Spec.StorageClassName != "" ||
		size.String() != "3Gi" || c.Spec.AccessModes[0] != corev1.ReadWriteMany {
		t.Errorf("the claim is %+v", c.Spec)
	}
	if script := try.writer.Spec.Containers[0].Command[2]; !strings.Contains(script, "rm -f /volume/tarn-pav-test") {
		t.Errorf("what was written stays: %s", script)
	}
	alone := &pavTry{}
	if err := prepared(t, alone, provisioner); err != nil || alone.volume == nil || alone.volume.Spec.CSI.VolumeHandle != alone.provisionerName {
		t.Errorf("of a provisioner with Static alone %+v is tried, %v; want a made-up handle", alone.volume, err)
	}
}

func TestAProvisionerIsTriedByAMethodThatItDoes(t *testing.T) {
	for section, want := range map[string]string{
		"":                                 "",
		`{}`:                               "Files",
		`{"methods": ["Discard"]}`:         "Discard",
		`{"methods": ["Discard", "Zero"]}`: "Zero",
		`{"methods": "{{ params.m }}"}`:    "Files",
	} {
		p := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
		if section != "" {
			var fields map[string]any
			if err := json.Unmarshal([]byte(section), &fields); err != nil {
				t.Fatal(err)
			}
			p.Object["spec"] = map[string]any{"volumeRecycling": fields}
		}
		if got := (&pavTry{provisioner: p}).recycleMethod(); string(got) != want {
			t.Errorf("%s: tried by %q, want %q", section, got, want)
		}
	}
}
