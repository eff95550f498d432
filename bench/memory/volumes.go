package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// writers is how many volumes are made at once.
const writers = 24

// populate makes volumes as provisioning leaves them: claim and volume bound to each other, with a
// record. It makes none if there are enough.
func (b *bench) populate(ctx context.Context, volumes int) error {
	claims := &metav1.PartialObjectMetadataList{}
	claims.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaimList"))
	if err := b.client.List(ctx, claims, client.InNamespace(name)); err != nil {
		return err
	}
	if len(claims.Items) >= volumes {
		fmt.Printf("%d volumes are there\n", len(claims.Items))
		return nil
	}
	p, class, err := b.makeProvisioner(ctx)
	if err != nil {
		return err
	}
	classJSON, err := json.Marshal(class)
	if err != nil {
		return err
	}
	began := time.Now()
	numbers, failures := make(chan int), make(chan error, writers)
	for range writers {
		go func() {
			var err error
			for i := range numbers {
				if err == nil {
					err = b.makeVolume(ctx, p, classJSON, fmt.Sprintf("data-%05d", i))
				}
			}
			failures <- err
		}()
	}
	for i := len(claims.Items); i < volumes; i++ {
		numbers <- i
	}
	close(numbers)
	for range writers {
		err = errors.Join(err, <-failures)
	}
	if err != nil {
		return err
	}
	fmt.Printf("%d volumes made in %.0f s\n", volumes-len(claims.Items), time.Since(began).Seconds())
	return nil
}

// makeProvisioner makes provisioner, class and namespace. Its volumes are created without a pod,
// and staged by a pod that ends.
func (b *bench) makeProvisioner(ctx context.Context) (*pavv1.PavProvisioner, *storagev1.StorageClass, error) {
	const staging = `{"podTemplate": {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [
		{"name": "c", "image": "busybox:1.36", "command": ["sh", "-c", "mkdir /pav/volume && echo hello > /pav/volume/greeting"]}]}}}`
	p := &pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: pavv1.PavProvisionerSpec{
		ProvisioningModes: []pavv1.ProvisioningMode{pavv1.ModeDynamic},
		VolumeCreation:    &apiextensionsv1.JSON{Raw: []byte(`{"capacity": "{{ requestedMinCapacity }}"}`)},
		VolumeStaging:     &apiextensionsv1.JSON{Raw: []byte(staging)},
	}}
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: name, Parameters: map[string]string{"tier": "fast"}}
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, o := range []client.Object{space, class, p} {
		if err := client.IgnoreAlreadyExists(b.client.Create(ctx, o)); err != nil {
			return nil, nil, err
		}
		if err := b.client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return nil, nil, err
		}
	}
	class.ManagedFields = nil
	return p, class, nil
}

// newClaim is a claim of the class.
func newClaim(id string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: id},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To(name),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

// makeVolume makes one volume in four steps, as many writers do: claim, record, volume, binding.
func (b *bench) makeVolume(ctx context.Context, p *pavv1.PavProvisioner, classJSON []byte, id string) error {
	claim := newClaim(id)
	claim.Labels = map[string]string{"app.kubernetes.io/name": "postgres", "app.kubernetes.io/instance": id}
	claim.Annotations = map[string]string{
		"volume.kubernetes.io/storage-provisioner":      name,
		"volume.beta.kubernetes.io/storage-provisioner": name,
		"pv.kubernetes.io/bind-completed":               "yes",
		"pv.kubernetes.io/bound-by-controller":          "yes",
	}
	if err := b.client.Create(ctx, claim); err != nil {
		return err
	}
	record, err := b.makeRecord(ctx, p, claim, classJSON)
	if err != nil {
		return err
	}
	vol := newVolume(record, claim)
	if err := b.client.Create(ctx, vol); err != nil {
		return err
	}
	vol.Status.Phase = corev1.VolumeBound
	if err := b.client.Status().Update(ctx, vol); err != nil {
		return err
	}
	claim.Spec.VolumeName = vol.Name
	if err := b.client.Update(ctx, claim); err != nil {
		return err
	}
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, AccessModes: claim.Spec.AccessModes, Capacity: vol.Spec.Capacity}
	return b.client.Status().Update(ctx, claim)
}

func (b *bench) makeRecord(ctx context.Context, p *pavv1.PavProvisioner, claim *corev1.PersistentVolumeClaim, classJSON []byte) (*tarnv1.PavVolume, error) {
	snapshot := claim.DeepCopy()
	snapshot.ManagedFields = nil
	claimJSON, err := json.Marshal(snapshot)
	if err != nil {
		return nil, err
	}
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	record := &tarnv1.PavVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pvc-" + string(claim.UID), Labels: map[string]string{tarnv1.LabelProvisioner: name}, Finalizers: []string{tarnv1.FinalizerRecord},
		},
		Spec: tarnv1.PavVolumeSpec{
			Provisioner:          tarnv1.ProvisionerReference{Name: p.Name, UID: p.UID},
			Claim:                tarnv1.ClaimReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			VolumeMode:           corev1.PersistentVolumeFilesystem,
			AccessModes:          claim.Spec.AccessModes,
			RequestedMinCapacity: size.Value(),
			ClaimSnapshot:        apiextensionsv1.JSON{Raw: claimJSON},
			ClassSnapshot:        apiextensionsv1.JSON{Raw: classJSON},
		},
	}
	if err := b.client.Create(ctx, record); err != nil {
		return nil, err
	}
	record.Status = tarnv1.PavVolumeStatus{
		Phase: tarnv1.VolumeCreated, Handle: record.Name, Capacity: size.Value(), Attempts: 1, PodNamespace: "default",
		Conditions: []metav1.Condition{{
			Type: tarnv1.ConditionProvisioned, Status: metav1.ConditionTrue, Reason: "Provisioned",
			Message: "PersistentVolume " + record.Name + " is made", LastTransitionTime: metav1.Now(),
		}},
	}
	return record, b.client.Status().Update(ctx, record)
}

func newVolume(record *tarnv1.PavVolume, claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        record.Name,
			Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": name, tarnv1.AnnotationRecord: string(record.UID)},
			Finalizers:  []string{"external-provisioner.volume.kubernetes.io/finalizer"},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      claim.Spec.Resources.Requests,
			AccessModes:                   claim.Spec.AccessModes,
			VolumeMode:                    ptr.To(corev1.PersistentVolumeFilesystem),
			StorageClassName:              name,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: name, VolumeHandle: record.Name, VolumeAttributes: map[string]string{"tier": "fast"},
			}},
		},
	}
}
