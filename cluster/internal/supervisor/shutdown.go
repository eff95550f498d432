package supervisor

import (
	"errors"
	"sync"
	"time"

	"tarn.dev/tarn/cluster/internal/component"
)

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
