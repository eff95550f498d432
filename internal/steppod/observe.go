package steppod

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// PodState is the present state of a step's pod; a closed set.
type PodState string

// The states of a pod.
const (
	// PodAbsent: the pod does not exist. It was not started, or it was deleted.
	PodAbsent PodState = "Absent"
	// PodForeign: a pod of that name is not ours.
	PodForeign PodState = "Foreign"
	// PodGoing: the pod is being deleted and has not ended. Its work is repeated once it is
	// deleted.
	PodGoing PodState = "Going"
	// PodStarting: none of its containers runs yet.
	PodStarting PodState = "Starting"
	// PodRunning: a container runs or has run.
	PodRunning PodState = "Running"
	// PodSettling: it ended, and its results are not stored yet.
	PodSettling PodState = "Settling"
	// PodSucceeded: it ended well and its results are stored.
	PodSucceeded PodState = "Succeeded"
	// PodFailed: it failed, or missed its deadline.
	PodFailed PodState = "Failed"
)

const (
	// settleTime is how long to wait for the results of a pod that ended. The node agent stores
	// them within a second. It takes longer only while the agent or its node is down.
	settleTime = 2 * time.Minute
	// goingTime is how long a pod's deletion may take before the message says so.
	goingTime = 2 * time.Minute
)

// Observation is the observed state of a pod.
type Observation struct {
	State PodState
	// Reason and Message say why the state is Failed or Foreign. In Starting and Going, Message
	// names anything unusual that the pod waits for.
	Reason, Message string
	// Result is what the pod left in /pav; never nil in Succeeded.
	Result *tarnv1.PodResult
	// Inputs are the values of the section's other fields when the pod was made.
	Inputs tarnv1.PodInputs
	// CheckAt is when to reconcile again even without an event; zero if not needed.
	CheckAt time.Time
	// unexplained says that the pod missed its deadline and does not show why. elsewhere then says
	// where to look.
	unexplained bool
	elsewhere   string
	// waits is the kind of cause in Message, in one word.
	waits string
}

// Observe reads the state of a step's pod. pod is nil if it does not exist. owner is the UID of the
// record or stage that must own it. Staging pods have no results: they are Succeeded as soon as
// their phase says so.
func Observe(pod *corev1.Pod, owner types.UID, now time.Time) Observation {
	if pod == nil {
		return Observation{State: PodAbsent}
	}
	if !OwnedBy(pod, owner) {
		return Observation{State: PodForeign, Reason: ReasonPodForeign, Message: foreign(pod)}
	}
	o := Observation{}
	if err := readAnnotation(pod, tarnv1.AnnotationInputs, &o.Inputs); err != nil {
		return Observation{State: PodFailed, Reason: ReasonResultInvalid, Message: err.Error()}
	}
	var result tarnv1.PodResult
	if pod.Annotations[tarnv1.AnnotationResult] != "" {
		if err := readAnnotation(pod, tarnv1.AnnotationResult, &result); err != nil {
			return Observation{State: PodFailed, Reason: ReasonResultInvalid, Message: err.Error()}
		}
		o.Result = &result
	}
	phase := endPhase(pod, o.Result)
	switch {
	case pod.DeletionTimestamp != nil && (phase == "" || wasStopped(pod, o.Result)):
		observeGoing(&o, pod, now)
	case phase == "":
		observeActive(&o, pod, now)
	case isStaging(pod) && phase == corev1.PodSucceeded:
		o.State = PodSucceeded
	case isStaging(pod):
		observeFailure(&o, pod, nil, now)
	default:
		observeEnd(&o, pod, phase, now)
	}
	return o
}

// Ended says whether a pod has ended, well or not, by the report of the node agent or the kubelet.
func Ended(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return true
	}
	var result tarnv1.PodResult
	return readAnnotation(pod, tarnv1.AnnotationResult, &result) == nil && result.Succeeded != nil
}

func isStaging(pod *corev1.Pod) bool {
	return pod.Labels[tarnv1.LabelStep] == string(tarnv1.StepStaging)
}

// hasResults says whether the node agent will store results of a pod: it does only for pods with a
// volume of Tarn's own driver.
func hasResults(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.CSI != nil && v.CSI.Driver == tarnv1.ResultsDriver
	})
}

// OwnedBy says whether a pod belongs to the record or stage of that uid.
func OwnedBy(pod *corev1.Pod, owner types.UID) bool {
	return slices.ContainsFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == owner })
}

func foreign(pod *corev1.Pod) string {
	return fmt.Sprintf("pod %s/%s exists and belongs to something else; delete it to continue", pod.Namespace, pod.Name)
}

func readAnnotation(pod *corev1.Pod, key string, into any) error {
	text := pod.Annotations[key]
	if text == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("annotation %s of pod %s/%s was not written by Tarn: %w", key, pod.Namespace, pod.Name, err)
	}
	return nil
}

// endPhase is Succeeded or Failed once the pod has ended, otherwise empty.
//
// The node agent's report is used first: the kubelet's comes a second or two later. Only the
// kubelet's shows that a pod was stopped. A stopped pod that exits with 0 looks as if it had done
// its work. So for a step that destroys data, a success counts only when the kubelet reports it,
// because the next action cannot be undone. A failure without text in /pav/error also waits for the
// kubelet, which keeps the last lines of the pod's log.
func endPhase(pod *corev1.Pod, result *tarnv1.PodResult) corev1.PodPhase {
	phase := pod.Status.Phase
	switch told := result != nil && result.Succeeded != nil; {
	case phase == corev1.PodFailed, phase == corev1.PodSucceeded && stoppedByKubelet(pod), told && !*result.Succeeded && result.Error != "":
		return corev1.PodFailed
	case phase == corev1.PodSucceeded, told && *result.Succeeded && !destroys(pod):
		return corev1.PodSucceeded
	}
	return ""
}

// stoppedByKubelet says whether the kubelet has ended a pod: under pressure, in a node shutdown, or
// in favour of another pod. The phase still follows from the exit codes.
func stoppedByKubelet(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonTerminationByKubelet
	})
}

// destroys says whether the pod destroys the storage or the data on it. After its success the
// record is deleted, or the next claim gets the volume.
func destroys(pod *corev1.Pod) bool {
	step := tarnv1.Step(pod.Labels[tarnv1.LabelStep])
	return step == tarnv1.StepDeletion || step == tarnv1.StepRecycling
}

// wasStopped says whether a pod ended because its deletion was requested. Its exit code then says
// nothing about its work, as many containers exit with 0 on SIGTERM. A pod without a node never
// began. If a finalizer keeps such a pod, Kubernetes' garbage collection of pods marks it Failed
// after a while.
func wasStopped(pod *corev1.Pod, result *tarnv1.PodResult) bool {
	if pod.DeletionTimestamp == nil || result != nil && result.Succeeded != nil {
		return false
	}
	if pod.Spec.NodeName == "" {
		return true
	}
	grace := time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second
	// A clock that is behind does not show which of the two came first.
	return behind(pod) > time.Second || !endTime(pod).Before(pod.DeletionTimestamp.Add(-grace))
}

// observeGoing observes a pod that is being deleted. Its message names the cause if the deletion is
// overdue.
func observeGoing(o *Observation, pod *corev1.Pod, now time.Time) {
	o.State = PodGoing
	o.CheckAt = pod.DeletionTimestamp.Add(goingTime)
	if now.Before(o.CheckAt) {
		return
	}
	o.CheckAt = time.Time{}
	since := fmt.Sprintf("pod %s/%s is being deleted since %s", pod.Namespace, pod.Name, pod.DeletionTimestamp.UTC().Format(time.RFC3339))
	if len(pod.Finalizers) > 0 && volume.ShutDown(pod) {
		o.Message = fmt.Sprintf("%s; it is deleted once its finalizers are removed by the controllers that set them: %s", since, strings.Join(pod.Finalizers, ", "))
		return
	}
	o.Message = fmt.Sprintf("%s, and node %q does not confirm it; once the node is certainly off, delete the pod by force: kubectl -n %s delete pod %s --force",
		since, pod.Spec.NodeName, pod.Namespace, pod.Name)
}

func observeActive(o *Observation, pod *corev1.Pod, now time.Time) {
	o.State = PodStarting
	if hasStarted(pod) {
		o.State = PodRunning
	}
	o.waits, o.Message = Waiting(pod)
	if isStaging(pod) && pod.Spec.ActiveDeadlineSeconds == nil {
		return
	}
	o.CheckAt = deadlineOf(pod).Add(deadlineSlack)
	if now.Before(o.CheckAt) {
		return
	}
	missDeadline(o, pod, delayedBy(pod, o.Result))
}

func observeEnd(o *Observation, pod *corev1.Pod, phase corev1.PodPhase, now time.Time) {
	expected := hasResults(pod) && hasStarted(pod)
	if expected && o.Result == nil {
		o.CheckAt = endTime(pod).Add(settleTime)
		if now.Before(o.CheckAt) {
			o.State = PodSettling
			return
		}
	}
	if phase == corev1.PodFailed {
		observeFailure(o, pod, o.Result, now)
		return
	}
	if hasResults(pod) && o.Result == nil {
		o.State, o.Reason = PodFailed, ReasonResultLost
		o.Message = fmt.Sprintf("pod %s/%s ended, but node %s has not reported what it left in /pav; check that Tarn's node agent runs there", pod.Namespace, pod.Name, pod.Spec.NodeName)
		return
	}
	if o.Result == nil {
		o.Result = &tarnv1.PodResult{}
	}
	o.State = PodSucceeded
}

// observeFailure says why a pod failed.
func observeFailure(o *Observation, pod *corev1.Pod, result *tarnv1.PodResult, now time.Time) {
	if !stoppedByKubelet(pod) && endedByDeadline(pod, now) {
		missDeadline(o, pod, delayedBy(pod, result))
		return
	}
	o.State, o.Reason, o.Message = PodFailed, ReasonPodFailed, failure(pod, result)
}

// failure says why a pod failed. The most informative source comes first.
func failure(pod *corev1.Pod, result *tarnv1.PodResult) string {
	if result != nil && result.Error != "" {
		return result.Error
	}
	if pod.Status.Reason != "" || pod.Status.Message != "" {
		return strings.Trim(pod.Status.Reason+": "+pod.Status.Message, ": ")
	}
	return cmp.Or(Disruption(pod), exits(pod, result, ""), "the pod failed and wrote nothing to /pav/error")
}

// Disruption says why the cluster has ended a pod, for example because its node was deleted, or it
// was preempted or drained. It is empty if the cluster has not.
func Disruption(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return strings.Trim(c.Reason+": "+c.Message, ": ")
		}
	}
	return ""
}

// exits says which containers failed, from the kubelet's report or else the node agent's. It leaves
// out containers that ended for the reason in without.
func exits(pod *corev1.Pod, result *tarnv1.PodResult, without string) string {
	var parts []string
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if end := s.State.Terminated; end != nil && end.ExitCode != 0 && (without == "" || end.Reason != without) {
			parts = append(parts, exit(s.Name, end))
		}
	}
	if len(parts) == 0 && result != nil {
		for _, name := range slices.Sorted(maps.Keys(result.ExitCodes)) {
			parts = append(parts, fmt.Sprintf("container %s exited with %d", name, result.ExitCodes[name]))
		}
	}
	return strings.Join(parts, "; ")
}

// exit says how a container has failed, with the last lines of its termination message. The
// runtime's reason is shown where it tells more than the exit code, such as OOMKilled.
func exit(container string, end *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("container %s exited with %d", container, end.ExitCode)
	if end.Reason != "" && end.Reason != "Error" {
		text += " (" + end.Reason + ")"
	}
	if words := terminationText(end.Message); words != "" {
		text += ": " + words
	}
	return text
}

const (
	// maxLastLines and maxLastBytes limit how much of a termination message is shown. The last
	// lines of a log say most. The kubelet keeps at most 80 lines and 4096 bytes.
	maxLastLines = 10
	maxLastBytes = 1024
)

// terminationText gives the last lines of a termination message without control characters; empty
// if there are none.
func terminationText(message string) string {
	var lines []string
	for line := range strings.Lines(strings.ToValidUTF8(message, "\uFFFD")) {
		line = strings.TrimRight(strings.Map(printable, line), " ")
		if line != "" {
			lines = append(lines, line)
		}
	}
	text := strings.Join(lines[max(len(lines)-maxLastLines, 0):], "\n")
	if len(text) > maxLastBytes {
		from := len(text) - maxLastBytes
		for !utf8.RuneStart(text[from]) {
			from++
		}
		text = "..." + text[from:]
	}
	return text
}

func printable(r rune) rune {
	switch {
	case r == '\t':
		return ' '
	case unicode.IsControl(r):
		return -1
	}
	return r
}

func hasStarted(pod *corev1.Pod) bool {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil {
			return true
		}
	}
	return false
}

// waitingFor says what keeps a pod from running; empty if unknown.
func waitingFor(pod *corev1.Pod) string {
	_, text := Waiting(pod)
	return text
}

// Waiting says what keeps a pod from running: its kind, which is Unscheduled or the kubelet's
// reason, and a text.
func Waiting(pod *corev1.Pod) (kind, text string) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "Unscheduled", strings.Trim("not scheduled: "+c.Message, ": ")
		}
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			kind := w.Reason
			if kind == "ErrImagePull" { // which takes turns with the pause before the next pull
				kind = "ImagePullBackOff"
			}
			return kind, strings.Trim(fmt.Sprintf("container %s: %s: %s", s.Name, w.Reason, w.Message), ": ")
		}
	}
	return "", ""
}

// endTime is when the last container of a pod ended, by the API server's clock.
func endTime(pod *corev1.Pod) time.Time {
	end, late := pod.CreationTimestamp.Time, behind(pod)
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if t := s.State.Terminated; t != nil && t.FinishedAt.Add(late).After(end) {
			end = t.FinishedAt.Add(late)
		}
	}
	return end
}
