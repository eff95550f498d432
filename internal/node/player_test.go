package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/mounts"
)

// player acts as the stage controller and the pods that it makes.
type player struct {
	w *world

	mu sync.Mutex
	// stage is the work of a staging pod in its /pav, and the pod's phase afterwards.
	stage func(pav string) (tarnv1.StagePodPhase, string)
	// runs starts the processes of a staging pod and sets the pod's status; nil for none.
	runs func(*corev1.Pod)
	// stop ends what must end with a removed staging pod; nil for nothing.
	stop func(pav string)
	// unstage is the work of an unstaging pod.
	unstage func(pav string)
	// staged and unstaged count pods; wrong are unexpected events.
	staged, unstaged int
	wrong            []string
	held             bool
	// recovery is the provisioner's recovery; empty for the default.
	recovery tarnv1.StageRecovery
	// grows answers requests to grow at once; otherwise the test answers.
	grows bool
}

// greet is a staging pod that makes a directory with one file and ends.
func greet(pav string) (tarnv1.StagePodPhase, string) {
	volume := filepath.Join(pav, "volume")
	return played(tarnv1.StagePodSucceeded, os.MkdirAll(volume, 0o755), os.WriteFile(filepath.Join(volume, "greeting"), []byte("hello\n"), 0o644))
}

// played is what becomes of a staging pod after its steps.
func played(phase tarnv1.StagePodPhase, steps ...error) (tarnv1.StagePodPhase, string) {
	if err := errors.Join(steps...); err != nil {
		return tarnv1.StagePodFailed, err.Error()
	}
	return phase, ""
}

func (p *player) set(stage func(string) (tarnv1.StagePodPhase, string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stage = stage
}

// hold stops unstaging until it is called with false.
func (p *player) hold(held bool) {
	p.mu.Lock()
	p.held = held
	p.mu.Unlock()
	if !held {
		for _, s := range p.w.stages() {
			p.act(&s)
		}
	}
}

func (p *player) run() (stop func()) {
	p.w.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}}) // the pods'
	ctx, cancel := context.WithCancel(p.w.ctx)
	events, err := p.w.client.Watch(ctx, &tarnv1.PavStageList{}, client.MatchingFields{"spec.nodeName": p.w.node})
	if err != nil {
		p.w.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range events.ResultChan() {
			if stage, ok := e.Object.(*tarnv1.PavStage); ok && e.Type != "DELETED" {
				p.act(stage)
			}
		}
	}()
	return func() {
		p.hold(false)
		for _, s := range p.w.stages() { // what a test has left must not keep others
			s.Finalizers = nil
			_ = p.w.client.Update(ctx, &s)
			_ = p.w.client.Delete(ctx, &s)
		}
		cancel()
		<-done
		for _, wrong := range p.wrong {
			p.w.Error(wrong)
		}
	}
}

func (p *player) act(stage *tarnv1.PavStage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	uid := stage.UID
	err := p.w.client.Get(p.w.ctx, client.ObjectKeyFromObject(stage), stage) // the event may be old
	if err != nil || stage.UID != uid {
		return
	}
	pav := filepath.Join(p.w.state, "stages", string(stage.UID), "pav")
	phase := stage.Status.Pod.Phase
	if stage.DeletionTimestamp.IsZero() {
		p.play(stage, pav)
		return
	}
	switch phase {
	case tarnv1.StagePodUnstaged:
		stage.Finalizers = slices.DeleteFunc(stage.Finalizers, func(f string) bool { return f == tarnv1.FinalizerStagePod })
		_ = p.w.client.Update(p.w.ctx, stage)
	case tarnv1.StagePodStopped:
		if stage.Status.Node.Phase != tarnv1.StageUnmounted || p.held {
			return
		}
		p.unstaged++
		table, err := mounts.Kernel{}.List()
		if left := mounts.Under(table, filepath.Dir(pav)); err != nil || len(left) > 0 {
			p.wrong = append(p.wrong, fmt.Sprintf("unstaging begins, but mounted is %v (%v)", left, err))
		}
		if p.unstage != nil {
			p.unstage(pav)
		}
		p.tell(stage, tarnv1.StagePodUnstaged, "", 0)
	default:
		if node := stage.Status.Node; len(node.Targets) > 0 && (node.Phase == tarnv1.StageStaged || node.Phase == tarnv1.StageLost) && (node.InUse == nil || *node.InUse) {
			return // the pods run on
		}
		if p.stop != nil {
			p.stop(pav)
		}
		p.tell(stage, tarnv1.StagePodStopped, "", 0)
	}
}

// play does the next step of the staging pod of a stage that continues.
func (p *player) play(stage *tarnv1.PavStage, pav string) {
	status, lost := stage.Status.Pod, stage.Status.Node.Loss
	switch {
	case status.Phase == "":
		p.begin(stage, pav, 1)
	case p.grows && unanswered(stage):
		p.grow(stage)
	case stage.Status.Node.Phase != tarnv1.StageLost || status.Recovery == tarnv1.RecoveryNone:
	case status.Phase == tarnv1.StagePodGone && lost.Cleared >= max(status.Attempt, 1):
		if left, err := os.ReadDir(pav); err != nil || slices.ContainsFunc(left, func(e os.DirEntry) bool { return e.Name() != "secrets" }) {
			p.wrong = append(p.wrong, fmt.Sprintf("the next staging pod begins with %v in its /pav (%v)", left, err))
		}
		p.begin(stage, pav, status.Attempt+1)
	case status.Phase != tarnv1.StagePodGone && lost.Spent(max(status.Attempt, 1)):
		p.tell(stage, tarnv1.StagePodGone, "", status.Attempt)
	}
}

// begin plays the staging pod, which waits for its directory, as the kubelet does. A stage that
// ends first has none, for example because its agent died right after creating it.
func (p *player) begin(stage *tarnv1.PavStage, pav string, attempt int32) {
	for over := time.Now().Add(time.Minute); time.Now().Before(over); {
		now := &tarnv1.PavStage{}
		err := p.w.client.Get(p.w.ctx, client.ObjectKeyFromObject(stage), now)
		if apierrors.IsNotFound(err) || err == nil && (now.UID != stage.UID || now.DeletionTimestamp != nil) {
			return
		}
		if _, err := os.Stat(pav); err == nil {
			p.staged++
			if err := p.start(stage, attempt); err != nil {
				p.wrong = append(p.wrong, err.Error())
				return
			}
			phase, message := p.stage(pav)
			p.tell(stage, phase, message, attempt)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	p.wrong = append(p.wrong, "the folder of /pav was never made: "+pav)
}

// start creates the pod for an attempt at a stage, in the state that the kubelet gives it.
func (p *player) start(stage *tarnv1.PavStage, attempt int32) error {
	isController := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: stagingPod(stage, attempt),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: tarnv1.GroupVersion.String(), Kind: "PavStage", Name: stage.Name, UID: stage.UID, Controller: &isController}},
		},
		Spec: corev1.PodSpec{NodeName: p.w.node, RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "busybox:1.36"}}},
	}
	if err := p.w.client.Create(p.w.ctx, pod); err != nil {
		return err
	}
	if p.runs != nil {
		p.runs(pod)
	}
	now := metav1.Now()
	pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &now
	return p.w.client.Status().Update(p.w.ctx, pod)
}

// stagingPod is the name of the pod of an attempt at a stage.
func stagingPod(stage *tarnv1.PavStage, attempt int32) string {
	return fmt.Sprintf("staging-%s-%d", stage.UID, attempt)
}

func (p *player) tell(stage *tarnv1.PavStage, phase tarnv1.StagePodPhase, message string, attempt int32) {
	told := tarnv1.PavStagePodStatus{
		Phase: phase, Message: message, Attempt: attempt, Recovery: p.recovery, Staged: true,
		Namespace: "default", Name: stagingPod(stage, attempt),
	}
	pod := &corev1.Pod{}
	if err := p.w.client.Get(p.w.ctx, client.ObjectKey{Namespace: told.Namespace, Name: told.Name}, pod); err == nil {
		told.UID = pod.UID
	}
	part, err := json.Marshal(told)
	if err != nil {
		p.wrong = append(p.wrong, err.Error())
		return
	}
	body := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"pod":%s}}`, stage.UID, part)
	err = p.w.client.Status().Patch(p.w.ctx, stage, client.RawPatch(types.MergePatchType, body))
	if err != nil && p.w.ctx.Err() == nil && !apierrors.IsNotFound(err) {
		p.wrong = append(p.wrong, fmt.Sprintf("set status.pod of %s: %v", stage.Name, err))
	}
}
