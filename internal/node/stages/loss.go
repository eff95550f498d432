package stages

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/hangguard"
	"tarn.dev/tarn/internal/node/resultdir"
)

// loss is why a staged volume is no longer what it was. For what counts as a loss and what follows,
// see docs/design/0002-staging-recovery.md.
type loss struct {
	// reason is one of the reasons of tarnv1.ConditionHealthy, or rebooted.
	reason  string
	message string
}

// rebooted is a loss together with all of the volume's users: the stage ends, and the kubelet asks
// for everything again.
const rebooted = "NodeRebooted"

// ServerAnswer is the timeout for the server of a file system, while the caller holds locks or a
// worker. A slow server does not count as dead.
const ServerAnswer = 5 * time.Second

// slowAnswer is the timeout for checking a volume whose server was late before; workers use it too.
// A shorter check of such a volume would never succeed. Together with the following query of the
// size (ServerAnswer), it is as long as a publish call (publishWait).
const slowAnswer = 20 * time.Second

// open opens the volume of a staged stage, if it exists and is correct, and says whether it is
// lost. It gives both if another correct volume has taken its place.
func (s *Stages) open(stage *tarnv1.PavStage) (volume *resultdir.Volume, found *record, lost *loss, err error) {
	kept, err := s.readRecord(stage.UID)
	switch {
	case errors.Is(err, errDamaged):
		return nil, nil, &loss{tarnv1.ReasonMountGone, "its record on the node is damaged"}, nil
	case noRecord(err):
		return nil, nil, &loss{tarnv1.ReasonMountGone, "its directory or record on the node is gone"}, nil
	case err != nil:
		return nil, nil, nil, err
	}
	volume, found, err = s.inspect(stage, kept.Block, grownSize(kept))
	var wrong *resultdir.WrongVolumeError
	switch {
	case errors.As(err, &wrong):
		lost = &loss{tarnv1.ReasonMountGone, wrong.Problem}
		if wrong.Dead {
			lost.reason = tarnv1.ReasonServerDied
		}
		if boot, err := bootID(); err == nil && boot != kept.Boot {
			lost.reason, lost.message = rebooted, rebootText
		}
		return nil, nil, lost, nil
	case errors.Is(err, os.ErrNotExist):
		return nil, nil, &loss{tarnv1.ReasonMountGone, "its directory on the node is gone"}, nil
	case err != nil:
		return nil, nil, nil, err
	}
	lost, usable := compare(kept, found)
	if lost == nil && s.dead(stage, volume.File) {
		lost, usable = &loss{tarnv1.ReasonServerDied, "/pav/volume is a mount whose server has ended"}, false
	}
	if !usable {
		return nil, nil, lost, volume.File.Close()
	}
	return volume, found, lost, nil
}

const rebootText = "the node was restarted since it was staged"

// compare compares the volume found with the one that was staged. A changed volume is usable if a
// mount has replaced a mount.
func compare(kept, found *record) (lost *loss, usable bool) {
	switch {
	case found.Boot != kept.Boot:
		return &loss{rebooted, rebootText}, false
	case kept.Point != "" && found.Point == "":
		return &loss{tarnv1.ReasonMountGone, "what was mounted for it is not mounted any more"}, false
	case found.Point != kept.Point || found.Root != kept.Root || found.Device != kept.Device:
		return &loss{tarnv1.ReasonMountReplaced, "what is mounted for it is not what was staged"}, true
	case found.Path != kept.Path || found.Rdev != kept.Rdev:
		return &loss{tarnv1.ReasonMountReplaced, "/pav/volume does not lead to what was staged"}, true
	}
	return nil, true
}

// dead says whether the file of the stage's volume lies on a file system whose server has ended. A
// server that does not answer in time does not count as ended. It has already said what the file
// is, so the volume is used.
func (s *Stages) dead(stage *tarnv1.PavStage, file *os.File) bool {
	raw, err := file.SyscallConn() // keeps it open while a question hangs, though it is closed
	if err != nil {
		return false
	}
	uid, name := stage.UID, stage.Name
	size := func() (fs unix.Statfs_t, answer error) {
		err := raw.Control(func(fd uintptr) { answer = unix.Fstatfs(int(fd), &fs) })
		return fs, errors.Join(err, answer)
	}
	late := func(_ unix.Statfs_t, err error) {
		if errors.Is(err, unix.ENOTCONN) {
			s.doubt(uid, name)
		}
	}
	_, err = hangguard.Ask(&s.asker, question(theSize, stage), ServerAnswer, size, late)
	return errors.Is(err, unix.ENOTCONN)
}

// podLoss gives a loss if the staging pod of a staged volume should stay and has ended. A pod that
// ended well has done its work.
func (s *Stages) podLoss(stage *tarnv1.PavStage) *loss {
	pod := stage.Status.Pod
	message := pod.Message
	switch pod.Phase {
	case tarnv1.StagePodFailed, tarnv1.StagePodGone:
	default:
		if message = s.recall(stage.UID).pods[pod.UID].failure; message == "" {
			return nil
		}
	}
	text := "the staging pod ended"
	if message != "" {
		text += ": " + message
	}
	return &loss{tarnv1.ReasonPodEnded, text}
}

// recoveryOf is how the stage recovers from a loss.
func recoveryOf(stage *tarnv1.PavStage) tarnv1.StageRecovery {
	if r := stage.Status.Pod.Recovery; r != "" {
		return r
	}
	return tarnv1.RecoveryRebind
}

// attemptOf is the attempt of the staging pod in status.pod.
func attemptOf(stage *tarnv1.PavStage) int32 { return max(stage.Status.Pod.Attempt, 1) }

// restaging says whether a lost volume has a new staging pod that may make it available.
func restaging(stage *tarnv1.PavStage) bool {
	l := stage.Status.Node.Loss
	return l != nil && !l.Spent(attemptOf(stage)) && stage.Status.Pod.Phase != tarnv1.StagePodGone
}
