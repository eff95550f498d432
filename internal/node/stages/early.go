package stages

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/podend"
	"tarn.dev/tarn/internal/node/resultdir"
)

var _ podend.Listener = (*Stages)(nil)

// Pods implements podend.Listener: staging pods that are waited for, and those that must stay.
func (s *Stages) Pods() []types.UID {
	var uids []types.UID
	for _, stage := range s.listening() {
		uids = append(uids, stage.Status.Pod.UID)
	}
	return uids
}

func (s *Stages) listening() []tarnv1.PavStage {
	stages, err := s.cachedStages(context.Background())
	if err != nil {
		return nil // the cache is not filled: status.pod says so later
	}
	var found []tarnv1.PavStage
	for _, stage := range stages {
		pod := stage.Status.Pod
		if deleting(&stage) || pod.UID == "" || stage.Status.Node.Phase == tarnv1.StageFailed {
			continue
		}
		if stage.Status.Node.Phase != tarnv1.StageStaged || pod.Phase != tarnv1.StagePodSucceeded {
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

// Stopped implements podend.Listener. A staging pod that has certainly ended well is known at once,
// before the kubelet reports it. If a pod failed before it made the volume available, the stage
// controller reports that, because it knows why. When a container of a pod that should stay ends,
// the volume is checked.
func (s *Stages) Stopped(ctx context.Context, uid types.UID, look func(context.Context) (podend.Look, error)) {
	for _, stage := range s.listening() {
		if stage.Status.Pod.UID != uid {
			continue
		}
		word := ""
		if stage.Status.Node.Phase != tarnv1.StageStaged {
			word = resultdir.ReadError(s.pav(stage.UID)) // first of all: the kubelet may start the container again
		}
		failed := false
		end, err := s.ending(ctx, &stage, func(ctx context.Context) (podend.Look, error) {
			seen, err := look(ctx)
			failed = slices.ContainsFunc(seen.Runs, func(r podend.Run) bool { return r.Exited && r.ExitCode != 0 })
			return seen, err
		})
		if err != nil {
			log.FromContext(ctx).Info("cannot see how the staging pod ended; waiting for the kubelet to report it", "stage", stage.Name, "because", err.Error())
		}
		s.mu.Lock()
		if _, known := s.words[uid]; !known && failed && word != "" {
			s.words[uid] = firstWord{stage.UID, word}
		}
		switch {
		case end.Succeeded:
			s.ended[uid] = stage.UID
		case end.Known:
			s.died[uid] = death{stage.UID, describeEnd(end)}
		}
		s.mu.Unlock()
		s.doubt(&stage)
	}
}

// ending judges how the pod has ended; the zero value means unknown. A pod that is being deleted
// does not count as having done its work.
func (s *Stages) ending(ctx context.Context, stage *tarnv1.PavStage, look func(context.Context) (podend.Look, error)) (podend.Ending, error) {
	seen, err := look(ctx)
	if err != nil {
		return podend.Ending{}, err
	}
	pod := &corev1.Pod{}
	key := client.ObjectKey{Namespace: stage.Status.Pod.Namespace, Name: stage.Status.Pod.Name}
	if err := s.Live.Get(ctx, key, pod); err != nil {
		return podend.Ending{}, err
	}
	if pod.UID != stage.Status.Pod.UID || !pod.DeletionTimestamp.IsZero() {
		return podend.Ending{}, nil
	}
	return podend.Judge(ctx, podend.ShapeOf(pod), seen.Named(pod)), nil
}

// death is the end of a staging pod that should stay.
type death struct {
	stage types.UID
	how   string
}

// firstWord is the content of /pav/error when the first container of a staging pod failed.
type firstWord struct {
	stage types.UID
	text  string
}

// describeEnd says how a pod ended that should stay.
func describeEnd(end podend.Ending) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(end.ExitCodes)) {
		parts = append(parts, fmt.Sprintf("container %s exited with %d", name, end.ExitCodes[name]))
	}
	return strings.Join(parts, "; ")
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
	s.looks.Forget(lookAt(stage))
	s.looks.Forget(question(theSize, stage))
	delete(s.trusted, stage.UID)
	delete(s.toldFailed, stage.UID)
	delete(s.busySince, stage.UID)
	// A stage that was lost has had more pods than its status names.
	maps.DeleteFunc(s.died, func(_ types.UID, d death) bool { return d.stage == stage.UID })
	maps.DeleteFunc(s.words, func(_ types.UID, w firstWord) bool { return w.stage == stage.UID })
	maps.DeleteFunc(s.ended, func(_, of types.UID) bool { return of == stage.UID })
}
