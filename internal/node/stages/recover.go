package stages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/mounts"
)

// setHealthy sets the condition Healthy.
func (s *Stages) setHealthy(n *tarnv1.PavStageNodeStatus, is metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&n.Conditions, metav1.Condition{
		Type: tarnv1.ConditionHealthy, Status: is, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(s.Now()),
	})
}

// newLoss counts one more loss.
func (s *Stages) newLoss(n *tarnv1.PavStageNodeStatus, attempt int32, l *loss) {
	number := int32(1)
	if n.Loss != nil {
		number = n.Loss.Number + 1
	}
	n.Loss = &tarnv1.StageLoss{
		Number: number, Attempt: attempt, Cleared: attempt - 1, Reason: l.reason, Message: l.message, Time: metav1.NewTime(s.Now()),
	}
}

// markLost records a loss in the status.
func (s *Stages) markLost(ctx context.Context, stage *tarnv1.PavStage, l *loss) error {
	s.learnEnd(stage.UID, stage.Status.Pod.UID, func(end *podEnd) { end.failure = "" })
	log.FromContext(ctx).Info("a staged volume is lost", "stage", stage.Name, "reason", l.reason, "because", l.message)
	return s.setNode(ctx, stage, func(n *tarnv1.PavStageNodeStatus) {
		n.Phase, n.Message = tarnv1.StageLost, "the volume is lost: "+l.message
		s.newLoss(n, attemptOf(stage), l)
		s.setHealthy(n, metav1.ConditionFalse, l.reason, l.message)
	})
}

// markRestageFailed records that the current attempt has not made the volume available.
func (s *Stages) markRestageFailed(ctx context.Context, stage *tarnv1.PavStage, message string) error {
	return s.setNode(ctx, stage, func(n *tarnv1.PavStageNodeStatus) {
		n.Message = message
		n.Loss.Failed = attemptOf(stage)
		s.setHealthy(n, metav1.ConditionFalse, n.Loss.Reason, n.Loss.Message+"; staging it again failed: "+message)
	})
}

// former begins the names of directories with the files of a lost attempt, followed by the attempt.
// They are kept while containers may show them.
const former = "former-"

// clearFolder gives the next staging pod an empty /pav, like the first one's. It detaches the
// mounts of the lost volume's pod; copies of these mounts stay. It sets the pod's files aside,
// because containers may show them too. They are removed once the volume is mounted again and then
// lost another time.
func (s *Stages) clearFolder(ctx context.Context, stage *tarnv1.PavStage) error {
	unlock := s.folders.Lock(string(stage.UID))
	defer unlock()
	folder, attempt := s.folder(stage.UID), attemptOf(stage)
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.Name() == secretsFolder {
			continue // for the next staging pod
		}
		if err := mounts.UnmountTree(s.Mounts, filepath.Join(folder, e.Name()), func(string, error) {}); err != nil {
			return fmt.Errorf("clear the directory of stage %s: %w", stage.Name, err)
		}
	}
	if attempt == stage.Status.Node.Loss.Attempt {
		if err := setAside(folder, fmt.Sprint(former, attempt)); err != nil {
			return err
		}
	} else if err := mounts.RemoveTree(s.pav(stage.UID)); err != nil {
		return err
	}
	if err := s.makeFolder(stage.UID); err != nil {
		return err
	}
	return s.setNode(ctx, stage, func(n *tarnv1.PavStageNodeStatus) {
		n.Loss.Cleared = attempt
		requestAgain(stage, n)
	})
}

// setAside renames the stage's pav directory, unless that was done. It also removes directories set
// aside earlier.
func setAside(folder, name string) error {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	done := false
	for _, e := range entries {
		switch {
		case e.Name() == name:
			done = true
		case strings.HasPrefix(e.Name(), former):
			if err := mounts.RemoveTree(filepath.Join(folder, e.Name())); err != nil {
				return err
			}
		}
	}
	if done {
		return mounts.RemoveTree(filepath.Join(folder, "pav"))
	}
	err = os.Rename(filepath.Join(folder, "pav"), filepath.Join(folder, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("move the lost volume's files aside: %w", err)
	}
	return nil
}

// markRebound writes the record, mounts the volume again in place of the lost one, and reports that.
// A loss l that was not reported before is repaired at once; otherwise l is nil.
func (s *Stages) markRebound(ctx context.Context, stage *tarnv1.PavStage, found *record, l *loss) error {
	volume, again, err := s.inspect(stage, found.Block, found.Capacity)
	if err != nil {
		return fmt.Errorf("stat the volume staged again: %w", err)
	}
	defer func() { _ = volume.File.Close() }()
	var before *record
	if before, err = s.readRecord(stage.UID); err != nil && !noRecord(err) {
		return err
	}
	again.Rebinding = progressOf(stage, before, again, l)
	if err := s.writeRecord(stage.UID, again); err != nil {
		return fmt.Errorf("write the record of stage %s: %w", stage.Name, err)
	}
	left, err := s.rebind(ctx, stage, volume.File, again)
	if err != nil {
		return err
	}
	if err := s.trust(stage, again); err != nil {
		return err
	}
	log.FromContext(ctx).Info("a lost volume is staged again", "stage", stage.Name, "not mounted again", len(left))
	return s.setNode(ctx, stage, func(n *tarnv1.PavStageNodeStatus) {
		if l != nil {
			s.newLoss(n, attemptOf(stage), l)
		}
		n.Phase, n.Path, n.Message = tarnv1.StageStaged, again.Path, ""
		n.Loss.ReboundTime, n.Loss.Left = &metav1.Time{Time: s.Now()}, left
		message := fmt.Sprintf("lost %d times, last because: %s; staged and mounted again", n.Loss.Number, n.Loss.Message)
		if len(left) > 0 {
			message += fmt.Sprintf(", but for %d mounts, listed in status.node.loss.left", len(left))
		}
		s.setHealthy(n, metav1.ConditionTrue, tarnv1.ReasonRebound, message)
	})
}

// progressOf gives the progress of mounting again for the present loss. It starts from nothing, unless
// the record kept before is about the same loss.
func progressOf(stage *tarnv1.PavStage, before, again *record, l *loss) *rebinding {
	var number int32
	if last := stage.Status.Node.Loss; last != nil {
		number = last.Number
	}
	if l != nil {
		number++
	}
	if before != nil && before.Rebinding != nil && before.Rebinding.Loss == number {
		return before.Rebinding
	}
	return &rebinding{Loss: number, Exchanged: again.Block && (before == nil || before.Rdev != again.Rdev)}
}

// podsOf gives the UIDs of the pods with these targets.
func podsOf(targets []string) []types.UID {
	var pods []types.UID
	for _, target := range targets {
		if uid := tarnv1.PodOfTarget(target); uid != "" {
			pods = append(pods, uid)
		}
	}
	return pods
}
