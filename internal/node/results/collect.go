package results

import (
	"context"
	"errors"
	"os"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"tarn.dev/tarn/internal/node/mounts"
)

// Collect finds the volumes that an earlier run has left, and unmounts and removes those whose pod
// does not exist any more. Call it before any volume is served.
func (r *Results) Collect(ctx context.Context) error {
	entries, err := os.ReadDir(r.Folder)
	if errors.Is(err, os.ErrNotExist) {
		return os.MkdirAll(r.Folder, 0o700)
	}
	var failed error
	for _, e := range entries {
		failed = errors.Join(failed, r.collect(ctx, e.Name()))
	}
	return errors.Join(err, failed)
}

func (r *Results) collect(ctx context.Context, k string) error {
	defer r.volumes.Lock(k)()
	rec, err := r.recall(k)
	if err != nil {
		log.FromContext(ctx).Error(err, "a record cannot be read; its directory is removed")
		rec = nil
	}
	if rec != nil {
		pod, err := r.pod(ctx, rec.Namespace, rec.Pod, rec.UID)
		if err != nil || pod != nil {
			r.know(rec.UID, k)
			return err
		}
		log.FromContext(ctx).Info("remove the directory of a deleted pod", "namespace", rec.Namespace, "name", rec.Pod)
		if r.checkTarget(rec.Target) == nil {
			if err := mounts.UnmountTree(r.Mounts, rec.Target, nil); err != nil {
				return err
			}
		}
	}
	if err := mounts.UnmountTree(r.Mounts, r.folder(k), nil); err != nil {
		return err
	}
	return r.drop(k, rec)
}
