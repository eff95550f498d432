//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// Policy Recycle without an annotation. Kubernetes' binder recycles hostPath itself, and fails
// volumes without a recycler. Tarn continues there.
func TestVolumesOfPolicyRecycleAreSharedWithKubernetes(t *testing.T) {
	t.Parallel()
	if os.Getenv("BINDER") != "kubernetes" {
		t.Skip("BINDER is not kubernetes: Tarn's own binder leaves all recycling to Tarn")
	}
	s := begin(t, "policy-recycle")
	s.needsThisMachine()
	folder := t.TempDir()
	local := s.recycled(folder, tarn.RecycleFiles, corev1.PersistentVolumeFilesystem)
	patch := client.RawPatch("application/merge-patch+json",
		[]byte(`{"metadata":{"annotations":{"`+tarn.AnnotationRecycle+`":null}},"spec":{"persistentVolumeReclaimPolicy":"Recycle"}}`))
	if err := suite.live.Patch(s.ctx, local, patch); err != nil {
		t.Fatal(err)
	}
	a := s.tenant("a", corev1.PersistentVolumeFilesystem)
	pod := s.consumer("a", a.Name, `echo "`+secret+`" >/data/.note`)
	s.succeeded(pod)
	s.remove(pod)
	s.remove(a)
	s.certified(local, tarn.RecycleFiles)
	if left := entriesOf(t, folder); len(left) != 0 {
		t.Errorf("%q is left", left)
	}

	host := &corev1.PersistentVolume{ObjectMeta: named(s.name + "-host")}
	host.Spec = corev1.PersistentVolumeSpec{
		Capacity: size("64Mi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: host.Name,
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRecycle,
		PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: t.TempDir()}},
	}
	s.create(host)
	recycler := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "recycler-for-" + host.Name}}
	t.Cleanup(func() {
		s.deleteIfThere(host)
		s.gone(host)
		s.deleteIfThere(recycler) // its image may be missing on this machine
		s.gone(recycler)
	})
	b := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: s.name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &host.Name, Resources: corev1.VolumeResourceRequirements{Requests: size("64Mi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		},
	}
	s.create(b)
	s.bound(b)
	s.remove(b)
	s.told(host, "RecyclingLeftToKubernetes", "set policy Retain")
	s.await("Kubernetes to recycle it", func() (bool, string) {
		err := s.get(recycler)
		return err == nil, fmt.Sprint(err)
	})
	scrub := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "tarn-system", Name: "scrub-" + string(host.UID)}}
	if err := s.get(scrub); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("Tarn has made scrub claim %s for a volume that Kubernetes recycles (%v)", scrub.Name, err)
	}

	// A change of the policy under that pod must not start a second scrub beside it.
	patch = client.RawPatch("application/merge-patch+json",
		[]byte(`{"metadata":{"annotations":{"`+tarn.AnnotationRecycle+`":"Files"}},"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`))
	if err := suite.live.Patch(s.ctx, host, patch); err != nil {
		t.Fatal(err)
	}
	s.told(host, "VolumeFailedRecycle", "is not scrubbed yet, because it is used by Kubernetes' recycler, pod default/"+recycler.Name)
	s.delete(recycler)
	s.certified(host, tarn.RecycleFiles)
}
