// Package supervisor runs one cluster. It is the first process of the cluster's own process and
// mount namespaces. It starts every component in order, restarts those that end, and answers the
// commands. When it ends, for any reason, the kernel ends every process of the cluster and removes
// the cluster's mounts and network.
//
// It must not know the command line, nor how a component is configured.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/control"
	"tarn.dev/tarn/cluster/internal/host"
	"tarn.dev/tarn/cluster/internal/layout"
	"tarn.dev/tarn/cluster/internal/proc"
)

// Config is the task of a supervisor: the starting command passes it, or for a further node the
// cluster's supervisor.
type Config struct {
	Layout  layout.Layout
	State   layout.State
	Machine component.Machine
	Images  string // an archive to import; "" for none
	// TarnImages is another archive, with the image of the tarn program; "" for none.
	TarnImages string
	// Greet is called with nil once the control socket answers, or with the error that prevented
	// it.
	Greet func(error) `json:"-"`
}

// furtherNode reports whether the supervisor is that of a further node.
func (c Config) furtherNode() bool { return c.Layout.Node.Name != "" }

// Supervisor is a running cluster.
type Supervisor struct {
	config   Config
	plan     component.Plan
	reaper   *proc.Reaper
	pids     *host.HostPIDs
	pid      int // as the host counts
	launcher *launcher
	progress *progress
	tokens   *tokens
	stop     chan struct{}
	stopOnce sync.Once
	giveUp   context.CancelCauseFunc // ends bringUp

	hostMounts *os.File // from which further nodes start; nil without a node

	mu     sync.Mutex
	units  map[string]*unit
	notes  map[string]string // why a component is absent
	nodes  []*further
	state  layout.State // that of config, with the nodes of now
	frozen bool         // a further node whose processes are stopped
}

// Run runs the cluster until a command stops it. The caller must be the first process of new
// process and mount namespaces.
func Run(c Config) error {
	s, err := newSupervisor(c)
	c.Greet(err)
	if err != nil {
		return err
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM, syscall.SIGINT)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go s.tokens.keep(ctx)
	go func() {
		if err := s.bringUp(ctx); err != nil && ctx.Err() == nil {
			s.progress.fail(err)
		}
	}()
	select {
	case <-terminated:
	case <-s.stop:
	}
	cancel()
	s.progress.stage(control.Stopping)
	if err := s.freeze(false, signalAll); err != nil {
		return err
	}
	return s.shutDown()
}

func newSupervisor(c Config) (*Supervisor, error) {
	if os.Getpid() != 1 {
		return nil, fmt.Errorf("the supervisor is process %d of its namespace, not 1: start it with `tarn-cluster up`", os.Getpid())
	}
	pids, err := host.OpenHostPIDs()
	if err != nil {
		return nil, err
	}
	pid, err := pids.Self()
	if err != nil {
		return nil, err
	}
	if err := layout.WriteFile(c.Layout.PIDFile(), []byte(strconv.Itoa(pid)+"\n"), 0o644); err != nil {
		return nil, err
	}
	var hostMounts *os.File
	switch {
	case c.furtherNode():
		if err := errors.Join(host.MakeMountPoints(true), setHostName(c.Layout.NodeName())); err != nil {
			return nil, err
		}
	case c.State.Options.HasNode():
		if hostMounts, err = host.HostMounts(); err != nil {
			return nil, err
		}
	}
	if err := host.Isolate(c.Layout); err != nil {
		return nil, err
	}
	reaper := proc.NewReaper()
	s := &Supervisor{
		config: c, plan: component.NewPlan(c.Layout, c.State, c.Machine), reaper: reaper, pids: pids, pid: pid,
		launcher: &launcher{layout: c.Layout, reaper: reaper, env: environment(c.Layout, c.Machine.Programs)},
		progress: newProgress(time.Now()), stop: make(chan struct{}), units: map[string]*unit{}, notes: map[string]string{},
		hostMounts: hostMounts, state: c.State,
	}
	if !c.furtherNode() && c.State.Options.HasNode() {
		for _, n := range c.State.Nodes {
			s.nodes = append(s.nodes, s.newFurther(n))
		}
	}
	s.tokens = &tokens{layout: c.Layout, life: tokenLife, client: s.client, due: map[string]time.Time{}}
	l, err := control.Listen(c.Layout.ControlSocket())
	if err != nil {
		return nil, err
	}
	go func() {
		if err := control.Serve(l, s); err != nil {
			log.Print(err)
		}
	}()
	return s, nil
}

// environment is the environment of every component. Our own programs come first in the path, then
// the machine's (mount, iptables, nft). Nothing comes from the shell that ran `up`.
func environment(l layout.Layout, programs string) []string {
	return []string{
		l.Marker(),
		"PATH=" + programs + ":" + programs + "/cni:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root",
	}
}

// run starts a component and restarts it when it ends.
func (s *Supervisor) run(c component.Component) error {
	for path, content := range c.Files {
		if err := layout.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	u := &unit{
		component: c, start: s.launcher.launch, hostPID: s.pids.Of, failed: s.failed,
		stopping: make(chan struct{}), ended: make(chan struct{}), hurry: make(chan struct{}),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.stop:
		return errors.New("the cluster is being stopped")
	default:
	}
	s.units[c.Name] = u
	go u.run()
	return nil
}

// failed reports, during the start, a component that has ended several times in a row.
func (s *Supervisor) failed(name string, times int, exit string) {
	const noticed, hopeless = 2, 5 // after 0.25 s and after 4 s, and what the runs take
	end := "\n" + lastLines(s.config.Layout.Log(name), 3)
	switch {
	case times == noticed:
		s.progress.note(fmt.Sprintf("%s has exited %d times (%s) and is restarted. The end of its log:%s", name, times, exit, end))
	case times == hopeless && name != component.Proxy: // without kube-proxy only services do not work
		s.giveUp(fmt.Errorf("%s keeps exiting (%s): see %s. The end of its log:%s", name, exit, s.logsOf(name), end))
	}
}

// logsOf is the command that prints the log of a component.
func (s *Supervisor) logsOf(name string) string {
	command := fmt.Sprintf("`tarn-cluster logs %s --name %s", name, s.config.Layout.Name)
	if s.config.furtherNode() {
		command += " --node " + s.config.Layout.NodeName()
	}
	return command + "`"
}

// runOnce runs a component to its end.
func (s *Supervisor) runOnce(ctx context.Context, c component.Component) error {
	p, err := s.launcher.launch(c)
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		return errors.Join(ctx.Err(), p.Signal(syscall.SIGKILL))
	}
	if !p.Succeeded() {
		return fmt.Errorf("%s failed (%s): %s", c.Name, p.Exit(), lastLines(s.config.Layout.Log(c.Name), 1))
	}
	return nil
}

// absent records why a component does not run.
func (s *Supervisor) absent(name, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes[name] = why
}

func (s *Supervisor) unit(name string) *unit {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.units[name]
}

// Status implements control.Server.
func (s *Supervisor) Status() control.Status {
	stage, message := s.progress.now()
	status := control.Status{
		Name: s.config.Layout.Name, Stage: stage, Message: message, PID: s.pid,
		Server: s.config.State.Server(), Apps: s.config.State.AppsServer(), Kubeconfig: s.config.Layout.Kubeconfig(), DataDir: s.config.Layout.Data,
	}
	if s.config.State.Options.HasNode() {
		status.Node = s.config.Layout.NodeName()
		status.NodeIP = layout.NetOf(s.config.State.Block).Node.String()
	}
	status.Nodes = s.nodeStatus()
	if status.Apps != "" {
		status.AppsCA = s.config.Layout.PKI("ca.crt")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	status.Frozen = s.frozen
	for _, name := range s.expected() {
		c := control.Component{Name: name, State: control.Waiting}
		if u := s.units[name]; u != nil {
			c = u.status()
		}
		if why := s.notes[name]; why != "" {
			c.State, c.Note = control.Absent, why
		}
		status.Components = append(status.Components, c)
	}
	return status
}

// expected lists the components this cluster should have.
func (s *Supervisor) expected() []string {
	if s.config.furtherNode() {
		return component.OfNode(s.config.State.Options)
	}
	return component.Of(s.config.State.Options)
}

// Follow implements control.Server.
func (s *Supervisor) Follow(ctx context.Context, yield func(control.Step)) {
	s.progress.follow(ctx, yield)
}

// Restart implements control.Server.
func (s *Supervisor) Restart(name string, kill bool) error {
	u := s.unit(name)
	if u == nil {
		return fmt.Errorf("cluster %s runs no component %q: see `tarn-cluster status`", s.config.Layout.Name, name)
	}
	if s.isFrozen() {
		return fmt.Errorf("node %s is frozen: thaw it with `tarn-cluster node thaw %[1]s --name %s` first", s.config.Layout.NodeName(), s.config.Layout.Name)
	}
	if kill {
		return u.restart(syscall.SIGKILL)
	}
	return u.restart(syscall.SIGTERM)
}

// Stop implements control.Server.
func (s *Supervisor) Stop() {
	s.stopOnce.Do(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		close(s.stop)
	})
}
