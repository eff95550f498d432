package stages

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/mounts"
)

// apply does the actions in order and stops at the first error. Each write updates stage.
func (s *Stages) apply(ctx context.Context, stage *tarnv1.PavStage, actions []action) error {
	for _, a := range actions {
		err := s.do(ctx, stage, a)
		if apierrors.IsNotFound(err) {
			s.noteGone(stage) // its event may have come before what was made for it just now
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Stages) do(ctx context.Context, stage *tarnv1.PavStage, a action) error {
	switch a.verb {
	case makeFolder:
		unlock := s.folders.Lock(string(stage.UID))
		defer unlock()
		return s.makeFolder(stage.UID)
	case watchReady:
		return s.ready.add(s.pav(stage.UID), stage.Name)
	case ignoreReady:
		s.ready.remove(s.pav(stage.UID))
		return nil
	case markStaged:
		return s.markStaged(ctx, stage, a.record)
	case markLost:
		return s.markLost(ctx, stage, a.loss)
	case clearFolder:
		return s.clearFolder(ctx, stage)
	case markRestageFailed:
		return s.markRestageFailed(ctx, stage, a.message)
	case markRebound:
		return s.markRebound(ctx, stage, a.record, a.loss)
	case markFailed:
		return s.setNode(ctx, stage, func(n *tarnv1.PavStageNodeStatus) {
			n.Phase, n.Message = tarnv1.StageFailed, a.message
		})
	case markWaiting:
		return s.setNode(ctx, stage, func(n *tarnv1.PavStageNodeStatus) { n.Phase = tarnv1.StageWaiting })
	case reportUse:
		return s.setNode(ctx, stage, func(n *tarnv1.PavStageNodeStatus) { n.InUse = a.used })
	case requestEnd:
		return s.requestEnd(ctx, stage)
	case unmount, detach:
		return s.unmountAll(ctx, stage, a.verb == detach)
	case markUnmounted:
		return s.markUnmounted(ctx, stage)
	case reportUnstaging:
		return s.setNode(ctx, stage, func(n *tarnv1.PavStageNodeStatus) { n.Message = a.message })
	case removeFolder:
		s.forget(stage)
		return mounts.RemoveTree(s.folder(stage.UID))
	case removeFinalizer:
		return s.removeFinalizer(ctx, stage)
	}
	return fmt.Errorf("stage %s: unknown action %d", stage.Name, a.verb)
}

// setNode changes the node's part of the status, unless another client has changed it.
func (s *Stages) setNode(ctx context.Context, stage *tarnv1.PavStage, change func(*tarnv1.PavStageNodeStatus)) error {
	old := stage.DeepCopy()
	change(&stage.Status.Node)
	return s.patchStatus(ctx, old, stage)
}

// markStaged writes the record first: a stage in phase Staged always has one.
func (s *Stages) markStaged(ctx context.Context, stage *tarnv1.PavStage, found *record) error {
	if err := s.writeRecord(stage.UID, found); err != nil {
		return fmt.Errorf("write the record of stage %s: %w", stage.Name, err)
	}
	if err := s.trust(stage, found); err != nil {
		return err
	}
	return s.setNode(ctx, stage, func(n *tarnv1.PavStageNodeStatus) {
		n.Phase, n.Path, n.Message = tarnv1.StageStaged, found.Path, ""
		s.setHealthy(n, metav1.ConditionTrue, tarnv1.ReasonStaged, "")
	})
}

// unmountAll unmounts the stage's targets and all mounts below its directory. The stage's status
// says what keeps a mount busy.
func (s *Stages) unmountAll(ctx context.Context, stage *tarnv1.PavStage, force bool) error {
	unlock := s.folders.Lock(string(stage.UID))
	defer unlock()
	var lazily func(string, error)
	if force {
		lazily = func(point string, busy error) {
			log.FromContext(ctx).Info("detach a mount that stays busy", "mount", point, "because", busy.Error())
		}
	}
	paths := append(slices.Clone(stage.Status.Node.Targets), s.folder(stage.UID))
	for _, path := range paths {
		if path != s.folder(stage.UID) && !s.recorded(path) {
			continue
		}
		if err := mounts.UnmountTree(s.Mounts, path, lazily); err != nil {
			s.learn(stage.UID, func(k *knowledge) {
				if k.busySince.IsZero() {
					k.busySince = s.Now()
				}
			})
			if text := "cannot unmount yet: " + err.Error(); stage.Status.Node.Message != text {
				_ = s.setNode(ctx, stage, func(n *tarnv1.PavStageNodeStatus) { n.Message = text })
			}
			return fmt.Errorf("stage %s: %w", stage.Name, err)
		}
	}
	s.learn(stage.UID, func(k *knowledge) { k.busySince = time.Time{} })
	return nil
}

func (s *Stages) removeFinalizer(ctx context.Context, stage *tarnv1.PavStage) error {
	old := stage.DeepCopy()
	controllerutil.RemoveFinalizer(stage, tarnv1.FinalizerStageNode)
	return s.Writer.Patch(ctx, stage, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{}))
}
