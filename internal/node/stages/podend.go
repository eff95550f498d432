package stages

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/podend"
	"tarn.dev/tarn/internal/node/procns"
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
		text := ""
		if stage.Status.Node.Phase != tarnv1.StageStaged {
			text = resultdir.ReadError(s.pav(stage.UID)) // first of all: the kubelet may start the container again
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
		s.learnEnd(stage.UID, uid, func(pod *podEnd) {
			if pod.text == "" && failed {
				pod.text = text
			}
			switch {
			case end.Succeeded:
				pod.succeeded = true
			case end.Known:
				pod.failure = describeEnd(end)
			}
		})
		s.doubt(stage.UID, stage.Name)
	}
}

// learnEnd changes what is known of the end of a stage's pod.
func (s *Stages) learnEnd(stage, pod types.UID, change func(*podEnd)) {
	s.learn(stage, func(k *knowledge) {
		end := k.pods[pod]
		change(&end)
		k.pods = maps.Clone(k.pods)
		if k.pods == nil {
			k.pods = map[types.UID]podEnd{}
		}
		k.pods[pod] = end
	})
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
	return s.recall(stage.UID).pods[stage.Status.Pod.UID].succeeded
}

// processes are the initial processes of the containers of staging pods that must stay. The kernel
// reports their end at once. The container runtime reports it after it has cleaned up the
// container, which takes seconds on a busy machine, and the kubelet later still.
type processes struct {
	mu sync.Mutex
	// wanted are the pods whose processes must be found. A message in asked requests a search.
	wanted []types.UID
	asked  chan struct{}
	// watched are the pods with at least one watched process.
	watched map[types.UID]*watchedPod
}

type watchedPod struct {
	// running are the IDs of the containers with a watched process.
	running map[string]bool
	ended   []podend.Run
}

func newProcesses() processes {
	return processes{asked: make(chan struct{}, 1), watched: map[types.UID]*watchedPod{}}
}

// want requests a search for the pod's processes.
func (p *processes) want(pod types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = append(p.wanted, pod)
	select {
	case p.asked <- struct{}{}:
	default:
	}
}

// take returns the wanted pods and empties the list.
func (p *processes) take() []types.UID {
	p.mu.Lock()
	defer p.mu.Unlock()
	pods := p.wanted
	p.wanted = nil
	return pods
}

// begin says whether the container's process was not watched before.
func (p *processes) begin(pod types.UID, container string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.watched[pod]
	if of == nil {
		of = &watchedPod{running: map[string]bool{}}
		p.watched[pod] = of
	}
	if of.running[container] {
		return false
	}
	of.running[container] = true
	return true
}

// end adds this run to the ended runs of the pod and returns them.
func (p *processes) end(pod types.UID, run podend.Run) []podend.Run {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.watched[pod]
	of.ended = append(of.ended, run)
	delete(of.running, run.ID)
	if len(of.running) == 0 {
		delete(p.watched, pod)
	}
	return slices.Clone(of.ended)
}

// watchProcesses learns from the kernel when staging pods that must stay end. It needs the agent to
// see the node's processes.
func (s *Stages) watchProcesses(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.processes.asked:
		}
		select { // many are staged at once, all of them after a start
		case <-ctx.Done():
			return nil
		case <-time.After(settle):
		}
		found, err := procns.InitialProcesses(s.processes.take())
		if err != nil {
			log.FromContext(ctx).Error(err, "cannot watch the staging pod's process; its end is reported by the container runtime or the kubelet")
		}
		found = slices.DeleteFunc(found, func(p *procns.InitialProcess) bool {
			known := !s.processes.begin(p.Pod, p.Container)
			if known {
				p.Close()
			}
			return known
		})
		for _, p := range found { // when all of a pod are known: one may end at once
			go s.watchProcess(ctx, p)
		}
	}
}

// processTimeout limits the checks after the end of one process.
const processTimeout = 20 * time.Second

// watchProcess waits for the end of a process, and then has the volume checked.
func (s *Stages) watchProcess(ctx context.Context, p *procns.InitialProcess) {
	stop := context.AfterFunc(ctx, p.Close)
	code, known, err := p.Wait()
	if stop() {
		p.Close()
	}
	if ctx.Err() != nil {
		return
	}
	runs := s.processes.end(p.Pod, podend.Run{ID: p.Container, Exited: known, ExitCode: code, Finished: s.Now()})
	if err != nil {
		log.FromContext(ctx).Error(err, "cannot wait for the end of a staging pod; it is reported by the container runtime or the kubelet", "pod", p.Pod)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, processTimeout)
	defer cancel()
	s.Stopped(ctx, p.Pod, func(context.Context) (podend.Look, error) {
		return podend.Look{Runs: runs, Ending: reportedByKernel}, nil
	})
}

// reportedByKernel leaves it to the runtime and the kubelet whether a pod has succeeded. Nothing
// waits for that success, and a process with several threads may have ended by a signal despite its
// code.
func reportedByKernel(context.Context) string { return "the kernel reported it" }
