package stages

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"tarn.dev/tarn/internal/node/podend"
	"tarn.dev/tarn/internal/node/procns"
)

// firsts are the first processes of the containers of staging pods that must stay. The kernel
// reports their end at once. The container runtime reports it after it has cleaned up the
// container, which takes seconds on a busy machine, and the kubelet later still.
type firsts struct {
	mu sync.Mutex
	// wanted are the pods whose processes must be found. A message in asked requests a search.
	wanted []types.UID
	asked  chan struct{}
	// held are the pods with at least one watched process.
	held map[types.UID]*heldPod
}

type heldPod struct {
	// running are the IDs of the containers with a watched process.
	running map[string]bool
	ended   []podend.Run
}

func newFirsts() firsts {
	return firsts{asked: make(chan struct{}, 1), held: map[types.UID]*heldPod{}}
}

// want requests a search for the pod's processes.
func (f *firsts) want(pod types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wanted = append(f.wanted, pod)
	select {
	case f.asked <- struct{}{}:
	default:
	}
}

// take returns the wanted pods and empties the list.
func (f *firsts) take() []types.UID {
	f.mu.Lock()
	defer f.mu.Unlock()
	pods := f.wanted
	f.wanted = nil
	return pods
}

// begin says whether the container's process was not watched before.
func (f *firsts) begin(pod types.UID, container string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	of := f.held[pod]
	if of == nil {
		of = &heldPod{running: map[string]bool{}}
		f.held[pod] = of
	}
	if of.running[container] {
		return false
	}
	of.running[container] = true
	return true
}

// end adds this run to the ended runs of the pod and returns them.
func (f *firsts) end(pod types.UID, run podend.Run) []podend.Run {
	f.mu.Lock()
	defer f.mu.Unlock()
	of := f.held[pod]
	of.ended = append(of.ended, run)
	delete(of.running, run.ID)
	if len(of.running) == 0 {
		delete(f.held, pod)
	}
	return slices.Clone(of.ended)
}

// watchFirsts learns from the kernel when staging pods that must stay end. It needs the agent to
// see the node's processes.
func (s *Stages) watchFirsts(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.firsts.asked:
		}
		select { // many are staged at once, all of them after a start
		case <-ctx.Done():
			return nil
		case <-time.After(settle):
		}
		found, err := procns.Firsts(s.firsts.take())
		if err != nil {
			log.FromContext(ctx).Error(err, "cannot watch the staging pod's process; its end is reported by the container runtime or the kubelet")
		}
		var begun []*procns.First
		for _, first := range found {
			if s.firsts.begin(first.Pod, first.Container) {
				begun = append(begun, first)
			} else {
				first.Close()
			}
		}
		for _, first := range begun { // when all of a pod are known: one may end at once
			go s.watchFirst(ctx, first)
		}
	}
}

// firstTimeout limits the checks after the end of one process.
const firstTimeout = 20 * time.Second

// watchFirst waits for the end of a process, and then has the volume checked.
func (s *Stages) watchFirst(ctx context.Context, first *procns.First) {
	stop := context.AfterFunc(ctx, first.Close)
	code, known, err := first.Wait()
	if stop() {
		first.Close()
	}
	if ctx.Err() != nil {
		return
	}
	runs := s.firsts.end(first.Pod, podend.Run{ID: first.Container, Exited: known, ExitCode: code, Finished: s.Now()})
	if err != nil {
		log.FromContext(ctx).Error(err, "cannot wait for the end of a staging pod; it is reported by the container runtime or the kubelet", "pod", first.Pod)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, firstTimeout)
	defer cancel()
	s.Stopped(ctx, first.Pod, func(context.Context) (podend.Look, error) {
		return podend.Look{Runs: runs, Ending: successIsTheirs}, nil
	})
}

// successIsTheirs leaves it to the runtime and the kubelet whether a pod has succeeded. Nothing
// waits for that success, and a process with several threads may have ended by a signal despite its
// code.
func successIsTheirs(context.Context) string { return "the kernel reported it" }
