package stages

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/resultdir"
	words "tarn.dev/tarn/internal/volume"
)

// View is all that decides the next step of a stage.
type View struct {
	// Stage is nil if it does not exist.
	Stage *tarnv1.PavStage
	// Publishing: a publish call for it is in flight.
	Publishing bool
	// Folder: its pav directory exists.
	Folder bool
	// Ready: /pav/ready exists.
	Ready bool
	// PodError is the text of /pav/error, if the staging or unstaging pod has failed.
	PodError string
	// Found describes /pav/volume, if the pod has made it available and it is correct.
	Found *record
	// Wrong says what is wrong with /pav/volume, if the pod has made it available.
	Wrong string
	// Lost says why a staged volume cannot be given out any more; only in phase Staged.
	Lost *loss
	// InUse says whether the volume is mounted at a target of a stage whose end is requested; nil
	// if that no longer matters.
	InUse *bool
	// BusySince is since when this process has failed to unmount the stage's mounts. It is zero if
	// the last attempt succeeded, or if there was none.
	BusySince time.Time
	// Now is the time of the observation.
	Now time.Time
}

func (s *Stages) gather(ctx context.Context, name string) (View, error) {
	v := View{Now: s.Now()}
	stage, err := kube.Get(ctx, s.Cached, client.ObjectKey{Name: name}, &tarnv1.PavStage{})
	if err != nil || stage == nil {
		return v, err
	}
	v.Stage = stage
	v.Publishing = s.publishing.Held(name)
	_, err = os.Lstat(s.pav(stage.UID))
	v.Folder = err == nil
	if deleting(stage) {
		if v.InUse, err = s.inUse(stage); err != nil {
			return v, err
		}
		v.BusySince = s.recall(stage.UID).busySince
		return v, s.gatherUnstaging(ctx, &v)
	}
	if unwanted(stage, v.Publishing) {
		return v, nil // it ends, whatever its volume is; a server that hangs must not keep it
	}
	switch phase := stage.Status.Node.Phase; {
	case phase == tarnv1.StageStaged:
		return v, s.gatherStaged(&v)
	case phase == tarnv1.StageFailed, phase == tarnv1.StageLost && !restaging(stage):
		return v, nil
	}
	return v, s.gatherWaiting(ctx, &v)
}

// inUse says whether the volume of a stage whose end is requested is mounted at one of its targets,
// as long as its staging pod may exist. Once the cache shows the request, no new mount is made: see
// mount.
func (s *Stages) inUse(stage *tarnv1.PavStage) (*bool, error) {
	status := stage.Status
	staged := status.Node.Phase == tarnv1.StageStaged || status.Node.Phase == tarnv1.StageLost
	switch status.Pod.Phase {
	case tarnv1.StagePodStopped, tarnv1.StagePodUnstaging, tarnv1.StagePodUnstaged:
		return nil, nil
	}
	if !staged || len(status.Node.Targets) == 0 {
		return nil, nil
	}
	unlock := s.folders.Lock(string(stage.UID))
	defer unlock()
	table, err := s.Mounts.List()
	if err != nil {
		return nil, err
	}
	used := slices.ContainsFunc(status.Node.Targets, func(target string) bool { return len(mounts.At(table, target)) > 0 })
	return &used, nil
}

// gatherStaged checks whether the staged volume is still there: after a start of the agent, and
// when an event gave reason to doubt it.
func (s *Stages) gatherStaged(v *View) error {
	s.watchPod(v.Stage)
	if v.Lost = s.podLoss(v.Stage); v.Lost != nil || s.recall(v.Stage.UID).checked != nil {
		return nil
	}
	volume, found, lost, err := s.open(v.Stage)
	if err != nil {
		return err
	}
	v.Lost, v.Found = lost, found
	if volume == nil {
		return nil
	}
	if lost == nil {
		err = s.trust(v.Stage, found)
	}
	return errors.Join(err, volume.File.Close())
}

func (s *Stages) gatherWaiting(ctx context.Context, v *View) error {
	pod := v.Stage.Status.Pod.Phase
	if pod == tarnv1.StagePodFailed {
		var err error
		v.PodError, err = s.stagingError(ctx, v.Stage)
		return err
	}
	v.Ready = resultdir.Ready(s.pav(v.Stage.UID))
	if !v.Ready && pod != tarnv1.StagePodSucceeded && !s.hasEnded(v.Stage) {
		return nil
	}
	current, err := s.ofThisBoot(v.Stage.UID)
	if err != nil {
		return err
	}
	if !current {
		v.Wrong = "the node was restarted before the volume was found in /pav"
		return nil
	}
	kept, err := s.readRecord(v.Stage.UID)
	if err != nil && !noRecord(err) {
		return err
	}
	if kept != nil {
		if now, err := s.isNow(ctx, v.Stage); err != nil || !now {
			v.Stage = nil // its event follows, and causes the next reconcile
			return err
		}
	}
	volume, err := kube.Get(ctx, s.Live, client.ObjectKey{Name: v.Stage.Spec.VolumeName}, &corev1.PersistentVolume{})
	if err != nil {
		return err
	}
	if volume == nil || volume.UID != v.Stage.Spec.VolumeUID {
		v.Wrong = "PersistentVolume " + v.Stage.Spec.VolumeName + " was deleted while it was staged"
		return nil
	}
	file, found, err := s.inspect(v.Stage, blockOf(volume), capacityOf(volume))
	var wrong *resultdir.WrongVolumeError
	if errors.As(err, &wrong) {
		confirmed, err := s.confirmed(ctx, v.Stage)
		if confirmed {
			v.Wrong = wrong.Problem
		}
		return err
	}
	if errors.Is(err, os.ErrNotExist) {
		v.Wrong = "the stage's directory on the node is gone"
		return nil
	}
	if err != nil {
		return err
	}
	if err := file.File.Close(); err != nil {
		return err
	}
	if kept != nil && v.Stage.Status.Node.Phase != tarnv1.StageLost {
		if lost, _ := compare(kept, found); lost != nil {
			v.Wrong = "the volume was lost before a pod used it: " + lost.message
			return nil
		}
	}
	if confirmed, err := s.confirmed(ctx, v.Stage); err != nil || !confirmed {
		return err
	}
	v.Found = found
	return nil
}

// confirmed says whether the staging pod stands behind the content of /pav. That is so if the pod
// ended well. It is also so if the pod still ran after the check, was not being deleted, and has
// written /pav/ready itself.
//
// A pod that is being deleted or has ended may have unmounted its volume and left /pav/ready beside
// the empty directory. The stage controller writes the start and the end of the pod, which causes
// the next reconcile.
func (s *Stages) confirmed(ctx context.Context, stage *tarnv1.PavStage) (bool, error) {
	status := stage.Status.Pod
	if status.Phase == tarnv1.StagePodSucceeded || s.hasEnded(stage) {
		return true, nil
	}
	if status.Name == "" { // none is written down
		return false, nil
	}
	pod, err := kube.Get(ctx, s.Live, client.ObjectKey{Namespace: status.Namespace, Name: status.Name}, &corev1.Pod{})
	if err != nil || pod == nil || !metav1.IsControlledBy(pod, stage) || pod.DeletionTimestamp != nil || pod.Status.StartTime == nil {
		return false, err
	}
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return false, nil
	}
	return !s.changed(stage.UID, "ready").Before(pod.Status.StartTime.Time), nil
}

// isNow says whether a stage of the cache is what the API server has. If a record exists, the
// volume was found before, and the cache may not show that yet. The volume may be lost by then, and
// the empty directory under its mount would be taken for it.
func (s *Stages) isNow(ctx context.Context, stage *tarnv1.PavStage) (bool, error) {
	live, err := kube.Get(ctx, s.Live, client.ObjectKeyFromObject(stage), &tarnv1.PavStage{})
	return live != nil && live.ResourceVersion == stage.ResourceVersion, err
}

// unstagingFailed says whether the unstaging pod of the stage has failed and waits for its next
// attempt. From then on its /pav/error does not change.
func unstagingFailed(stage *tarnv1.PavStage) bool {
	pod := stage.Status.Pod
	return deleting(stage) && pod.Phase == tarnv1.StagePodUnstaging && stage.Status.Node.Phase == tarnv1.StageUnmounted &&
		pod.NextAttemptTime != nil && pod.Name != "" && pod.UID != ""
}

// gatherUnstaging reads /pav/error of an unstaging pod that has failed. All attempts have the same
// /pav, so a text written before this pod's start is from an earlier one. The text of a deleted pod
// is not read, because its successor may be running.
func (s *Stages) gatherUnstaging(ctx context.Context, v *View) error {
	if !unstagingFailed(v.Stage) || words.TextOfUnstaging(v.Stage) != "" {
		return nil
	}
	text := resultdir.ReadError(s.pav(v.Stage.UID))
	if text == "" {
		return nil
	}
	status := v.Stage.Status.Pod
	pod, err := kube.Get(ctx, s.Live, client.ObjectKey{Namespace: status.Namespace, Name: status.Name}, &corev1.Pod{})
	if err != nil || pod == nil || pod.UID != status.UID || pod.Status.StartTime == nil {
		return err
	}
	if !s.changed(v.Stage.UID, "error").Before(pod.Status.StartTime.Time) {
		v.PodError = text
	}
	return nil
}

// stagingError gives the text that a failed staging pod has left in /pav/error. A pod that
// replaced one which disappeared unseen has that one's /pav. So a text written before its start is
// not its own. If the pod was deleted or rejected, only the start noted by the stage controller is
// known. That is by another clock, but good enough.
func (s *Stages) stagingError(ctx context.Context, stage *tarnv1.PavStage) (string, error) {
	text := s.recall(stage.UID).pods[stage.Status.Pod.UID].text
	if text == "" {
		text = resultdir.ReadError(s.pav(stage.UID))
	}
	if text == "" {
		return "", nil
	}
	begun := stage.Status.Pod.StartTime
	if name := stage.Status.Pod.Name; name != "" {
		pod, err := kube.Get(ctx, s.Live, client.ObjectKey{Namespace: stage.Status.Pod.Namespace, Name: name}, &corev1.Pod{})
		if err != nil {
			return "", err
		}
		if pod != nil && metav1.IsControlledBy(pod, stage) {
			if begun = pod.Status.StartTime; begun == nil {
				return "", nil // the kubelet has not begun it
			}
		}
	}
	if begun != nil && s.changed(stage.UID, "error").Before(begun.Time) {
		return "", nil
	}
	return text, nil
}

// changed is when a file of /pav was last written. It is the inode's change time, which a pod
// cannot set freely. The clock is the node's, as for a pod's start.
func (s *Stages) changed(uid types.UID, file string) time.Time {
	info, err := os.Lstat(filepath.Join(s.pav(uid), file))
	if err != nil {
		return time.Time{}
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return time.Time{}
	}
	return time.Unix(stat.Ctim.Unix())
}

func (s *Stages) errorFile(uid types.UID) string { return filepath.Join(s.pav(uid), "error") }

// planUnstaging reports the error text of a failed unstaging pod, and withdraws the text of an
// earlier one.
func planUnstaging(v View) []action {
	if !unstagingFailed(v.Stage) || words.TextOfUnstaging(v.Stage) != "" {
		return nil
	}
	switch {
	case v.PodError != "":
		return []action{{verb: reportUnstaging, message: words.UnstagingWord(v.Stage.Status.Pod, v.PodError)}}
	case words.IsUnstagingWord(v.Stage.Status.Node.Message):
		return []action{{verb: reportUnstaging}}
	}
	return nil
}

// markUnmounted lets the unstaging pod start. It first removes /pav/error of the staging pod, which
// would otherwise count as the unstaging pod's. If it cannot be removed, the step continues: the
// file is older than the pod, and so is not read.
func (s *Stages) markUnmounted(ctx context.Context, stage *tarnv1.PavStage) error {
	_ = os.Remove(s.errorFile(stage.UID))
	return s.setNode(ctx, stage, func(n *tarnv1.PavStageNodeStatus) {
		n.Phase, n.Path = tarnv1.StageUnmounted, ""
	})
}
