package results

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/podend"
	"tarn.dev/tarn/internal/node/resultdir"
)

// store writes what the pod has left in /pav to the pod's annotation, and how the pod ended if
// known. It stores nothing if the pod was deleted, or already has a result that says as much.
func (r *Results) store(ctx context.Context, k string, rec *record, end podend.Ending) error {
	pod, err := r.pod(ctx, rec.Namespace, rec.Pod, rec.UID)
	if err != nil || pod == nil {
		return err
	}
	if end.Known && !pod.DeletionTimestamp.IsZero() {
		return nil // stopped rather than ended: its exit codes say nothing
	}
	if tells := storedTells(pod); tells && (!end.Known || storedSucceeded(pod)) {
		return nil
	}
	result, err := resultdir.ReadResults(r.pav(k))
	if errors.Is(err, os.ErrNotExist) {
		result.Unreadable = "the directory of /pav is gone"
	} else if err != nil {
		return err
	}
	if end.Known {
		result.Succeeded, result.ExitCodes = &end.Succeeded, end.ExitCodes
	}
	err = r.patch(ctx, pod, result)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
		// The pod may have been deleted, or another pod may have its name. The UID in the patch
		// then does not match.
		if pod, readErr := r.pod(ctx, rec.Namespace, rec.Pod, rec.UID); readErr == nil && pod == nil {
			return nil
		}
	}
	return err
}

// +kubebuilder:rbac:groups="",resources=pods/status,verbs=patch

// patch writes the annotation through the status subresource. The agent may patch only that, so a
// stolen node can change no pod's spec. The UID is the precondition that it is still the same pod.
func (r *Results) patch(ctx context.Context, pod *corev1.Pod, result tarnv1.PodResult) error {
	value, err := json.Marshal(result)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         pod.UID,
		"annotations": map[string]string{tarnv1.AnnotationResult: string(value)},
	}})
	if err != nil {
		return err
	}
	if err := r.Writer.Status().Patch(ctx, pod, client.RawPatch(types.MergePatchType, body)); err != nil {
		return fmt.Errorf("store the result on pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// storedTells says whether the pod has a result that can be read.
func storedTells(pod *corev1.Pod) bool {
	_, ok := stored(pod)
	return ok
}

// storedSucceeded says whether the pod has a result that says how it ended.
func storedSucceeded(pod *corev1.Pod) bool {
	result, ok := stored(pod)
	return ok && result.Succeeded != nil
}

func stored(pod *corev1.Pod) (result tarnv1.PodResult, ok bool) {
	value, ok := pod.Annotations[tarnv1.AnnotationResult]
	return result, ok && json.Unmarshal([]byte(value), &result) == nil
}
