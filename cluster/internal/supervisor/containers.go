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
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"tarn.dev/tarn/cluster/internal/host"
)

const (
	// fromCritical is the priority from which on pods are critical to the node or the cluster, as the kubelet has it.
	fromCritical = 2_000_000_000
	// answering is how long the API server has to say which pods are.
	answering = 8 * time.Second
	// killing is how long processes have to be gone that were killed.
	killing = 2 * time.Second
	// shim is what the kernel calls the parent of each container's main process, cut to the length it has for names.
	shim = "containerd-shim"
	// pause is what it calls the main process of a pod's sandbox.
	pause = "pause"
)

// podFilter says whether a pod is among those that are meant, by its uid.
type podFilter func(pod string) bool

// stopContainers asks the containers of the cluster to end, as the kubelet does when a node is shut down: the main process of each, once,
// and those of critical pods when the others have ended, as they may serve them. What is left dies with us.
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

// rounds says whose containers are ended in which round. There is but one where the API server does not say which pods are critical.
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

// endContainers asks the main processes of some pods' containers to end, and waits until all that can have ended, or the grace is over;
// their sandboxes are asked after that.
func endContainers(meant podFilter) error {
	over := time.Now().Add(grace)
	var errs []error
	for _, turn := range turns(meant) {
		errs = append(errs, endProcesses(time.Until(over), turn))
	}
	return errors.Join(errs...)
}

// turns says which processes are asked to end, one turn after the other. Where a pod's containers share one process namespace its sandbox
// has the first process of it, with whose end the kernel kills all others.
func turns(meant podFilter) []func(process) bool {
	return []func(process) bool{
		func(p process) bool { return p.main && !p.sandbox && meant(p.pod) },
		func(p process) bool { return p.sandbox && meant(p.pod) },
	}
}

// endProcesses asks some processes to end, each once, as to many a program a second time means at once, and waits until all that can have
// ended, or the time is over.
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

// killContainers ends what is left of some pods, and waits until it has: processes that do not hear of the end, or take too long, and would
// go on while what serves them is ended.
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

// each shows all living processes to a function again and again, until it waits for none of them or the time is over, and says for how many
// it waits then.
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

// process is one that has not ended.
type process struct {
	pid     int
	pod     string // its uid; "" outside of pods
	main    bool   // the one of a container that is asked to end
	sandbox bool   // the main one of a pod's sandbox
	canEnd  bool   // by SIGTERM
}

// processes lists those below a folder that is as /proc.
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

// processStatus is what we read of a process's status file.
type processStatus struct {
	name    string
	parent  int
	ended   bool // and is not buried yet
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

// canEnd says whether a process can end by SIGTERM: not when it is the first of its namespace and catches no such signal, for then the
// kernel drops it ("sleep 1000" in a container is the usual case).
func (s processStatus) canEnd() bool { return !s.ended && (s.catches || !s.first) }
