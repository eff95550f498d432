package results

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"tarn.dev/tarn/internal/node/podend"
)

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
