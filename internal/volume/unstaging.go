package volume

import (
	"strings"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// unstagingFailed begins the node agent's message about an unstaging pod that has failed. The pod's
// name follows.
const unstagingFailed = "unstaging pod "

// UnstagingWord is the message, in status.node.message, with which the node agent passes /pav/error
// of an unstaging pod to the stage controller. It names the pod. Each attempt has its own pod, so
// the text of one is not taken for that of the next.
func UnstagingWord(pod tarnv1.PavStagePodStatus, text string) string {
	return unstagingFailed + pod.Namespace + "/" + pod.Name + " failed: " + text
}

// IsUnstagingWord says whether a message is about any unstaging pod.
func IsUnstagingWord(message string) bool { return strings.HasPrefix(message, unstagingFailed) }

// TextOfUnstaging gives the text of the pod in status.pod; empty if the node agent has reported
// none of that pod.
func TextOfUnstaging(stage *tarnv1.PavStage) string {
	text, _ := strings.CutPrefix(stage.Status.Node.Message, UnstagingWord(stage.Status.Pod, ""))
	if text == stage.Status.Node.Message {
		return ""
	}
	return text
}
