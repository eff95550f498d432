package cli

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// madeToFail is the text that the test's failing creation pod writes to /pav/error.
const madeToFail = "tarn pav test made this creation fail"

// fails makes the creation fail before it has done anything. The deletion pod must be able to undo
// a creation at any point, even this one.
func (t *pavTry) fails(ctx context.Context) (string, error) {
	spoilt, why := spoil(t.provisioner, t.image)
	if why != "" {
		return "skipped: " + why, nil
	}
	if err := t.change(ctx, spoilt); err != nil {
		return "", err
	}
	if err := t.claimVolume(ctx); err != nil {
		return "", err
	}
	err := t.world.await(ctx, "the creation to fail", func() tryLook {
		record, err := t.record(ctx)
		switch {
		case err != nil:
			return still(err.Error())
		case record != nil && record.Status.Phase == tarnv1.VolumeCreated:
			return fatal(fmt.Errorf("it has not failed, although its first container does"))
		case record == nil || record.Status.LastError == nil:
			return still("it has not")
		}
		e := record.Status.LastError
		if e.Step != tarnv1.StepCreation {
			return fatal(fmt.Errorf("%s of the volume failed instead: %s: %s", e.Step, e.Reason, e.Message))
		}
		t.failed = record.Status.Attempts
		return done()
	})
	if err != nil {
		return "", err
	}
	// Repair the provisioner now: the next attempt begins as soon as this one is undone.
	return "creation made to fail", t.change(ctx, t.provisioner)
}

// undone waits until the deletion pod has undone the failed creation.
func (t *pavTry) undone(ctx context.Context) (string, error) {
	if t.failed == 0 {
		return "skipped: nothing failed", nil
	}
	return "", t.world.await(ctx, "the failed creation to be undone", func() tryLook {
		record, err := t.record(ctx)
		switch {
		case err != nil:
			return still(err.Error())
		case record == nil:
			return fatal(fmt.Errorf("its PavVolume is gone although the claim exists"))
		}
		if e := record.Status.LastError; e != nil && e.Step == tarnv1.StepDeletion {
			return fatal(fmt.Errorf("%s: %s", e.Reason, e.Message))
		}
		if record.Status.DeletionAttempts > 0 && record.Status.Phase != tarnv1.VolumeUndoing {
			return done()
		}
		return still(fmt.Sprintf("its record is %s", record.Status.Phase))
	})
}

// change sets the provisioner's spec on the cluster, and waits until the controller has seen it.
func (t *pavTry) change(ctx context.Context, to *unstructured.Unstructured) error {
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(t.provisioner.GroupVersionKind())
		if err := t.world.live.Get(ctx, client.ObjectKey{Name: t.provisionerName}, live); err != nil {
			return err
		}
		live.Object["spec"] = to.DeepCopy().Object["spec"]
		err := t.world.live.Update(ctx, live)
		t.generation = live.GetGeneration()
		return err
	})
	if err != nil {
		return fmt.Errorf("changing PavProvisioner %s: %w", t.provisionerName, err)
	}
	_, err = t.condition(ctx, pavv1.ConditionAccepted, true)
	return err
}

// late says whether a volume is created only after a pod that uses it has a node.
func (t *pavTry) late() bool {
	return ptr.Deref(t.class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer
}

// claimVolume creates class and claim. It also creates the first pod if the class waits for one.
func (t *pavTry) claimVolume(ctx context.Context) error {
	objects := []client.Object{t.class, t.claim}
	if t.late() {
		objects = append(objects, t.writer)
	}
	for _, o := range objects {
		if err := t.world.live.Create(ctx, o); err != nil {
			return fmt.Errorf("creating %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// spoil returns a provisioner whose creation pod fails before its containers are started. why is
// set where that is impossible.
func spoil(p *unstructured.Unstructured, image string) (spoilt *unstructured.Unstructured, why string) {
	spoilt = p.DeepCopy()
	spec, found, err := unstructured.NestedMap(spoilt.Object, "spec", "volumeCreation", "podTemplate", "spec")
	if err != nil {
		return nil, "the creation pod is a template as a whole"
	}
	if !found {
		return nil, "there is no creation pod"
	}
	first, isList := spec["initContainers"].([]any)
	if spec["initContainers"] != nil && !isList {
		return nil, "the creation pod's initContainers are a template"
	}
	spec["restartPolicy"] = string(corev1.RestartPolicyNever)
	spec["initContainers"] = append([]any{map[string]any{
		"name": "tarn-pav-test", "image": image, "command": []any{"sh", "-c", "echo '" + madeToFail + "' > /pav/error; exit 1"},
	}}, first...)
	_ = unstructured.SetNestedMap(spoilt.Object, spec, "spec", "volumeCreation", "podTemplate", "spec")
	return spoilt, ""
}

// expanded doubles the size that the claim asks for, while a pod uses the volume.
func (t *pavTry) expanded(ctx context.Context) (string, error) {
	if !t.expands() {
		return "skipped: there is no spec.volumeExpansion", nil
	}
	has := t.claim.Status.Capacity[corev1.ResourceStorage]
	want := *resource.NewQuantity(2*has.Value(), has.Format)
	if limit, ok := t.claim.Spec.Resources.Limits[corev1.ResourceStorage]; ok && limit.Cmp(want) < 0 {
		want = limit
	}
	if want.Cmp(has) <= 0 {
		return "skipped: the claim's limit allows no expansion", nil
	}
	base := t.claim.DeepCopy()
	t.claim.Spec.Resources.Requests[corev1.ResourceStorage] = want
	if err := t.world.live.Patch(ctx, t.claim, client.MergeFrom(base)); err != nil {
		return "", fmt.Errorf("requesting %s: %w", want.String(), err)
	}
	return "to " + want.String(), t.world.await(ctx, "the volume to be expanded", func() tryLook {
		if err := t.world.cached.Get(ctx, client.ObjectKeyFromObject(t.claim), t.claim); err != nil {
			return still(err.Error())
		}
		if now := t.claim.Status.Capacity[corev1.ResourceStorage]; now.Cmp(want) >= 0 {
			return done()
		}
		state := "the expansion has not started; check that Tarn's controller runs"
		for _, c := range t.claim.Status.Conditions {
			state = fmt.Sprintf("the claim is %s: %s", c.Type, c.Message)
			if failures := []corev1.PersistentVolumeClaimConditionType{
				corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError,
			}; slices.Contains(failures, c.Type) {
				return fatal(fmt.Errorf("%s: %s", c.Type, c.Message))
			}
		}
		return still(state)
	})
}

// expands says whether the provisioner has a section for expansion.
func (t *pavTry) expands() bool {
	return t.has("volumeExpansion")
}
