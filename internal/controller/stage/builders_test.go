package stage

import (
	"context"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

const (
	stageUID  = "uid-of-stage"
	stageName = "uid-of-pv.n1" // see tarnv1.StageName
	staging   = "pav-staging-uid-of-stage-1"
	unstaging = "pav-unstaging-uid-of-stage-1"

	validation = "pav-validation-uid-of-stage-1"
)

// aStage has both finalizers and the given pod status.
func aStage(status tarnv1.PavStagePodStatus) *tarnv1.PavStage {
	return &tarnv1.PavStage{
		ObjectMeta: metav1.ObjectMeta{
			Name: stageName, UID: stageUID, CreationTimestamp: metav1.Time{Time: noon}, Finalizers: []string{tarnv1.FinalizerStagePod, tarnv1.FinalizerStageNode},
		},
		Spec: tarnv1.PavStageSpec{
			Provisioner: tarnv1.ProvisionerReference{Name: "slow", UID: "uid-of-slow"},
			VolumeName:  "pv", VolumeUID: "uid-of-pv", NodeName: "n1",
		},
		Status: tarnv1.PavStageStatus{Pod: status},
	}
}

func ending(s *tarnv1.PavStage) *tarnv1.PavStage {
	s.DeletionTimestamp = &metav1.Time{Time: noon}
	return s
}

// spoken is a failed stage to which the node agent has added the message of its pod.
func spoken(s *tarnv1.PavStage) *tarnv1.PavStage {
	s.Status.Node.Phase, s.Status.Node.Message = tarnv1.StageFailed, "no device (exit 1)"
	return s
}

func unmounted(s *tarnv1.PavStage) *tarnv1.PavStage {
	s.Status.Node.Phase = tarnv1.StageUnmounted
	return ending(s)
}

func provisioner(accepted metav1.ConditionStatus) *pavv1.PavProvisioner {
	p := &pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: "slow", UID: "uid-of-slow"}}
	p.Spec.ProvisioningModes = []pavv1.ProvisioningMode{pavv1.ModeDynamic, pavv1.ModeStatic}
	if accepted != "" {
		p.Status.Conditions = []metav1.Condition{{Type: pavv1.ConditionAccepted, Status: accepted, Reason: "Because", Message: "of this"}}
	}
	return p
}

// dynamicOnly is an accepted provisioner that serves only volumes made for claims.
func dynamicOnly() *pavv1.PavProvisioner {
	p := provisioner(metav1.ConditionTrue)
	p.Spec.ProvisioningModes = []pavv1.ProvisioningMode{pavv1.ModeDynamic}
	return p
}

func madeForAClaim(v *View) { v.Made = true }

func condemned() *pavv1.PavProvisioner {
	p := provisioner(metav1.ConditionFalse)
	p.DeletionTimestamp = &metav1.Time{Time: noon}
	return p
}

// aPod is a pod of the stage in a phase; with Running it has a running container.
func aPod(name string, phase corev1.PodPhase, change ...func(*corev1.Pod)) *corev1.Pod {
	step := strings.Split(name, "-")[1]
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: "uid-of-pod", CreationTimestamp: metav1.Time{Time: noon},
			Labels: map[string]string{tarnv1.LabelStep: step}, OwnerReferences: []metav1.OwnerReference{{UID: stageUID}},
		},
		Status: corev1.PodStatus{Phase: phase},
	}
	if phase == corev1.PodRunning {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	}
	for _, c := range change {
		c(pod)
	}
	return pod
}

func foreign(p *corev1.Pod) { p.OwnerReferences = nil }
func going(p *corev1.Pod)   { p.DeletionTimestamp = &metav1.Time{Time: noon} }
func because(text string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Message = text }
}

func starting() tarnv1.PavStagePodStatus {
	return tarnv1.PavStagePodStatus{
		Phase: tarnv1.StagePodStarting, Namespace: "ns", Name: staging, Staged: true, Attempt: 1, StartTime: &metav1.Time{Time: noon},
	}
}

// of is a status in another phase, with a message and the UID of its pod.
func of(phase tarnv1.StagePodPhase, message string) tarnv1.PavStagePodStatus {
	s := starting()
	s.Phase, s.Message, s.UID = phase, message, "uid-of-pod"
	return s
}

func stopped(staged bool) tarnv1.PavStagePodStatus {
	return tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodStopped, Namespace: "ns", Staged: staged}
}

func inUnstaging(attempt int32, change ...func(*tarnv1.PavStagePodStatus)) tarnv1.PavStagePodStatus {
	s := tarnv1.PavStagePodStatus{
		Phase: tarnv1.StagePodUnstaging, Namespace: "ns", Staged: true, UnstageAttempts: attempt,
		Name: steppod.PodName(tarnv1.StepUnstaging, stageUID, attempt),
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

func again(after time.Duration, message string) func(*tarnv1.PavStagePodStatus) {
	return func(s *tarnv1.PavStagePodStatus) {
		s.NextAttemptTime, s.Message = &metav1.Time{Time: noon.Add(after)}, message
	}
}

func withUID(s *tarnv1.PavStagePodStatus)     { s.UID = "uid-of-pod" }
func withoutName(s *tarnv1.PavStagePodStatus) { s.Name = "" }
func unstaged(message string) func(*tarnv1.PavStagePodStatus) {
	return func(s *tarnv1.PavStagePodStatus) {
		s.Phase, s.Message, s.NextAttemptTime = tarnv1.StagePodUnstaged, message, nil
	}
}

// view completes a view with a node and an accepted provisioner.
func view(stage *tarnv1.PavStage, change ...func(*View)) View {
	v := View{
		Stage: stage, Node: &corev1.Node{}, Provisioner: provisioner(metav1.ConditionTrue),
		Volume: &corev1.PersistentVolume{}, Claim: &corev1.PersistentVolumeClaim{},
	}
	for _, c := range change {
		c(&v)
	}
	return v
}

func prepared(name string) func(*View) {
	return func(v *View) {
		v.Prepared = &steppod.Prepared{}
		if name != "" {
			v.Prepared.Pod = aPod(name, "")
		}
	}
}

func pod(p *corev1.Pod) func(*View) { return func(v *View) { v.Pod = p } }
func by(p *pavv1.PavProvisioner) func(*View) {
	return func(v *View) { v.Provisioner = p }
}
func missing(what string) func(*View) { return func(v *View) { v.Missing = what } }
func nodeGone(v *View)                { v.Node = nil }
func unfit(v *View)                   { v.Unfit = &steppod.StepError{Message: "line 1: no"} }
func refused(v *View)                 { v.Refused = &steppod.StepError{Message: "the API server said no"} }

func ref[T any](x T) *T { return &x }

var errBroken = errors.New("connection refused")

// brokenReader is an API server that cannot be reached.
type brokenReader struct{ client.Reader }

func (brokenReader) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errBroken
}

func requestFor(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}
}
