package stages

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/node/resultdir"
	words "tarn.dev/tarn/internal/volume"
)

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

// saidByStaging gives the text that a failed staging pod has left in /pav/error. A pod that
// replaced one which disappeared unseen has that one's /pav. So a text written before its start is
// not its own. If the pod was deleted or rejected, only the start noted by the stage controller is
// known. That is by another clock, but good enough.
func (s *Stages) saidByStaging(ctx context.Context, stage *tarnv1.PavStage) (string, error) {
	s.mu.Lock()
	text := s.words[stage.Status.Pod.UID].text
	s.mu.Unlock()
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
		return []action{{verb: tellUnstaging, message: words.UnstagingWord(v.Stage.Status.Pod, v.PodError)}}
	case words.IsUnstagingWord(v.Stage.Status.Node.Message):
		return []action{{verb: tellUnstaging}}
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
