package cli

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// recycled has the volume released and cleaned by the provisioner's own pod. Then it gives the
// volume up for deletion.
func (t *pavTry) recycled(ctx context.Context) (string, error) {
	method := t.recycleMethod()
	if method == "" {
		return "skipped: there is no spec.volumeRecycling", nil
	}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: t.claim.Spec.VolumeName}}
	if err := t.patchVolume(ctx, volume, `{"metadata":{"annotations":{"`+tarnv1.AnnotationRecycle+`":"`+string(method)+`"}},"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`); err != nil {
		return "", err
	}
	if err := t.world.remove(ctx, t.claim); err != nil {
		return "", err
	}
	err := t.world.await(ctx, "the volume to be recycled", func() tryLook {
		record, err := t.record(ctx)
		if err != nil || record == nil {
			return still(fmt.Sprintf("its record does not exist (%v)", err))
		}
		if c := meta.FindStatusCondition(record.Status.Conditions, tarnv1.ConditionRecycled); c != nil && c.Status == metav1.ConditionFalse {
			return fatal(fmt.Errorf("%s: %s", c.Reason, c.Message))
		}
		if err := t.world.cached.Get(ctx, client.ObjectKeyFromObject(volume), volume); err != nil {
			return still(err.Error())
		}
		if volume.Status.Phase == corev1.VolumeAvailable && volume.Spec.ClaimRef == nil {
			return done()
		}
		return still(fmt.Sprintf("it is %s; check that Tarn's controller runs with --scrub-image", volume.Status.Phase))
	})
	if err != nil {
		return "", err
	}
	var cert tarnv1.RecycleCertificate
	if err := json.Unmarshal([]byte(volume.Annotations[tarnv1.AnnotationRecycled]), &cert); err != nil || cert.Provisioner != t.provisionerName {
		return "", fmt.Errorf("the certificate is %q, not the provisioner's", volume.Annotations[tarnv1.AnnotationRecycled])
	}
	if err := t.patchVolume(ctx, volume, `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`); err != nil {
		return "", err
	}
	return "by " + string(cert.Method), t.world.remove(ctx, volume)
}

func (t *pavTry) patchVolume(ctx context.Context, volume *corev1.PersistentVolume, patch string) error {
	if err := t.world.live.Patch(ctx, volume, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		return fmt.Errorf("writing PersistentVolume %s: %w", volume.Name, err)
	}
	return nil
}

// recycleMethod returns a method that the provisioner implements itself, by its unevaluated
// section. It is empty where there is none.
func (t *pavTry) recycleMethod() tarnv1.RecycleMethod {
	section, found, _ := unstructured.NestedFieldNoCopy(t.provisioner.Object, "spec", "volumeRecycling")
	if !found {
		return ""
	}
	fields, _ := section.(map[string]any)
	methods, _ := fields["methods"].([]any)
	for _, method := range []tarnv1.RecycleMethod{tarnv1.RecycleFiles, tarnv1.RecycleZero, tarnv1.RecycleDiscard} {
		for _, listed := range methods {
			if listed == string(method) {
				return method
			}
		}
	}
	return tarnv1.RecycleFiles
}
