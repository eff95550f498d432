//go:build e2e

package e2e

import (
	"encoding/json"
	"os"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// fields is a part of an object as an administrator writes it.
type fields = map[string]any

// script is the pod of a step: its shell script and its environment.
type script struct {
	// text is the script for busybox' shell.
	text string
	// hostDir is a directory of the node to mount at /host; "" for none.
	hostDir string
	// privileged containers can mount.
	privileged bool
}

// section gives a section whose pod runs the script, with further fields.
func (r script) section(more fields) fields {
	container := fields{"name": "main", "image": "busybox:1.36", "command": []any{"sh", "-c"}, "args": []any{r.text}}
	spec := fields{"restartPolicy": "Never", "terminationGracePeriodSeconds": int64(5), "containers": []any{container}}
	if r.privileged {
		container["securityContext"] = fields{"privileged": true}
	}
	if r.hostDir != "" {
		container["volumeMounts"] = []any{fields{"name": "host", "mountPath": "/host"}}
		spec["volumes"] = []any{fields{"name": "host", "hostPath": fields{"path": r.hostDir, "type": "Directory"}}}
	}
	made := fields{"podTemplate": fields{"spec": spec}}
	for name, value := range more {
		made[name] = value
	}
	return made
}

// asRequested is the simplest creation: it makes nothing and gives the requested size.
var asRequested = fields{"capacity": "{{ requestedMinCapacity }}"}

// greeting is the simplest staging.
var greeting = script{text: "mkdir /pav/volume && echo hello > /pav/volume/greeting"}.section(nil)

// provisioner gives a PavProvisioner with the case's name and the sections.
func (s *scenario) provisioner(sections fields) *unstructured.Unstructured {
	spec := fields{"provisioningModes": []any{"Dynamic", "Static"}}
	for name, section := range sections {
		spec[name] = section
	}
	return &unstructured.Unstructured{Object: fields{
		"apiVersion": "pav.albertofaria.github.io/v1alpha1",
		"kind":       "PavProvisioner",
		"metadata":   fields{"name": s.name},
		"spec":       spec,
	}}
}

// edit replaces the spec of an existing object.
func (s *scenario) edit(o *unstructured.Unstructured) {
	s.t.Helper()
	patch, err := json.Marshal(fields{"spec": o.Object["spec"]})
	if err != nil {
		s.t.Fatal(err)
	}
	if err := suite.live.Patch(s.ctx, o, client.RawPatch(types.MergePatchType, patch)); err != nil {
		s.t.Fatalf("changing %s: %v", describe(o), err)
	}
}

// example reads an object of the examples directory unchanged.
func (s *scenario) example(path string) *unstructured.Unstructured {
	s.t.Helper()
	text, err := os.ReadFile("../examples/" + path)
	if err != nil {
		s.t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &o.Object); err != nil {
		s.t.Fatalf("%s: %v", path, err)
	}
	return o
}

// fiveSections makes the provisioner of examples/five-sections under the case's name.
func (s *scenario) fiveSections() {
	s.t.Helper()
	o := s.example("five-sections/provisioner.yaml")
	o.SetName(s.name)
	s.create(o)
}

// class makes the case's StorageClass.
func (s *scenario) class(policy corev1.PersistentVolumeReclaimPolicy) *storagev1.StorageClass {
	s.t.Helper()
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Provisioner: s.name, ReclaimPolicy: &policy}
	s.create(class)
	return class
}

// claim makes a claim of the case's class.
func (s *scenario) claim(name string) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &s.name,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources:        corev1.VolumeResourceRequirements{Requests: size("1Mi")},
		},
	}
	s.create(claim)
	return claim
}

func size(text string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(text)}
}

// consumer makes a pod that runs a shell script with the claim's volume at /data.
func (s *scenario) consumer(name, claim, text string, edits ...func(*corev1.Pod)) *corev1.Pod {
	s.t.Helper()
	grace := int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.name},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "main", Image: "busybox:1.36", Command: []string{"sh", "-ec", text},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
	for _, edit := range edits {
		edit(pod)
	}
	s.create(pod)
	return pod
}

// readsBoth is a script that succeeds if the volume contains the two files that the staging pod of
// examples/five-sections writes for a claim.
func readsBoth(claim string) string {
	return `test "$(cat /data/greeting)" = hello && test "$(cat /data/claim)" = ` + claim
}

// stays is a script that runs until it receives SIGTERM.
const stays = "trap exit TERM; sleep 1d & wait"
