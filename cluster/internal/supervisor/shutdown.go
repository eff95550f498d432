package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/host"
)

const (
	// fromCritical is the lowest priority of pods that are critical to the node or the cluster, as
	// the kubelet defines it.
	fromCritical = 2_000_000_000
	// answering is how long the API server may take to list the critical pods.
	answering = 8 * time.Second
	// killing is how long killed processes may take to end.
	killing = 2 * time.Second
	// shim is the kernel's name for the parent of each container's main process, cut to the length
	// limit for names.
	shim = "containerd-shim"
	// pause is the kernel's name for the main process of a pod's sandbox.
	pause = "pause"
)

// podFilter reports whether a pod, given by its uid, is selected.
type podFilter func(pod string) bool

// stopContainers asks the containers of the cluster to end, as the kubelet does at a node's
// shutdown. It signals the main process of each once. Critical pods come after the others, because
// they may serve them. The rest is killed with the supervisor.
func (s *Supervisor) stopContainers() error {
	if !s.config.State.Options.HasNode() {
		return nil
	}
	var errs []error
	rounds := s.rounds(answering)
	for i, meant := range rounds {
		errs = append(errs, endContainers(meant))
		if i < len(rounds)-1 {
			errs = append(errs, killContainers(meant))
		}
	}
	return errors.Join(errs...)
}

// rounds gives the pods to end in each round. There is only one round if the API server does not
// report which pods are critical.
func (s *Supervisor) rounds(within time.Duration) []podFilter {
	critical, err := s.criticalPods(within)
	if err != nil {
		log.Printf("stopping the containers of all pods at once, as the critical pods are unknown: %v", err)
		return []podFilter{func(string) bool { return true }}
	}
	return []podFilter{
		func(pod string) bool { return !critical[pod] },
		func(pod string) bool { return critical[pod] },
	}
}

// criticalPods gives the uids of the node's critical pods.
func (s *Supervisor) criticalPods(within time.Duration) (map[string]bool, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", s.config.Layout.NodeName()).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of the node: %w", err)
	}
	critical := map[string]bool{}
	for _, pod := range pods.Items {
		if pod.Spec.Priority != nil && *pod.Spec.Priority >= fromCritical {
			critical[string(pod.UID)] = true
		}
	}
	return critical, nil
}

// endContainers asks the main processes of the selected pods' containers to end. It waits until all
// that can end have ended, or the grace is over. Then it asks their sandboxes.
func endContainers(meant podFilter) error {
	over := time.Now().Add(grace)
	var errs []error
	for _, turn := range turns(meant) {
		errs = append(errs, endProcesses(time.Until(over), turn))
	}
	return errors.Join(errs...)
}

// turns gives the processes to ask in each turn. Where a pod's containers share one process
// namespace, the sandbox holds its first process. When that ends, the kernel kills all the others,
// so it comes last.
func turns(meant podFilter) []func(process) bool {
	return []func(process) bool{
		func(p process) bool { return p.main && !p.sandbox && meant(p.pod) },
		func(p process) bool { return p.sandbox && meant(p.pod) },
	}
}

// endProcesses asks some processes to end, and waits until all that can end have ended, or the time
// is over. It signals each once, because many programs take a second signal as a demand to stop at
// once.
func endProcesses(limit time.Duration, chosen func(process) bool) error {
	asked := map[int]bool{}
	_, err := each(limit, func(p process) (bool, error) {
		switch {
		case !chosen(p):
			return false, nil
		case asked[p.pid]:
			return true, nil
		case !p.canEnd:
			return false, nil
		}
		asked[p.pid] = true
		return true, send(p.pid, syscall.SIGTERM)
	})
	return err
}

// killContainers kills the remaining processes of the selected pods and waits until they have
// ended. Such processes ignore the signal or take too long. They would keep running while the pods
// that serve them are stopped.
func killContainers(meant podFilter) error {
	left, err := each(killing, func(p process) (bool, error) {
		if p.pod == "" || !meant(p.pod) { // our own are in no pod
			return false, nil
		}
		return true, send(p.pid, syscall.SIGKILL)
	})
	if left > 0 {
		log.Printf("%d processes of pods were killed and have not ended within %s", left, killing)
	}
	return err
}

// each calls waitFor with all living processes, repeatedly, until it waits for none of them or the
// time is over. It returns the number it still waits for.
func each(limit time.Duration, waitFor func(process) (bool, error)) (left int, err error) {
	again := time.NewTicker(probeEvery) // they are no children of ours, so nothing tells us of their end
	defer again.Stop()
	over := time.After(limit)
	for {
		all, err := processes("/proc")
		if err != nil {
			return 0, err
		}
		left = 0
		for _, p := range all {
			wait, err := waitFor(p)
			if err != nil {
				return left, err
			}
			if wait {
				left++
			}
		}
		if left == 0 {
			return 0, nil
		}
		select {
		case <-again.C:
		case <-over:
			return left, nil
		}
	}
}

func send(pid int, s syscall.Signal) error {
	if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stopping process %d: %w", pid, err)
	}
	return nil
}

// process is a process that has not ended.
type process struct {
	pid     int
	pod     string // its uid; "" outside pods
	main    bool   // the one of a container that is asked to end
	sandbox bool   // the main one of a pod's sandbox
	canEnd  bool   // by SIGTERM
}

// processes lists the processes below a directory with the layout of /proc.
func processes(proc string) ([]process, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var found []process
	parents, names := map[int]int{}, map[int]string{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(proc, e.Name(), "status"))
		if err != nil {
			continue // it has ended meanwhile
		}
		status := readStatus(string(text))
		cgroup, err := os.ReadFile(filepath.Join(proc, e.Name(), "cgroup"))
		if err != nil || status.ended {
			continue
		}
		names[pid] = status.name
		parents[pid] = status.parent
		found = append(found, process{pid: pid, pod: host.PodOf(string(cgroup)), canEnd: status.canEnd()})
	}
	for i, p := range found {
		found[i].main = names[parents[p.pid]] == shim
		found[i].sandbox = found[i].main && names[p.pid] == pause
	}
	return found, nil
}

// processStatus holds the fields we use of a process's status file.
type processStatus struct {
	name    string
	parent  int
	ended   bool // and is not reaped yet
	first   bool // of its process namespace
	catches bool // SIGTERM
}

func readStatus(text string) processStatus {
	var s processStatus
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		words := strings.Fields(value)
		if len(words) == 0 {
			continue
		}
		switch key {
		case "Name":
			s.name = words[0]
		case "State":
			s.ended = words[0] == "Z" || words[0] == "X"
		case "PPid":
			s.parent, _ = strconv.Atoi(words[0]) // the kernel writes no other than numbers
		case "NSpid":
			s.first = len(words) > 1 && words[len(words)-1] == "1"
		case "SigCgt":
			mask, err := strconv.ParseUint(words[0], 16, 64)
			s.catches = err == nil && mask&(1<<(syscall.SIGTERM-1)) != 0
		}
	}
	return s
}

// canEnd reports whether SIGTERM can end a process. It cannot end the first process of a namespace
// that does not catch the signal, because the kernel drops it then. "sleep 1000" in a container is
// the usual case.
func (s processStatus) canEnd() bool { return !s.ended && (s.catches || !s.first) }

// grace is how long a component may take to end, and after the components each round of containers.
// The commands wait for the sum: see cli.shutdownLimit.
const grace = 10 * time.Second

// shutDown stops the cluster in the order of a machine's shutdown: first what would restart things,
// then the containers, then the storage.
func (s *Supervisor) shutDown() error {
	s.Stop()
	var errs []error
	errs = append(errs, s.stopAll([]string{
		component.TarnAPI, component.TarnController, component.TarnStandby, component.TarnNode, component.Kubelet, component.ControllerManager, component.Scheduler,
	}))
	errs = append(errs, s.stopNodes())
	errs = append(errs, s.stopContainers())
	errs = append(errs, s.stopAll([]string{component.Containerd, component.Proxy, component.APIServer}))
	errs = append(errs, s.stopAll([]string{component.Etcd}))
	return errors.Join(errs...)
}

func (s *Supervisor) stopAll(names []string) error {
	var wait sync.WaitGroup
	errs := make([]error, len(names))
	for i, name := range names {
		if u := s.unit(name); u != nil {
			wait.Go(func() { errs[i] = u.stop(grace) })
		}
	}
	wait.Wait()
	return errors.Join(errs...)
}
