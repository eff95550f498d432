package stages

import (
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// detachAfter is how long a mount of an ending stage may stay busy before the agent detaches it.
// The stage's pods are gone by then. The mount is held by a process outside Kubernetes, or by a
// kernel that waits for a dead server.
const detachAfter = 30 * time.Second

// verb is one thing apply can do. Each may be repeated.
type verb int

const (
	makeFolder        verb = iota + 1 // make the stage's folder
	watchReady                        // watch for /pav/ready
	ignoreReady                       // stop watching for it
	markWaiting                       // set phase Waiting
	markStaged                        // write the record, set phase Staged
	markLost                          // record a loss
	clearFolder                       // set aside the lost attempt's files, record that
	markRestageFailed                 // record that an attempt to stage again has failed
	markRebound                       // write the record, mount again, set phase Staged
	markFailed                        // set phase Failed with the message
	reportUse                         // record whether the ending stage is still mounted
	requestEnd                        // delete the PavStage if it is unchanged
	unmount                           // unmount the targets and all below the directory
	detach                            // the same, but detach busy mounts
	markUnmounted                     // clear /pav/error, set phase Unmounted
	reportUnstaging                   // pass on the error text of a failed unstaging pod
	removeFolder                      // remove the directory
	removeFinalizer                   // release the PavStage
)

// action is a verb with its object.
type action struct {
	verb    verb
	message string
	record  *record
	loss    *loss
	used    *bool
}

// plan decides the next step of the node's side of a stage.
func plan(v View) []action {
	switch {
	case v.Stage == nil:
		return nil
	case deleting(v.Stage):
		return planEnd(v)
	}
	node := v.Stage.Status.Node
	switch {
	case node.Phase == tarnv1.StageFailed, node.Phase == tarnv1.StageUnmounted, unwanted(v.Stage, v.Publishing):
		return []action{{verb: ignoreReady}, {verb: requestEnd}}
	case node.Phase == tarnv1.StageStaged:
		return planStaged(v)
	case node.Phase == tarnv1.StageLost && node.Loss != nil:
		return planLost(v)
	}
	return planWaiting(v)
}

// unwanted says that no call or target uses a stage and none is expected. A stage begun ahead of
// the kubelet's call waits for that call. If the call does not come, the stage controller ends the
// stage.
func unwanted(stage *tarnv1.PavStage, publishing bool) bool {
	return len(stage.Status.Node.Targets) == 0 && !publishing && !stage.Awaited()
}

// planStaged reports a loss. If a correct volume has replaced the staged one, it is mounted at
// once.
func planStaged(v View) []action {
	switch {
	case v.Lost == nil:
		return []action{{verb: ignoreReady}}
	case v.Lost.reason == rebooted:
		return fail(lostMessage(v.Lost.message))
	case v.Lost.reason == tarnv1.ReasonMountReplaced && recoveryOf(v.Stage) != tarnv1.RecoveryNone:
		return []action{{verb: ignoreReady}, {verb: markRebound, record: v.Found, loss: v.Lost}}
	}
	return []action{{verb: ignoreReady}, {verb: markLost, loss: v.Lost}}
}

// planLost stages the volume again. The controller removes the staging pod, the agent clears the
// directory, the controller starts the next pod, and the agent mounts the new volume at every
// target.
func planLost(v View) []action {
	pod, lost := v.Stage.Status.Pod, v.Stage.Status.Node.Loss
	switch {
	case recoveryOf(v.Stage) == tarnv1.RecoveryNone:
		return []action{{verb: ignoreReady}}
	case pod.Phase == tarnv1.StagePodGone && lost.Cleared < attemptOf(v.Stage):
		return []action{{verb: ignoreReady}, {verb: clearFolder}}
	case !restaging(v.Stage):
		return []action{{verb: ignoreReady}}
	case pod.Phase == tarnv1.StagePodFailed:
		return []action{{verb: ignoreReady}, {verb: markRestageFailed, message: podFailure(v.PodError, pod.Message)}}
	case v.Wrong != "":
		return []action{{verb: ignoreReady}, {verb: markRestageFailed, message: "Staging failed: " + v.Wrong}}
	case v.Found != nil:
		return []action{{verb: ignoreReady}, {verb: markRebound, record: v.Found}}
	}
	return []action{{verb: watchReady}}
}

func planWaiting(v View) []action {
	pod := v.Stage.Status.Pod
	switch {
	case pod.Phase == tarnv1.StagePodFailed && !pod.Staged && pod.Message != "":
		return fail(pod.Message) // no staging pod was started: it was rejected before
	case pod.Phase == tarnv1.StagePodFailed:
		return fail(podFailure(v.PodError, pod.Message))
	case v.Wrong != "":
		return fail("Staging failed: " + v.Wrong)
	case v.Found != nil:
		return []action{{verb: ignoreReady}, {verb: markStaged, record: v.Found}}
	}
	var actions []action
	if !v.Folder && !v.Stage.Awaited() {
		return nil // the kubelet's call makes it, with the volume's Secret
	}
	if !v.Folder {
		actions = append(actions, action{verb: makeFolder})
	}
	if v.Stage.Awaited() && v.Stage.Status.Node.Phase == "" {
		actions = append(actions, action{verb: markWaiting}) // which the stage controller waits for
	}
	return append(actions, action{verb: watchReady})
}

func fail(message string) []action {
	return []action{{verb: ignoreReady}, {verb: markFailed, message: message}, {verb: requestEnd}}
}

// podFailure is the user's message for a failed staging pod.
func podFailure(written, observed string) string {
	const prefix = "Staging pod failed: "
	switch {
	case written != "" && strings.Contains(observed, written): // the pod printed it, too
		return prefix + observed
	case written != "" && observed != "":
		return prefix + written + " (" + observed + ")"
	case written != "":
		return prefix + written
	case observed != "":
		return prefix + observed
	}
	return prefix + "it wrote nothing to /pav/error"
}

// planEnd unmounts once the staging pod is gone. It unmounts again and removes the directory once
// the unstaging pod is gone: that pod may have mounted something, too.
func planEnd(v View) []action {
	actions := []action{{verb: ignoreReady}}
	if !slices.Contains(v.Stage.Finalizers, tarnv1.FinalizerStageNode) {
		return actions
	}
	if told := v.Stage.Status.Node.InUse; v.InUse != nil && !ptr.Equal(told, v.InUse) {
		actions = append(actions, action{verb: reportUse, used: v.InUse})
	}
	release := unmount
	if !v.BusySince.IsZero() && v.Now.Sub(v.BusySince) >= detachAfter {
		release = detach
	}
	pod := v.Stage.Status.Pod.Phase
	switch {
	case pod == tarnv1.StagePodUnstaged, !slices.Contains(v.Stage.Finalizers, tarnv1.FinalizerStagePod):
		return append(actions, action{verb: release}, action{verb: removeFolder}, action{verb: removeFinalizer})
	case v.Stage.Status.Node.Phase == tarnv1.StageUnmounted:
		return append(append(actions, keepFolder(v)...), planUnstaging(v)...)
	case pod == tarnv1.StagePodStopped, pod == tarnv1.StagePodUnstaging:
		actions = append(actions, action{verb: release})
		return append(append(actions, keepFolder(v)...), action{verb: markUnmounted})
	}
	return actions
}

// keepFolder creates the directory if an agent died before it could. It is the unstaging pod's
// /pav, and the pod would wait for it for ever.
func keepFolder(v View) []action {
	if v.Folder {
		return nil
	}
	return []action{{verb: makeFolder}}
}
