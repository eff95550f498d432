package explain

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	"tarn.dev/tarn/internal/steppod"
)

// Tarn's controller acts within moments when a time has passed, a pod has ended or a pod is
// missing. If it does not, these functions read from its lease whether it runs.

// when words a time at which a controller will act.
func when(at *metav1.Time, now time.Time) string {
	if at == nil {
		return ""
	}
	clock := at.UTC().Format(time.TimeOnly + "Z")
	switch wait := at.Sub(now); {
	case wait > 0:
		return fmt.Sprintf("in %s, at %s", duration.HumanDuration(wait.Round(time.Second)), clock)
	case -wait < answerTime:
		return "now"
	default:
		return fmt.Sprintf("was due %s ago, at %s", duration.HumanDuration(-wait), clock)
	}
}

// late reports whether Tarn's controller runs, if it should have acted since a time but has not. If
// it does not run, the commands of earlier links are removed: they would have no effect without it.
func (s *story) late(since time.Time) {
	if s.young(since) {
		return
	}
	told := len(s.links)
	s.controllerSilent("", since)
	if s.view.Controller == nil || len(s.links) == told {
		return // without a lease, a controller may run all the same
	}
	for _, l := range s.links[:told] {
		l.Command = ""
	}
}

// lateFor is late for a missing pod. No object records since when it is missing, so a second read
// must confirm it.
func (s *story) lateFor(since time.Time) {
	if leads, _, _ := Leader(s.view.Controller, s.view.Now); leads || s.view.Twice || s.young(since) {
		s.late(since)
		return
	}
	s.again = true
}

// missingPod adds a step pod that does not exist. If the controller has to start it now, it also
// reports whether the controller runs. since is when the pod became due.
func (s *story) missingPod(o Object, on string, due bool, since time.Time) {
	if o.Name == "" || s.view.unknown(Pod, o.Namespace, o.Name) {
		return
	}
	s.add(Link{Object: o, State: "missing", Node: on})
	if due {
		s.lateFor(since)
	}
}

// lateAfter is late for a step pod of an owner that has ended.
func (s *story) lateAfter(pod *corev1.Pod, owner types.UID) {
	if hasEndedFor(pod, owner, s.view.Now) && hasEndedFor(pod, owner, s.view.Now.Add(-answerTime)) { // a pod may also end by its deadline
		s.late(writtenAt(pod))
	}
}

// hasEndedFor says whether Tarn's controller treats a pod as ended at a time.
func hasEndedFor(pod *corev1.Pod, owner types.UID, at time.Time) bool {
	switch steppod.Observe(pod, owner, at).State {
	case steppod.PodSucceeded, steppod.PodFailed:
		return true
	}
	return false
}

// writtenAt returns when an object was last written, including its status. If that is not recorded,
// it returns the object's creation. A controller has had no more time than that to react.
func writtenAt(o metav1.Object) time.Time {
	at := o.GetCreationTimestamp().Time
	if vol, ok := o.(*corev1.PersistentVolume); ok && vol.Status.LastPhaseTransitionTime != nil && vol.Status.LastPhaseTransitionTime.After(at) {
		at = vol.Status.LastPhaseTransitionTime.Time
	}
	for _, m := range o.GetManagedFields() {
		if m.Time != nil && m.Time.After(at) {
			at = m.Time.Time
		}
	}
	return at
}

// latest returns the latest writtenAt of some objects.
func latest(of ...metav1.Object) time.Time {
	var at time.Time
	for _, o := range of {
		if t := writtenAt(o); t.After(at) {
			at = t
		}
	}
	return at
}
