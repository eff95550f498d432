package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"

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

// missingPod adds a step pod that does not exist. If the controller has to start it now, it also
// reports whether the controller runs. since is when the pod became due. No object records since
// when it is missing, so a second read must confirm it.
func (s *story) missingPod(o Object, on, next string, due bool, since time.Time) {
	if o.Name == "" || s.view.unknown(Pod, o.Namespace, o.Name) {
		return
	}
	s.add(Link{Object: o, State: "missing", Node: on, Next: next})
	leads, _, _ := Leader(s.view.Controller, s.view.Now)
	switch {
	case !due:
	case leads, s.view.Twice, s.young(since):
		s.late(since)
	default:
		s.again = true
	}
}

// lateAfter is late for a step pod of an owner that has ended for the controller, and had before the
// controller's time to react: a pod may also end by its deadline.
func (s *story) lateAfter(pod *corev1.Pod, owner types.UID) {
	for _, at := range []time.Time{s.view.Now, s.view.Now.Add(-answerTime)} {
		if state := steppod.Observe(pod, owner, at).State; state != steppod.PodSucceeded && state != steppod.PodFailed {
			return
		}
	}
	s.late(writtenAt(pod))
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

// atWork is about work that Tarn's controller has begun. If the lease shows that no controller
// runs, the work does not continue. is words the state if a controller runs, due if none does.
func (s *story) atWork(what, is, due string, since time.Time) {
	if leads, _, _ := Leader(s.view.Controller, s.view.Now); !leads && s.view.Controller != nil {
		s.controllerSilent(what+" "+due, since)
		return
	}
	s.awaits("%s %s", what, is)
	s.controllerSilent("", since)
}

// controllerSilent blames Tarn's controller, which should do something but does not. because says
// what; it is empty if a cause is reported already.
func (s *story) controllerSilent(because string, since time.Time) {
	s.onController = true
	l, d := s.view.Controller, s.view.Deployment
	link := Link{Object: Object{lease, "tarn-system", "tarn-controller"}, Next: "when tarn controller runs"}
	blame := func(but string) {
		if because != "" {
			s.blame("%s, but %s", because, but)
		}
	}
	var leads bool
	leads, link.State, link.Message = Leader(l, s.view.Now)
	switch {
	case s.view.unknown(lease, link.Object.Namespace, link.Object.Name):
		blame("has not started")
		return
	case leads && because == "":
		return
	case s.young(since) && (leads || l == nil):
		if because != "" {
			s.awaits("%s, which starts within moments", because)
		}
		return
	case leads:
		blame("has not started although tarn controller runs")
		link.Message, link.Next = link.Message+"; see its log", "when the controller reconciles it"
		s.add(link)
		return
	case l == nil: // a controller that needs no lease may run all the same
		blame("has not started; no lease shows whether a tarn controller runs")
	default:
		blame("no tarn controller runs")
		if link.State == leaseRunOut {
			link.Since = moment(l.Spec.RenewTime.Time)
		}
	}
	if d != nil {
		link.Message += fmt.Sprintf("; its Deployment has %d of %d pods ready", d.Status.ReadyReplicas, d.Status.Replicas)
		link.Command = s.revives("")
	}
	s.add(link)
}

// revives returns the command that starts or restarts Tarn's controller, unless one is running. A
// running one may only be busy, which its log shows. Without a lease, a ready pod counts as running.
// The command is empty unless the controller is a Deployment whose --controllers include name; an
// empty name is always included. Kubernetes' own controllers can only be restarted by the cluster's
// administrator.
func (s *story) revives(name string) string {
	d, l := s.view.Deployment, s.view.Controller
	leads, _, _ := Leader(l, s.view.Now)
	switch {
	case d == nil || name != "" && !selects(d, name):
		return ""
	case ptr.Deref(d.Spec.Replicas, 1) == 0: // there is nothing to restart
		return kubectl(d.Namespace, "scale", "deployment", d.Name, "--replicas=2")
	case leads, l == nil && d.Status.ReadyReplicas > 0, s.view.unknown(lease, "tarn-system", "tarn-controller"):
		return ""
	}
	return kubectl(d.Namespace, "rollout", "restart", "deployment", d.Name)
}

// selects says whether a Deployment's --controllers include one that is left out by default.
func selects(d *appsv1.Deployment, name string) bool {
	is := false
	for _, c := range d.Spec.Template.Spec.Containers {
		for _, arg := range slices.Concat(c.Command, c.Args) {
			if list, found := strings.CutPrefix(arg, "--controllers="); found {
				names := strings.Split(list, ",")
				is = (slices.Contains(names, "*") || slices.Contains(names, name)) && !slices.Contains(names, "-"+name)
			}
		}
	}
	return is
}

// leaseRunOut is the state of a lease that is no longer renewed.
const leaseRunOut = "expired"

// Leader says by the lease of Tarn's controller, nil for none, whether a controller runs. state is
// the state of the lease in one word, message its meaning. The clock of the controller's machine
// may differ from now's, which is the API server's. So the time of a renewal is that at which the
// API server wrote it.
func Leader(l *coordinationv1.Lease, now time.Time) (leads bool, state, message string) {
	term := 15 * time.Second
	if l != nil && l.Spec.LeaseDurationSeconds != nil {
		term = time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
	}
	switch {
	case l == nil:
		return false, "missing", "tarn controller has never held its lease: it does not run, or runs with --leader-elect=false, which needs no lease"
	case l.Spec.RenewTime == nil || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "":
		return false, "released", "the last tarn controller has ended and released its lease"
	}
	renewed := l.Spec.RenewTime.Time
	if at := writtenAt(l); at.After(l.CreationTimestamp.Time) {
		renewed = at
	}
	if now.Sub(renewed) > term {
		return false, leaseRunOut, fmt.Sprintf("%s last renewed it %s ago", *l.Spec.HolderIdentity, duration.HumanDuration(now.Sub(renewed)))
	}
	return true, "held", "its holder is " + *l.Spec.HolderIdentity
}
