//go:build integration

package stage

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// until waits until wrong returns an empty string.
func (s *server) until(wrong func() string) { s.T.Helper(); s.Eventually("the stage", wrong) }

// asAgent changes the node agent's part of a stage's status.
func (s *server) asAgent(stage *tarnv1.PavStage, change func(*tarnv1.PavStageNodeStatus)) {
	s.T.Helper()
	s.Must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := s.Client.Get(s.Ctx, client.ObjectKeyFromObject(stage), stage); err != nil {
			return err
		}
		change(&stage.Status.Node)
		return s.Client.Status().Update(s.Ctx, stage)
	}))
}

// runs creates a healthy pod on the node with a controller that would replace it.
func (s *server) runs(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	s.T.Helper()
	p := consumer("default", s.name, s.name)
	p.Name, p.Labels = s.name+"-"+name, map[string]string{"app": s.name + "-" + name}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "owner", UID: "uid-of-owner", Controller: ref(true)}}
	for _, c := range change {
		c(p)
	}
	s.create(p)
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	s.Must(s.Client.Status().Update(s.Ctx, p))
	return p
}

// recovers sets the provisioner's recovery.
func (s *server) recovers(r tarnv1.StageRecovery) {
	s.T.Helper()
	p := &pavv1.PavProvisioner{}
	s.Must(s.Client.Get(s.Ctx, client.ObjectKey{Name: s.name}, p))
	p.Spec.VolumeStaging = testkit.Section(`{"recovery": "` + string(r) + `",` + string(p.Spec.VolumeStaging.Raw[1:]))
	s.Must(s.Client.Update(s.Ctx, p))
}

// budget creates a disruption budget that keeps the pod. counted means that its controller,
// which does not run here, has done its work.
func (s *server) budget(pod *corev1.Pod, counted bool) *policyv1.PodDisruptionBudget {
	s.T.Helper()
	least := intstr.FromInt32(1)
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	b.Spec = policyv1.PodDisruptionBudgetSpec{MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: pod.Labels}}
	s.create(b)
	if counted {
		b.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: b.Generation, ExpectedPods: 1, CurrentHealthy: 1, DesiredHealthy: 1}
		s.Must(s.Client.Status().Update(s.Ctx, b))
	}
	return b
}

// evicted waits until a pod is gone or is being deleted.
func (s *server) evicted(pod *corev1.Pod) {
	s.T.Helper()
	s.until(func() string {
		current := &corev1.Pod{}
		err := s.Client.Get(s.Ctx, client.ObjectKeyFromObject(pod), current)
		if client.IgnoreNotFound(err) != nil || err == nil && current.DeletionTimestamp == nil {
			return "pod " + pod.Name + " stays"
		}
		return ""
	})
}

// refused waits until the stage says what prevents the eviction of exactly these pods.
func (s *server) refused(stage *tarnv1.PavStage, why map[string]string) {
	s.T.Helper()
	s.until(func() string {
		s.Must(s.Client.Get(s.Ctx, client.ObjectKeyFromObject(stage), stage))
		left := stage.Status.Pod.Evictions
		right := len(left) == len(why)
		for _, e := range left {
			text, wanted := why[e.Name]
			right = right && wanted && e.Refusals > 0 && strings.Contains(e.Message, text)
		}
		if right {
			return ""
		}
		return "the stage does not say what keeps its pods: " + strings.Join(describe(left), "; ")
	})
}

func describe(evictions []tarnv1.StageEviction) []string {
	var all []string
	for _, e := range evictions {
		all = append(all, e.Name+": "+e.Message)
	}
	return all
}

// told waits for an Event about a pod.
func (s *server) told(pod *corev1.Pod, reason, text string) {
	s.T.Helper()
	s.until(func() string {
		var list eventsv1.EventList
		s.Must(s.Client.List(s.Ctx, &list, client.InNamespace(pod.Namespace)))
		if slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Name == pod.Name && e.Reason == reason && strings.Contains(e.Note, text)
		}) {
			return ""
		}
		return "pod " + pod.Name + " was not told " + reason + " with " + text
	})
}

func TestPodsThatABudgetKeepsAreEvictedWhenItLetsThemGo(t *testing.T) {
	s := newServer(t, "stage-restart", well)
	stage := s.stage()
	s.recovers(tarnv1.RecoveryRestartConsumers)
	kept, free, uncounted := s.runs("a"), s.runs("b"), s.runs("c")
	budget, later := s.budget(kept, true), s.budget(uncounted, false)
	stop := s.run(s.Config)
	s.until(func() string {
		s.Must(s.Client.Get(s.Ctx, client.ObjectKeyFromObject(stage), stage))
		if stage.Status.Pod.Phase != tarnv1.StagePodSucceeded {
			return "the staging pod is " + string(stage.Status.Pod.Phase)
		}
		return ""
	})
	s.asAgent(stage, func(n *tarnv1.PavStageNodeStatus) {
		n.Phase = tarnv1.StageStaged
		for _, p := range []*corev1.Pod{kept, free, uncounted} {
			n.Targets = append(n.Targets, target(p.UID))
		}
		now := metav1.Now()
		n.Loss = &tarnv1.StageLoss{Number: 1, Attempt: 1, Reason: tarnv1.ReasonMountReplaced, Time: now, ReboundTime: &now}
	})

	s.evicted(free)
	s.told(free, ReasonRestarted, "this pod is evicted")
	s.refused(stage, map[string]string{
		kept.Name:      "The disruption budget " + budget.Name + " needs 1 healthy pods and has 1 currently",
		uncounted.Name: "does not answer within",
	})
	s.told(kept, ReasonNotRestarted, budget.Name)

	// Another controller continues where this one stopped.
	stop()
	defer s.run(s.Config)()
	s.Must(s.Client.Delete(s.Ctx, budget))
	s.Must(s.Client.Delete(s.Ctx, later))
	s.evicted(kept)
	s.evicted(uncounted)
	s.refused(stage, nil)
	s.asAgent(stage, func(n *tarnv1.PavStageNodeStatus) { n.Targets = nil })
	s.lives(stage, nil)
}
