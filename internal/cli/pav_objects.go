package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kjson "sigs.k8s.io/json"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/steppod"
)

// Identities of made-up objects, which exist in no cluster.
const (
	sampleClaimUID  = types.UID("00000000-0000-4000-8000-000000000001")
	sampleRecordUID = types.UID("00000000-0000-4000-8000-000000000002")
	sampleVolumeUID = types.UID("00000000-0000-4000-8000-000000000003")
	sampleStageUID  = types.UID("00000000-0000-4000-8000-000000000004")
)

// sampleClaim returns a claim that asks for as little as a claim can.
func sampleClaim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "example", Namespace: metav1.NamespaceDefault},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}
}

// sampleClass returns a class without parameters.
func sampleClass(provisioner string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: provisioner}, Provisioner: provisioner}
}

// sampleVolume returns the volume made for a claim if the creation chooses no handle.
func sampleVolume(provisioner string, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(claim.UID), UID: sampleVolumeUID},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   claim.Spec.AccessModes,
			VolumeMode:                    ptr.To(ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)),
			StorageClassName:              class.Name,
			MountOptions:                  class.MountOptions,
			PersistentVolumeReclaimPolicy: ptr.Deref(class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete),
			ClaimRef:                      &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: provisioner, VolumeHandle: "pvc-" + string(claim.UID), VolumeAttributes: class.Parameters,
				FSType: class.Parameters[steppod.FSTypeParameter],
			}},
		},
	}
}

func sampleNode() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{corev1.LabelHostname: "node-1"}}}
}

// given returns the only object of a kind T in the file of a flag, or fallback if the flag names no
// file. It rejects fields that the kind does not have.
func given[T any](cmd *cobra.Command, flag, file string, fallback *T) (*T, error) {
	if file == "" {
		return fallback, nil
	}
	shown, text, err := readInput(cmd, file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	all, wrong := readManifests(shown, text)
	if len(wrong) > 0 {
		return nil, fmt.Errorf("%s: %s", flag, wrong[0])
	}
	kind := reflect.TypeFor[T]().Name()
	var found *manifest
	for _, m := range all {
		if m.kind() != kind {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("%s: %s has more than one %s: %s and %s; give a file with one", flag, shown, kind, found.name(), m.name())
		}
		found = m
	}
	if found == nil {
		return nil, fmt.Errorf("%s: %s has no %s", flag, shown, kind)
	}
	object := new(T)
	strict, err := kjson.UnmarshalStrict(found.json, object)
	if err == nil && len(strict) > 0 {
		err = strict[0]
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s, document %d: %w", flag, shown, found.number, err)
	}
	return object, nil
}

// fileObjects answers get_pvc and get_pv from the objects of --pvcs: claims by namespace/name,
// volumes by name. It asks the cluster, if there is one, for other objects.
type fileObjects struct {
	client.Reader
	objects map[string]any
	given   bool // --pvcs was
}

func (f *fileObjects) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	kind, name := "claim", key.String()
	if key.Namespace == "" {
		kind, name = "volume", key.Name
	}
	object, ok := f.objects[name]
	switch {
	case ok:
		data, err := json.Marshal(object)
		if err != nil {
			return err
		}
		if err := json.NewDecoder(bytes.NewReader(data)).Decode(into); err != nil {
			return apierrors.NewBadRequest(fmt.Sprintf("--pvcs: %s is not a %s: %v", name, kind, err))
		}
		return nil
	case f.Reader != nil:
		return f.Reader.Get(ctx, key, into, options...)
	case f.given:
		absent := apierrors.NewNotFound(corev1.Resource(kind), name)
		absent.ErrStatus.Message = fmt.Sprintf("--pvcs has no %s %s", kind, name)
		return absent
	}
	return apierrors.NewBadRequest(fmt.Sprintf("no cluster is configured to read it from; give --pvcs FILE with a %s %s, or --kubeconfig", kind, name))
}
