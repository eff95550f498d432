package pavvolume

import (
	"cmp"
	"fmt"
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/yaml"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// Thousands of claims are served by other provisioners.
func TestOnlyClaimsThatMayBeOursAreLookedAt(t *testing.T) {
	asking := func(provisioner string) *corev1.PersistentVolumeClaim {
		claim := &corev1.PersistentVolumeClaim{}
		if provisioner != "" {
			claim.Annotations = map[string]string{volume.AnnProvisioner: provisioner}
		}
		return claim
	}
	for provisioner, ours := range map[string]bool{"": false, "nfs": true, "csi.example.com": false, "tarn.dev/host-path": false} {
		if got := namesProvisioner.Create(event.CreateEvent{Object: asking(provisioner)}); got != ours {
			t.Errorf("a new claim of provisioner %q is looked at: %t, want %t", provisioner, got, ours)
		}
		update := event.UpdateEvent{ObjectOld: asking("nfs"), ObjectNew: asking(provisioner)}
		if !namesProvisioner.Update(update) {
			t.Errorf("a claim whose provisioner was nfs and is %q is not looked at", provisioner)
		}
		update = event.UpdateEvent{ObjectOld: asking(""), ObjectNew: asking(provisioner)}
		if got := namesProvisioner.Update(update); got != ours {
			t.Errorf("a claim that gets provisioner %q is looked at: %t, want %t", provisioner, got, ours)
		}
	}
}

func TestCase121TheVolumeIsWhatTheClaimAndItsClassAskFor(t *testing.T) {
	for _, c := range []struct {
		name string
		view func(*View)
		want func(*corev1.PersistentVolume)
	}{
		{"of a plain claim and class", func(*View) {}, func(*corev1.PersistentVolume) {}},
		{"a claim and a class that say nothing", func(v *View) {
			v.Class.ReclaimPolicy, v.Class.VolumeBindingMode, v.Class.Parameters = nil, nil, nil
		}, func(vol *corev1.PersistentVolume) { vol.Spec.CSI.VolumeAttributes = nil }},
		{"of policy Retain, which has the finalizer until it is first looked at", func(v *View) {
			v.Class.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimRetain)
		}, func(vol *corev1.PersistentVolume) {
			vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}},
		{"a block volume", func(v *View) { v.Claim.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) },
			func(vol *corev1.PersistentVolume) { vol.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }},
		{"with access modes", func(v *View) {
			v.Claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteMany}
		}, func(vol *corev1.PersistentVolume) {
			vol.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteMany}
		}},
		{"with mount options and a file system", func(v *View) {
			v.Class.MountOptions = []string{"noatime", "ro"}
			v.Class.Parameters = map[string]string{steppod.FSTypeParameter: "xfs"}
		}, func(vol *corev1.PersistentVolume) {
			vol.Spec.MountOptions = []string{"noatime", "ro"}
			vol.Spec.CSI.FSType, vol.Spec.CSI.VolumeAttributes = "xfs", map[string]string{steppod.FSTypeParameter: "xfs"}
		}},
		{"with the Secret that the claim names", func(v *View) {
			v.Class.Parameters = map[string]string{steppod.SecretNameParameter: "${pvc.annotations['key']}", steppod.SecretNamespaceParameter: "${pvc.namespace}"}
			v.Claim.Annotations["key"] = "login"
		}, func(vol *corev1.PersistentVolume) {
			vol.Spec.CSI.VolumeAttributes = map[string]string{steppod.SecretNameParameter: "${pvc.annotations['key']}", steppod.SecretNamespaceParameter: "${pvc.namespace}"}
			vol.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "login"}
		}},
		{"of a class that has not the provisioner's name", func(v *View) {
			v.Class.Name, v.Claim.Spec.StorageClassName = "gold", ptr.To("gold")
			v.Class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
		}, func(vol *corev1.PersistentVolume) { vol.Spec.StorageClassName = "gold" }},
		{"of a claim that a binder and its users have marked", func(v *View) {
			v.Claim.Annotations["pv.kubernetes.io/bound-by-controller"], v.Claim.Labels = "yes", map[string]string{"app": "db"}
		}, func(*corev1.PersistentVolume) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := viewOf(c.view)
			record, err := newRecord(v)
			if err != nil {
				t.Fatal(err)
			}
			// A provisioner may return more than the claim requests.
			record.UID, record.Status = "record-u1", tarnv1.PavVolumeStatus{Phase: tarnv1.VolumeCreated, Handle: "shelf-7", Capacity: 5 << 30}
			got, err := newVolume(record)
			if err != nil {
				t.Fatal(err)
			}
			want := plainVolume()
			c.want(want)
			if !equality.Semantic.DeepEqual(got, want) {
				t.Errorf("case 121: got\n%s\nwant\n%s", inYAML(t, got), inYAML(t, want))
			}
		})
	}
}

// A size may have a fraction of a byte, such as 1.1Gi. The volume must be large enough for Tarn's
// binder, which compares exactly, and for Kubernetes', which rounds both up.
func TestAVolumeOfAnySizeAskedForFitsItsClaim(t *testing.T) {
	asked := rapid.Custom(func(t *rapid.T) resource.Quantity {
		suffix := rapid.SampledFrom([]string{"", "k", "Ki", "M", "Mi", "G", "Gi", "T", "Ti", "P", "Pi", "E", "Ei"}).Draw(t, "suffix")
		most := map[string]uint64{"P": 9000, "Pi": 8000, "E": 9, "Ei": 7}[suffix]
		whole := rapid.Uint64Range(0, cmp.Or(most, 1_000_000)).Draw(t, "whole")
		return resource.MustParse(fmt.Sprintf("%d.%03d%s", whole, rapid.IntRange(0, 999).Draw(t, "thousandths"), suffix))
	}).Filter(func(q resource.Quantity) bool { return q.Sign() > 0 && q.CmpInt64(math.MaxInt64) < 0 })
	rapid.Check(t, func(t *rapid.T) {
		request := asked.Draw(t, "request")
		written := request.String()
		for _, capacity := range []*string{nil, &written} { // a pod that writes no capacity, and one that writes the claim's request
			v := viewOf()
			v.Claim.Spec.Resources = corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: request}, Limits: corev1.ResourceList{corev1.ResourceStorage: request},
			}
			record, err := newRecord(v)
			if err != nil {
				t.Fatal(err)
			}
			if record.Status.Handle, record.Status.Capacity, err = steppod.CreationResult(record, tarnv1.PodInputs{}, &tarnv1.PodResult{Capacity: capacity}); err != nil {
				t.Fatal(err)
			}
			vol, err := newVolume(record)
			if err != nil {
				t.Fatal(err)
			}
			has := vol.Spec.Capacity[corev1.ResourceStorage]
			if misfit := volume.Holds(vol, v.Claim); misfit != volume.Fits || has.Value() < request.Value() {
				t.Fatalf("a claim of %s got a volume of %s: %s", written, has.String(), volume.Explain(misfit, vol, v.Claim))
			}
		}
	})
}

// plainVolume is the volume of viewOf.
func plainVolume() *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "pvc-u1",
			Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": "prov", tarnv1.AnnotationRecord: "record-u1"},
			Finalizers:  []string{"external-provisioner.volume.kubernetes.io/finalizer"},
		},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "prov", PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")},
			ClaimRef: &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "ns", Name: "data", UID: "u1"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "prov", VolumeHandle: "shelf-7", VolumeAttributes: map[string]string{"tier": "gold"}},
			},
		},
	}
}

func inYAML(t *testing.T, vol *corev1.PersistentVolume) []byte {
	t.Helper()
	text, err := yaml.Marshal(vol)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
