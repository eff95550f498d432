package explain

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// endedAgo makes a step pod succeed some time ago.
func endedAgo(ago time.Duration) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodSucceeded
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: *ahead(-ago)}}}}
		written(pod, ago)
	}
}

// written sets when an object was last written.
func written(o metav1.Object, ago time.Duration) {
	o.SetManagedFields([]metav1.ManagedFieldsEntry{{Time: ahead(-ago)}})
}

// next sets when the next attempt of each step in a world is due.
func (w *world) next(late time.Duration) *world {
	at := ahead(-late)
	if s := &w.record.Status; s.NextAttemptTime != nil {
		s.NextAttemptTime, s.NextDeletionTime = at, at
	}
	if e := w.record.Status.Expansion; e != nil && e.NextAttemptTime != nil {
		e.NextAttemptTime = at
	}
	for _, g := range w.volumeView.Stages {
		if g.Stage.Status.Pod.NextAttemptTime != nil {
			g.Stage.Status.Pod.NextAttemptTime = at
		}
	}
	return w
}

// grows makes a world's claim request more, which its provisioner is working on.
func (w *world) grows(change func(*tarnv1.PavVolumeExpansion)) *world {
	w.claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
	w.claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInProgress}
	w.record.Status.Expansion = &tarnv1.PavVolumeExpansion{TargetCapacity: 2 << 30, Attempts: 2}
	change(w.record.Status.Expansion)
	return w
}

// podOfStageIs gives a world a stage whose pod is in a phase.
func (w *world) podOfStageIs(phase tarnv1.StagePodPhase, changes ...func(*tarnv1.PavStage)) *world {
	return w.staged(func(g *tarnv1.PavStage) {
		g.Status.Node.Phase = tarnv1.StageWaiting
		g.Status.Pod = tarnv1.PavStagePodStatus{Phase: phase, Namespace: "default", Name: "pav-staging", UnstageAttempts: 1}
		for _, change := range changes {
			change(g)
		}
	})
}

// followsNode makes the world's volume depend on the node that the scheduler selects.
func followsNode(w *world) {
	w.record.Spec.WaitsForNode, w.provisioner.Spec.Topology = true, pavv1.TopologyNode
}

func ends(g *tarnv1.PavStage) { g.DeletionTimestamp = &began }

// waiting returns the worlds that wait for the time of an attempt, as functions of how late it is.
func waiting() map[string]func(late time.Duration) *world {
	failedGrowing := func(e *tarnv1.PavVolumeExpansion) {
		e.LastError, e.NextAttemptTime = &tarnv1.PavVolumeError{Message: "no room", Reason: "PodFailed", Time: began}, ahead(time.Minute)
	}
	return map[string]func(late time.Duration) *world{
		"a creation": func(late time.Duration) *world {
			return newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepCreation, "no disk").next(late)
		},
		"a creation whose last pod is there": func(late time.Duration) *world {
			return newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepCreation, "no disk").next(late).step(tarnv1.StepCreation, endedAgo(time.Hour))
		},
		"a validation": func(late time.Duration) *world {
			return newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepValidation, "no disk").next(late)
		},
		"a creation on the node that is selected": func(late time.Duration) *world {
			w := with(newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepCreation, "no disk").next(late), followsNode)
			w.claim.Annotations[volume.AnnSelectedNode] = "n1"
			return w
		},
		"the undoing of one": func(late time.Duration) *world {
			return newWorld().recorded(tarnv1.VolumeUndoing).failed(tarnv1.StepDeletion, "no disk").next(late)
		},
		"a deletion": func(late time.Duration) *world {
			return newWorld().recorded(tarnv1.VolumeDeleting).failed(tarnv1.StepDeletion, "no disk").next(late).askedVolume()
		},
		"an expansion": func(late time.Duration) *world { return newWorld().bound().grows(failedGrowing).next(late) },
		"an unstaging": func(late time.Duration) *world {
			return newWorld().bound().podOfStageIs(tarnv1.StagePodUnstaging, ends, func(g *tarnv1.PavStage) {
				g.Status.Pod.NextAttemptTime = ahead(time.Minute)
			}).next(late)
		},
	}
}

// awaiting returns the worlds that wait for a pod. The pod is missing unless one is given.
func awaiting() map[string]func(pod ...func(*corev1.Pod)) *world {
	making := func(phase tarnv1.VolumePhase, step tarnv1.Step) func(pod ...func(*corev1.Pod)) *world {
		return func(pod ...func(*corev1.Pod)) *world {
			w := with(newWorld().recorded(phase).failed(tarnv1.StepCreation, "no disk"), func(w *world) { w.record.Status.NextAttemptTime, w.record.Status.NextDeletionTime = nil, nil })
			if len(pod) > 0 {
				w.step(step, pod...)
			}
			return w
		}
	}
	staging := func(phase tarnv1.StagePodPhase, changes ...func(*tarnv1.PavStage)) func(pod ...func(*corev1.Pod)) *world {
		return func(pod ...func(*corev1.Pod)) *world {
			w := newWorld().bound().podOfStageIs(phase, changes...)
			if len(pod) > 0 {
				w.stagePod(pod...)
			}
			return w
		}
	}
	return map[string]func(pod ...func(*corev1.Pod)) *world{
		"validation": making(tarnv1.VolumeValidating, tarnv1.StepValidation),
		"creation":   making(tarnv1.VolumeCreating, tarnv1.StepCreation),
		"undoing":    making(tarnv1.VolumeUndoing, tarnv1.StepDeletion),
		"deletion": func(pod ...func(*corev1.Pod)) *world {
			return making(tarnv1.VolumeDeleting, tarnv1.StepDeletion)(pod...).askedVolume()
		},
		"deletion again": func(pod ...func(*corev1.Pod)) *world {
			w := making(tarnv1.VolumeDeleting, tarnv1.StepDeletion)(pod...).askedVolume()
			w.record.Status.LastError.Step = tarnv1.StepDeletion
			return w
		},
		"expansion": func(pod ...func(*corev1.Pod)) *world {
			w := newWorld().bound().grows(func(*tarnv1.PavVolumeExpansion) {})
			if len(pod) > 0 {
				w.step(tarnv1.StepExpansion, pod...)
			}
			return w
		},
		"expansion again": func(pod ...func(*corev1.Pod)) *world {
			w := newWorld().bound().grows(func(e *tarnv1.PavVolumeExpansion) { e.LastError = &tarnv1.PavVolumeError{Message: "no room"} })
			if len(pod) > 0 {
				w.step(tarnv1.StepExpansion, pod...)
			}
			return w
		},
		"staging":                       staging(tarnv1.StagePodRunning),
		"validation of a volume's node": staging(tarnv1.StagePodValidating),
		"unstaging":                     staging(tarnv1.StagePodUnstaging, ends),
		"expansion on a node": func(pod ...func(*corev1.Pod)) *world {
			w := grown(newWorld().bound())
			w.claimView.Users = []user{{Pod: somePod("shop", "web", runs)}}
			w.staged(func(g *tarnv1.PavStage) {
				g.Status.Pod.Expansion = &tarnv1.StageExpansion{Phase: tarnv1.StageExpansionRunning, Namespace: "default", Name: "pav-staging"}
			})
			if len(pod) > 0 {
				w.stagePod(pod...)
			}
			return w
		},
	}
}

// silent checks whether the last link of a chain says that no controller holds the lease. If want
// is false, no link may say so.
func silent(t *testing.T, name string, w *world, want bool) *Explanation {
	t.Helper()
	e := chain(w.view)
	last := e.Links[len(e.Links)-1]
	if got := last.Object.Kind == lease && e.next() == "when tarn controller runs"; got != want || !want && told(e, lease, "") {
		t.Errorf("%s: the controller is told to be silent: %t, want %t: %s; %+v", name, got, want, e.Verdict, e.Links)
	}
	if e.Healthy {
		t.Errorf("%s is healthy: %s", name, e.Verdict)
	}
	return e
}

func nobodyLeads(w *world) *world {
	w.view.Controller = nil
	return w
}

// gaveUp makes the last controller release its lease.
func gaveUp(w *world) *world {
	w.view.Controller.Spec.HolderIdentity = ptr.To("")
	return w
}

func TestAnAttemptThatIsLongOverdueTellsThatNoControllerRuns(t *testing.T) {
	for name, at := range waiting() {
		if e := silent(t, name, nobodyLeads(at(10*time.Minute)), true); !strings.Contains(text(e), "was due 10m ago, at 02:54:05Z") || strings.Contains(text(e), " now") {
			t.Errorf("%s: it does not say since when it is due: %s", name, text(e))
		}
		if e := silent(t, name, gaveUp(at(10*time.Minute)), true); len(e.commands()) > 0 {
			t.Errorf("%s: without a controller it is told to do %q", name, e.commands())
		}
		silent(t, name+" of a controller that runs", at(10*time.Minute), false)
		for _, soon := range []time.Duration{time.Second, answerTime - time.Second} {
			if e := silent(t, name+", just due", nobodyLeads(at(soon)), false); !strings.Contains(text(e), " now") {
				t.Errorf("%s: of what is just due it says %s", name, text(e))
			}
		}
		if e := silent(t, name+", to come", nobodyLeads(at(-30*time.Second)), false); !strings.Contains(text(e), "in 30s, at 03:04:35Z") {
			t.Errorf("%s: of what is to come it says %s", name, text(e))
		}
	}
}

// text returns everything that the answer says about what comes next.
func text(e *Explanation) string {
	var all []string
	for _, l := range e.Links {
		all = append(all, l.Next)
	}
	return strings.Join(all, "\n")
}

func TestAStepWhosePodHasLongEndedTellsThatNoControllerRuns(t *testing.T) {
	overdue := func(pod *corev1.Pod) { // since an hour, by the pod's own deadline
		runs(pod)
		deadline(60)(pod)
	}
	justOverdue := func(pod *corev1.Pod) {
		runs(pod)
		deadline(3600 - 15 - 1)(pod)
	}
	for name, of := range awaiting() {
		silent(t, name, nobodyLeads(of(endedAgo(time.Minute))), true)
		silent(t, name+" of a controller that runs", of(endedAgo(time.Minute)), false)
		silent(t, name+", just ended", nobodyLeads(of(endedAgo(time.Second))), false)
		silent(t, name+", whose end was just told", nobodyLeads(of(endedAgo(time.Minute), func(p *corev1.Pod) { written(p, time.Second) })), false)
		silent(t, name+", which is at work", nobodyLeads(of(runs, deadline(7200))), false)
		silent(t, name+", whose time is up", nobodyLeads(of(overdue)), true)
		silent(t, name+", whose time was just up", nobodyLeads(of(justOverdue)), false)
	}
}

func TestAStepWhosePodIsMissingTellsThatNoControllerRuns(t *testing.T) {
	for name, of := range awaiting() {
		silent(t, name, nobodyLeads(of()), true)
		silent(t, name+" of a controller that runs", of(), false)
		once := nobodyLeads(of())
		once.view.Twice = false
		if e := silent(t, name+", at the first look", once, false); !e.again {
			t.Errorf("%s: there is to be no second look: %s", name, e.Verdict)
		}
		fresh := nobodyLeads(of())
		written(fresh.record, time.Second)
		for _, g := range fresh.volumeView.Stages {
			written(g.Stage, time.Second)
		}
		silent(t, name+", just begun", fresh, false)
	}
}

func TestWhatWaitsForSomethingElseDoesNotBlameTheController(t *testing.T) {
	going := func(pod *corev1.Pod) {
		runs(pod)
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = ahead(-time.Minute), ptr.To[int64](1)
	}
	said := func(w *world, reason, message string) *world {
		meta.SetStatusCondition(&w.record.Status.Conditions, metav1.Condition{Type: tarnv1.ConditionDeletable, Status: metav1.ConditionFalse, Reason: reason, Message: message})
		return w
	}
	late := waiting()
	undone := func() *world {
		w := newWorld().recorded(tarnv1.VolumeUndoing).failed(tarnv1.StepCreation, "no disk")
		w.record.Status.NextDeletionTime = nil
		return w
	}
	for _, c := range []answer{
		{"a node that has to be selected again", with(late["a creation"](time.Hour), followsNode), "its volume could not be made, attempt 3: no disk", "when the scheduler has selected a node again", ""},
		{"a node that has to be selected again, before its time", with(late["a creation"](-3*time.Minute), followsNode), "its volume could not be made, attempt 3: no disk",
			"attempt 4 when the scheduler has selected a node again, which needs a pod that uses the claim, and not before 03:07:05Z", ""},
		{"a node that has to be selected again, and a template that fails", with(late["a creation"](-3*time.Minute), func(w *world) {
			followsNode(w)
			w.record.Status.LastError.Reason = steppod.ReasonTemplate
		}), "its volume could not be made, attempt 3: no disk", "when the scheduler has selected a node again", "kubectl edit pavprovisioner gold"},
		{"a deletion pod that has to go", late["a deletion"](time.Hour).step(tarnv1.StepDeletion, going), "its storage could not be removed: no disk", "", "kubectl edit pavprovisioner gold"},
		{"an unstaging pod that has to go", late["an unstaging"](time.Hour).stagePod(going), "cannot be unstaged on node n1", "was due 60m ago", ""},
		{"another pod that has to end", said(undone(), podRuns, "pod default/pav-creation has not ended yet"), "attempt 3 failed: no disk; now Tarn cannot yet remove what an attempt may have left: pod default/pav-creation has not ended yet", "", ""},
		{"the creation pod before, which has to end", said(undone(), podRuns, "pod default/pav-creation has not ended yet").step(tarnv1.StepCreation, going),
			"Tarn cannot yet remove what an attempt may have left: pod default/pav-creation has not ended yet", "when the pod is gone", ""},
		{"the creation pod before, whose node is gone", with(said(undone(), podRuns, "pod default/pav-creation has not ended yet").step(tarnv1.StepCreation, going), func(w *world) {
			w.volumeView.Step.NodeGone = true
		}), "the creation pod default/pav-creation is being deleted, but its node n1 no longer exists", "when Kubernetes deletes the pod", ""},
		{"a node that is gone, with the storage", with(said(late["a deletion"](time.Hour), steppod.ReasonNodeGone, "node is gone"), func(w *world) { w.record.Status.NodeName = "n1" }),
			`node "n1", which holds its storage, is gone`, "when the node is back; if it will not come back, when you delete the record, as the command does", "kubectl delete pavvolume pvc-claim-uid"},
		{"a provisioner that was made anew", said(late["a deletion"](time.Hour), "ProvisionerMissing", "PavProvisioner is gone"), "its storage cannot be destroyed yet: PavProvisioner is gone", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			nobodyLeads(c.of)
			c.check(t)
			silent(t, c.name, c.of, false)
		})
	}
	for name, w := range map[string]*world{
		"what the pod that is missing has waited for": said(undone(), "DeletionPodWaiting", "no node"),
		"a stage that is no more":                     said(undone(), stillStaged, "the volume is still staged on node n1"),
		"what it has failed with": with(said(undone(), "PodFailed", "no disk"), func(w *world) {
			w.record.Status.LastError.Step = tarnv1.StepDeletion
		}),
	} {
		silent(t, name, nobodyLeads(w), true)
	}
}
