package volume

import (
	"strings"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// unstagingFailed begins what the node agent says of an unstaging pod that has failed; the
// pod's name follows.
const unstagingFailed = "unstaging pod "

// UnstagingWord is how the node agent hands the stage controller, in status.node.message,
// what the unstaging pod of the stage has left in /pav/error. It names the pod: each attempt
// has a pod of its own, and the word of one is not taken for that of the next.
func UnstagingWord(pod tarnv1.PavStagePodStatus, text string) string {
	return unstagingFailed + pod.Namespace + "/" + pod.Name + " failed: " + text
}

// IsUnstagingWord says whether a message is of some unstaging pod.
func IsUnstagingWord(message string) bool { return strings.HasPrefix(message, unstagingFailed) }

// TextOfUnstaging gives back the text of the pod that status.pod speaks of, empty if the
// node agent has said nothing of that one.
func TextOfUnstaging(stage *tarnv1.PavStage) string {
	text, _ := strings.CutPrefix(stage.Status.Node.Message, UnstagingWord(stage.Status.Pod, ""))
	if text == stage.Status.Node.Message {
		return ""
	}
	return text
}
