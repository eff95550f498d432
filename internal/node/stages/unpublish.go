package stages

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/mounts"
)

// How long an unpublish call waits for the end of the stage: as long as the kubelet (two minutes),
// less the time for the answer.
const (
	unpublishWait   = 110 * time.Second
	unpublishMargin = 2 * time.Second
)

// Unpublish removes the volume from the target. After the last target of a stage it unstages the
// volume, and returns only then, so that the pod does not finish earlier. Errors are gRPC statuses.
func (s *Stages) Unpublish(ctx context.Context, target string) error {
	unlock, err := s.lockTarget(target)
	if err != nil {
		return err
	}
	defer unlock()
	wait := unpublishWait
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)-unpublishMargin)
	}
	ctx, cancel := context.WithTimeout(ctx, max(wait, 0))
	defer cancel()
	return s.release(ctx, target, true)
}

// release unmounts the target and removes it from its stage, or ends the stage if it is the last
// target. The last target stays recorded until the stage is deleted, so that a repeated call finds
// the stage.
func (s *Stages) release(ctx context.Context, target string, wait bool) error {
	if err := mounts.UnmountTree(s.Mounts, target, nil); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if err := mounts.RemoveTarget(s.Mounts, target); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	known, err := s.findByTarget(ctx, target)
	if err != nil || known == nil {
		return err
	}
	if deleting(known) {
		s.queue.add(known.Name) // it reports that the target is no longer mounted
	}
	uid := known.UID
	sub, end := s.calls.subscribe(known.Name)
	defer end()
	for {
		changed := sub.next()
		known = sub.newest(known)
		if known == nil || known.UID != uid || !slices.Contains(known.Status.Node.Targets, target) {
			return nil
		}
		// A stage that was deleted by another client stays for the pods that use it: see planHold of
		// the stage controller.
		if shared := len(known.Status.Node.Targets) > 1; !deleting(known) || shared {
			done, now, err := s.dropTarget(ctx, known, target)
			if err != nil || done {
				return err
			}
			if now == nil || now.UID != uid {
				return nil
			}
			known = now
			if !deleting(known) || shared {
				continue
			}
		}
		if !wait {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return status.Error(codes.Unavailable, "waiting for the end of "+describe(known))
		}
	}
}

// dropTarget removes the target from the stage, and is done then. If the stage has no other user, it
// requests the stage's end instead. If it is not done yet, it returns the latest stage.
func (s *Stages) dropTarget(ctx context.Context, known *tarnv1.PavStage, target string) (done bool, now *tarnv1.PavStage, err error) {
	if len(known.Status.Node.Targets) > 1 || s.publishing.Held(known.Name) {
		err = s.setNode(ctx, known.DeepCopy(), func(n *tarnv1.PavStageNodeStatus) {
			n.Targets = slices.DeleteFunc(n.Targets, func(t string) bool { return t == target })
		})
		done = err == nil
	} else {
		err = s.requestEnd(ctx, known)
	}
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return false, nil, status.Errorf(codes.Unavailable, "release target %s from PavStage %s: %v", target, known.Name, err)
	}
	if done {
		return true, nil, nil
	}
	now, err = s.liveStage(ctx, known.Name)
	return false, now, err
}

// requestEnd deletes the stage, unless it has changed since it was read.
func (s *Stages) requestEnd(ctx context.Context, stage *tarnv1.PavStage) error {
	return s.Writer.Delete(ctx, stage, client.Preconditions{UID: &stage.UID, ResourceVersion: &stage.ResourceVersion})
}
