package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// provisionerOf returns who creates a claim's volume, empty for none.
func provisionerOf(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) string {
	if name := volume.ProvisionerOf(claim); name != "" || class == nil {
		return name
	}
	if name, ok := volume.DriverFor(class.Provisioner); ok {
		return name
	}
	return class.Provisioner
}

// waitsForPod says whether the class gives a claim its volume only when a pod that uses the claim
// is scheduled.
func waitsForPod(class *storagev1.StorageClass) bool {
	waits, err := volume.WaitsForConsumer(class)
	return err == nil && waits
}

// hasEnded says whether all containers of a pod have ended.
func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// statuses returns the statuses of all containers, in the order in which they start.
func statuses(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

// logOf returns the container whose log says most about a pod that has failed or is not ready.
// previous says that the log of its previous run is meant.
func logOf(pod *corev1.Pod) (container string, previous, found bool) {
	ours := pod.Labels[tarnv1.LabelStep] != "" // a step pod need not become ready
	if pod.Status.Phase == corev1.PodSucceeded || isReady(pod) && !ours {
		return "", false, false
	}
	all := statuses(pod)
	for _, s := range all {
		if end := s.State.Terminated; end != nil && end.ExitCode != 0 {
			return s.Name, false, true
		}
		if s.State.Waiting != nil && s.LastTerminationState.Terminated != nil {
			return s.Name, true, true
		}
	}
	for _, s := range all {
		if s.State.Running != nil {
			return s.Name, false, true
		}
	}
	// The node agent reports the end before the kubelet does.
	if ours && pod.Annotations[tarnv1.AnnotationResult] != "" {
		return pod.Spec.Containers[0].Name, false, true
	}
	return "", false, false
}

func isReady(pod *corev1.Pod) bool { return isTrue(pod, corev1.PodReady) }

func isTrue(pod *corev1.Pod, which corev1.PodConditionType) bool {
	c := conditionOf(pod, which)
	return c != nil && c.Status == corev1.ConditionTrue
}

func conditionOf(pod *corev1.Pod, which corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == which {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// crashing is the kubelet's reason for a container that ends again and again.
const crashing = "CrashLoopBackOff"

// trouble is the state of a pod in a few words. If something blocks the pod, it has a reason and
// the message of the scheduler or the kubelet.
type trouble struct {
	State, Reason, Message string
	Since                  time.Time
}

// stuck says whether something blocks the pod that does not pass by itself.
func (t trouble) stuck() bool { return t.Reason != "" }

// look returns the state of a pod.
func look(pod *corev1.Pod) trouble {
	t := trouble{State: string(pod.Status.Phase), Since: pod.CreationTimestamp.Time}
	if hasEnded(pod) {
		t.Since = time.Time{} // its containers show it, if it had any
	} else if c := conditionOf(pod, corev1.PodScheduled); c != nil {
		t.Since = c.LastTransitionTime.Time
		if c.Status == corev1.ConditionFalse {
			return trouble{"not scheduled", c.Reason, c.Message, t.Since}
		}
	}
	for _, s := range statuses(pod) {
		if w := s.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			t.State, t.Reason = "container "+s.Name+" waits", w.Reason
			t.Message = strings.TrimSpace(w.Message + ended(s.LastTerminationState.Terminated))
			if end := s.LastTerminationState.Terminated; end != nil {
				t.Since = end.FinishedAt.Time
			}
			return t
		}
	}
	for _, s := range statuses(pod) { // between an end and the next start, which the kubelet delays
		if end := s.State.Terminated; end != nil && end.ExitCode != 0 && s.RestartCount > 0 && !hasEnded(pod) {
			t.State, t.Reason, t.Since = "container "+s.Name+" has ended", crashing, end.FinishedAt.Time
			t.Message = fmt.Sprintf("it was started %d times and exited with %d, %s", s.RestartCount+1, end.ExitCode, end.Reason)
			return t
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		t.Reason, t.Message = "Failed", strings.Trim(pod.Status.Reason+": "+pod.Status.Message, ": ")
		for _, s := range statuses(pod) {
			if end := s.State.Terminated; end != nil && end.ExitCode != 0 {
				t.Message = strings.TrimSpace(fmt.Sprintf("%s container %s exited with %d (%s) %s", t.Message, s.Name, end.ExitCode, end.Reason, end.Message))
				t.Since = end.FinishedAt.Time
			}
		}
		return t
	}
	for _, s := range statuses(pod) {
		if r := s.State.Running; r != nil {
			t.State, t.Since = "running", r.StartedAt.Time
		} else if end := s.State.Terminated; end != nil && pod.Status.Phase == corev1.PodSucceeded && end.FinishedAt.After(t.Since) {
			t.Since = end.FinishedAt.Time
		}
	}
	if pod.DeletionTimestamp != nil {
		t.State, t.Since = "being deleted", deletedAt(pod)
	} else if t.State == string(corev1.PodPending) && pod.Spec.NodeName != "" {
		t.State = "starting"
	}
	return t
}

// deletedAt returns when the deletion of a pod was requested. Its deletionTimestamp is the end of
// the grace period.
func deletedAt(pod *corev1.Pod) time.Time {
	return pod.DeletionTimestamp.Add(-time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second)
}

// endsBy words the end of the grace period of a pod that is being deleted.
func endsBy(pod *corev1.Pod) string {
	return fmt.Sprintf("it had until %s to end", pod.DeletionTimestamp.UTC().Format("15:04:05Z"))
}

func ended(end *corev1.ContainerStateTerminated) string {
	if end == nil {
		return ""
	}
	return fmt.Sprintf(" (it exited with %d, %s)", end.ExitCode, end.Reason)
}

// newest returns the latest Event with one of the reasons, or of any reason if none is given; nil
// if there is none. Events are sorted by when they were last seen.
func newest(events []corev1.Event, reasons ...string) *corev1.Event {
	for i := len(events) - 1; i >= 0; i-- {
		if len(reasons) == 0 || slices.Contains(reasons, events[i].Reason) {
			return &events[i]
		}
	}
	return nil
}

// ofBinder says whether a binder posted an Event: Kubernetes' own or Tarn's controller. Tarn's
// controller posts as a provisioner only for its own plugins.
func ofBinder(e corev1.Event) bool {
	by := cmp.Or(e.ReportingController, e.Source.Component)
	return by == "persistentvolume-controller" || by == kube.ControllerName
}

// newestRefusal returns the last Event in which Tarn's binder reports a rejected write; nil for
// none.
func newestRefusal(events []corev1.Event) *corev1.Event {
	for i := len(events) - 1; i >= 0; i-- {
		if ofBinder(events[i]) && strings.HasPrefix(events[i].Message, kube.RefusedWrite) {
			return &events[i]
		}
	}
	return nil
}

// moment returns a time for Link.Since, nil if it is zero.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// LastSeen returns when an Event last happened, in whichever of its fields that is recorded.
func LastSeen(e *corev1.Event) time.Time {
	at := e.CreationTimestamp.Time
	for _, t := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time} {
		if t.After(at) {
			at = t
		}
	}
	if e.Series != nil && e.Series.LastObservedTime.After(at) {
		at = e.Series.LastObservedTime.Time
	}
	return at
}
