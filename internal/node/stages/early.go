package stages

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/ends"
)

var _ ends.Listener = (*Stages)(nil)

// Pods implements ends.Listener: the staging pods that are waited for.
func (s *Stages) Pods() []types.UID {
	var uids []types.UID
	for _, stage := range s.waiting() {
		uids = append(uids, stage.Status.Pod.UID)
	}
	return uids
}

func (s *Stages) waiting() []tarnv1.PavStage {
	stages, err := s.cachedStages(context.Background())
	if err != nil {
		return nil // the cache is not filled: status.pod tells later
	}
	var found []tarnv1.PavStage
	for _, stage := range stages {
		if !deleting(&stage) && stage.Status.Node.Phase == tarnv1.StageWaiting && stage.Status.Pod.UID != "" {
			found = append(found, stage)
		}
	}
	return found
}

func (s *Stages) cachedStages(ctx context.Context) ([]tarnv1.PavStage, error) {
	list := &tarnv1.PavStageList{}
	err := s.Cached.List(ctx, list)
	return list.Items, err
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get

// Stopped implements ends.Listener: a staging pod that has surely ended well need not
// be waited for until the kubelet says so. Of one that has failed, the stage
// controller tells, which knows why.
func (s *Stages) Stopped(ctx context.Context, uid types.UID, ask func(context.Context) ([]ends.Run, error)) {
	for _, stage := range s.waiting() {
		if stage.Status.Pod.UID != uid {
			continue
		}
		ended, err := s.endedWell(ctx, &stage, ask)
		if err != nil {
			log.FromContext(ctx).Info("cannot see how the staging pod ended; the kubelet will tell", "stage", stage.Name, "because", err.Error())
		}
		if ended {
			s.mu.Lock()
			s.ended[uid] = stage.UID
			s.mu.Unlock()
			s.wakeUp(stage.Name)
		}
	}
}

func (s *Stages) endedWell(ctx context.Context, stage *tarnv1.PavStage, ask func(context.Context) ([]ends.Run, error)) (bool, error) {
	runs, err := ask(ctx)
	if err != nil {
		return false, err
	}
	pod := &corev1.Pod{}
	key := client.ObjectKey{Namespace: stage.Status.Pod.Namespace, Name: stage.Status.Pod.Name}
	if err := s.Live.Get(ctx, key, pod); err != nil {
		return false, err
	}
	if pod.UID != stage.Status.Pod.UID || !pod.DeletionTimestamp.IsZero() {
		return false, nil
	}
	return ends.Judge(ends.ShapeOf(pod), runs).Succeeded, nil
}

// hasEnded says whether the stage's pod is known to have ended well.
func (s *Stages) hasEnded(stage *tarnv1.PavStage) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return stage.Status.Pod.UID != "" && s.ended[stage.Status.Pod.UID] == stage.UID
}

// forget drops what is remembered of a stage that ends.
func (s *Stages) forget(stage *tarnv1.PavStage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.trusted, stage.UID)
	for pod, of := range s.ended {
		if of == stage.UID {
			delete(s.ended, pod)
		}
	}
}
