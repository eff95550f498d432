package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"tarn.dev/tarn/cluster/internal/component"
)

// grace is how long a component, and after them the containers, have to end.
const grace = 10 * time.Second

// shutDown stops the cluster as a machine is stopped: first what would start things again, then the containers, then what stores.
func (s *Supervisor) shutDown() error {
	s.Stop()
	var errs []error
	errs = append(errs, s.stopAll([]string{
		component.TarnAPI, component.TarnController, component.TarnStandby, component.TarnNode, component.Kubelet, component.ControllerManager, component.Scheduler,
	}))
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

// stopContainers asks every process of the cluster that is not one of our components to end, and waits. What is left dies with us.
func (s *Supervisor) stopContainers() error {
	if !s.config.State.Options.HasNode() {
		return nil
	}
	ours := map[int]bool{1: true}
	s.mu.Lock()
	for _, u := range s.units {
		u.mu.Lock()
		if u.process != nil {
			ours[u.process.PID] = true
		}
		u.mu.Unlock()
	}
	s.mu.Unlock()
	again := time.NewTicker(probeEvery) // they are no children of ours, so nothing tells us of their end
	defer again.Stop()
	limit := time.After(grace)
	for {
		left, err := containers(ours)
		if err != nil || len(left) == 0 {
			return err
		}
		for _, pid := range left {
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("ending process %d: %w", pid, err)
			}
		}
		select {
		case <-again.C:
		case <-limit:
			return nil
		}
	}
}

// containers lists the processes in our namespace that are neither ours nor shims, which end with their containers.
func containers(ours map[int]bool) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var found []int
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscanf(e.Name(), "%d", &pid); err != nil || ours[pid] {
			continue
		}
		comm, err := os.ReadFile("/proc/" + e.Name() + "/comm")
		if err != nil || strings.HasPrefix(string(comm), "containerd-shim") {
			continue
		}
		status, err := os.ReadFile("/proc/" + e.Name() + "/status")
		if err != nil || !canEnd(string(status)) {
			continue
		}
		found = append(found, pid)
	}
	return found, nil
}

// canEnd says whether a process, by its status file, can end by SIGTERM: not when it has ended already, nor when it is the first of its
// namespace and catches no such signal, for then the kernel drops it ("sleep 1000" in a container is the usual case).
func canEnd(status string) bool {
	first, catches := false, false
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		switch key {
		case "State":
			if fields[0] == "Z" {
				return false
			}
		case "NSpid":
			first = len(fields) > 1 && fields[len(fields)-1] == "1"
		case "SigCgt":
			mask, err := strconv.ParseUint(fields[0], 16, 64)
			catches = err == nil && mask&(1<<(syscall.SIGTERM-1)) != 0
		}
	}
	return catches || !first
}
