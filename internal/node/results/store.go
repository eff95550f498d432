package results

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

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
	if before, ok := stored(pod); ok && (!end.Known || before.Succeeded != nil) {
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

// stored gives the pod's result, if it has one that can be read.
func stored(pod *corev1.Pod) (result tarnv1.PodResult, ok bool) {
	value, ok := pod.Annotations[tarnv1.AnnotationResult]
	return result, ok && json.Unmarshal([]byte(value), &result) == nil
}

// record says which pod a directory belongs to. It lies beside the pav directory, where the pod
// cannot reach it.
type record struct {
	VolumeID  string    `json:"volumeID"`
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	UID       types.UID `json:"uid"`
	Target    string    `json:"target"`
	// Shape is what of the pod's spec decides when it has ended.
	Shape podend.Shape `json:"shape"`
}

const recordFile = "record.json"

// key is the name of the volume's directory. Volume IDs come from the kubelet and are long.
func key(volumeID string) string {
	sum := sha256.Sum256([]byte(volumeID))
	return hex.EncodeToString(sum[:16])
}

func (r *Results) folder(key string) string { return filepath.Join(r.Folder, key) }

func (r *Results) pav(key string) string { return filepath.Join(r.Folder, key, "pav") }

// keep creates the volume's directory and record. The pod may run as any user, so any user may
// write in pav. Only user root may enter the directory around it.
func (r *Results) keep(k string, rec *record) error {
	if err := os.MkdirAll(r.folder(k), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(r.pav(k), 0o777); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := os.Chmod(r.pav(k), 0o777); err != nil { // the umask has taken bits
		return err
	}
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	path := filepath.Join(r.folder(k), recordFile)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// recall reads a record; nil if there is none.
func (r *Results) recall(k string) (*record, error) {
	data, err := os.ReadFile(filepath.Join(r.folder(k), recordFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	rec := &record{}
	if err := json.Unmarshal(data, rec); err != nil {
		return nil, fmt.Errorf("read %s of %s: %w", recordFile, r.folder(k), err)
	}
	return rec, nil
}

var _ podend.Listener = (*Results)(nil)

// Pods implements podend.Listener.
func (r *Results) Pods() []types.UID {
	r.mu.Lock()
	defer r.mu.Unlock()
	uids := make([]types.UID, 0, len(r.byPod))
	for uid := range r.byPod {
		uids = append(uids, uid)
	}
	return uids
}

// Stopped implements podend.Listener: it stores the pod's result if the pod has certainly ended.
// Anything left undone is done when the kubelet unpublishes.
func (r *Results) Stopped(ctx context.Context, uid types.UID, look func(context.Context) (podend.Look, error)) {
	k, known := r.keyOf(uid)
	if !known {
		return
	}
	defer r.volumes.Lock(k)()
	logger := log.FromContext(ctx).WithValues("pod", uid)
	rec, err := r.recall(k)
	if err != nil || rec == nil {
		return // unpublished meanwhile, or unpublish stores it
	}
	seen, err := look(ctx)
	if err != nil {
		logger.Info("cannot see how the pod ended; waiting for the kubelet to report it", "because", err.Error())
		return
	}
	end := podend.Judge(ctx, rec.Shape, seen)
	if !end.Known {
		return
	}
	if err := r.store(ctx, k, rec, end); err != nil {
		logger.Info("result not stored yet; it is stored when the volume is unpublished", "because", err.Error())
	}
}
