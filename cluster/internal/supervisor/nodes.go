package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/control"
	"tarn.dev/tarn/cluster/internal/host"
	"tarn.dev/tarn/cluster/internal/layout"
	"tarn.dev/tarn/cluster/internal/proc"
)

// further is a further node. A supervisor of its own runs it, as the first process of its own
// process namespace. When that process ends, the kernel ends every other process of the node.
type further struct {
	node   layout.Node
	layout layout.Layout
	client *control.Client
	work   sync.Mutex // held by a request that changes the node

	// The supervisor's mu guards these.
	process  *proc.Process // nil while the node is off
	isolated bool
}

// nodeNamespaces are those each further node gets, beside a network.
const nodeNamespaces = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC

func (s *Supervisor) newFurther(n layout.Node) *further {
	l := s.config.Layout.OfNode(n)
	return &further{node: n, layout: l, client: control.NewClient(l.ControlSocket())}
}

func setHostName(name string) error {
	if err := syscall.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("naming the node %s: %w", name, err)
	}
	return nil
}

// further lists the further nodes.
func (s *Supervisor) further() []*further {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.nodes)
}

// hold locks a further node for a request. The node may have been removed while the request waited.
func (s *Supervisor) hold(f *further) error {
	f.work.Lock()
	if slices.Contains(s.further(), f) {
		return nil
	}
	f.work.Unlock()
	return s.noNode(f.node.Name)
}

func (s *Supervisor) noNode(name string) error {
	return fmt.Errorf("cluster %s has no node %s: see `tarn-cluster node list --name %[1]s`", s.config.Layout.Name, name)
}

// running is the first process of a further node, nil if the node is off.
func (s *Supervisor) running(f *further) *proc.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f.process
}

// Node implements control.Server. A further node's own supervisor stops and continues its processes.
// The cluster's does all the rest.
func (s *Supervisor) Node(ctx context.Context, name, request string) error {
	if s.config.furtherNode() {
		return s.freeze(request == control.FreezeNode, signalAll)
	}
	if stage, _ := s.progress.now(); stage == control.Starting || stage == control.Stopping {
		return fmt.Errorf("cluster %s is %s: its nodes can be changed when it is Ready", s.config.Layout.Name, stage)
	}
	if request == control.AddNode {
		return s.addNode(ctx, name)
	}
	var f *further
	for _, one := range s.further() {
		if one.node.Name == name {
			f = one
		}
	}
	switch {
	case f == nil && name == s.config.Layout.NodeName():
		return fmt.Errorf("node %s runs the control plane, so it cannot be asked to %s: choose another, or add one with `tarn-cluster node add`", name, request)
	case f == nil:
		return s.noNode(name)
	}
	if request == control.StartNode {
		return s.boot(ctx, f)
	}
	if err := s.hold(f); err != nil {
		return err
	}
	defer f.work.Unlock()
	if request == control.RemoveNode {
		return s.removeNode(ctx, f)
	}
	if s.running(f) == nil {
		return fmt.Errorf("node %s is off: start it with `tarn-cluster node start %[1]s --name %s`", name, s.config.Layout.Name)
	}
	switch request {
	case control.CutNode:
		return s.cut(f)
	case control.IsolateNode:
		return s.connect(f, false)
	case control.JoinNode:
		return s.connect(f, true)
	case control.FreezeNode, control.ThawNode:
		if err := f.client.Node(ctx, name, request); err != nil {
			return err
		}
		log.Printf("node %s: %s", name, request)
		return nil
	}
	return fmt.Errorf("request %q: there is no such request about a node", request)
}

// boot starts a further node and waits until it is ready.
func (s *Supervisor) boot(ctx context.Context, f *further) error {
	p, err := s.power(f)
	if err != nil {
		return err
	}
	answers := func(ctx context.Context) error {
		select {
		case <-p.Done():
			return nil // the error of what follows says so
		default:
		}
		_, err := f.client.Status(ctx)
		return err
	}
	if err := s.until(ctx, stageLimit, "supervisor", answers); err != nil {
		return fmt.Errorf("node %s: %w", f.node.Name, err)
	}
	last, err := f.client.Follow(ctx, func(control.Step) {})
	switch {
	case err != nil:
		return fmt.Errorf("node %s ended before it was ready (%w): %s", f.node.Name, err, lastLines(f.layout.Log("supervisor"), 1))
	case last.Stage == control.Failed:
		return fmt.Errorf("node %s: %s", f.node.Name, last.Text)
	}
	s.progress.tell(last.Text)
	return nil
}

// power starts the first process of a further node, on what its data was at its last end.
func (s *Supervisor) power(f *further) (*proc.Process, error) {
	if err := s.hold(f); err != nil {
		return nil, err
	}
	defer f.work.Unlock()
	if s.running(f) != nil {
		return nil, fmt.Errorf("node %s runs already: see `tarn-cluster node list --name %s`", f.node.Name, s.config.Layout.Name)
	}
	if err := host.SweepNode(f.layout, s.launcher.netns); err != nil {
		return nil, err
	}
	if err := issueNode(s.config.Layout, f.layout, s.config.State, time.Now()); err != nil {
		return nil, err
	}
	task := s.config
	task.Layout = f.layout
	raw, err := json.Marshal(task)
	if err != nil {
		return nil, fmt.Errorf("encoding the configuration of node %s: %w", f.node.Name, err)
	}
	file := filepath.Join(f.layout.Run, "task.json")
	if err := layout.WriteFile(file, raw, 0o600); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	out, err := openLog(f.layout.Log("supervisor"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	network, err := host.NewFurtherNetwork(s.launcher.netns, s.config.Layout, layout.NetOf(s.config.State.Block), f.node)
	if err != nil {
		return nil, err
	}
	defer network.Close() // it ends with the node's processes
	p, err := s.reaper.Start(proc.Spec{
		Path: self, Args: []string{"supervise", file}, Env: environment(f.layout, s.config.Machine.Programs), Out: out,
		NetNS: network, Mounts: s.hostMounts, New: nodeNamespaces,
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	f.process, f.isolated = p, false
	s.mu.Unlock()
	go func() {
		<-p.Done()
		log.Printf("node %s has ended: %s", f.node.Name, p.Exit())
		s.mu.Lock()
		defer s.mu.Unlock()
		if f.process == p {
			f.process = nil
		}
	}()
	return p, nil
}

// cut kills the first process of a further node, and with it all others, as a power cut does. It
// removes what the kernel keeps of a node, and leaves its data.
func (s *Supervisor) cut(f *further) error {
	p := s.running(f)
	if p == nil {
		return nil
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	select {
	case <-p.Done():
	case <-time.After(stageLimit):
		return fmt.Errorf("node %s has not ended within %s: look for processes in uninterruptible sleep (ps -eo pid,stat,cmd | grep ' D')", f.node.Name, stageLimit)
	}
	s.mu.Lock()
	f.process, f.isolated = nil, false
	s.mu.Unlock()
	return host.SweepNode(f.layout, s.launcher.netns)
}

// connect connects a further node with all others and with the API server, or cuts its cable.
func (s *Supervisor) connect(f *further, on bool) error {
	if err := host.Connect(s.launcher.netns, layout.NetOf(s.config.State.Block), f.node, on); err != nil {
		return err
	}
	s.mu.Lock()
	f.isolated = !on
	s.mu.Unlock()
	log.Printf("node %s is connected: %t", f.node.Name, on)
	return nil
}

// freeze stops all processes of a further node but this one, or continues them. No process starts
// meanwhile: a node that is not ready is not frozen, and a component's restart waits for the thaw.
func (s *Supervisor) freeze(on bool, send func(syscall.Signal) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen == on {
		return nil
	}
	signal := syscall.SIGCONT
	if on {
		if stage, _ := s.progress.now(); stage != control.Ready {
			return fmt.Errorf("node %s is %s: freeze it when it is Ready", s.config.Layout.NodeName(), stage)
		}
		signal = syscall.SIGSTOP
		s.launcher.starts.Lock()
	}
	err := send(signal)
	if err == nil {
		s.frozen = on
		log.Printf("frozen: %t", on)
	}
	if !s.frozen {
		s.launcher.starts.Unlock()
	}
	return err
}

// signalAll sends a signal to all processes of a further node but this one. The kernel does so in one
// step.
func signalAll(signal syscall.Signal) error {
	if err := syscall.Kill(-1, signal); err != nil {
		return fmt.Errorf("sending %v to the processes of the node: %w", signal, err)
	}
	return nil
}

func (s *Supervisor) isFrozen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frozen
}

// addNode makes a further node and starts it.
func (s *Supervisor) addNode(ctx context.Context, name string) error {
	if !s.config.State.Options.HasNode() {
		return errors.New("there are no nodes in a cluster with --control-plane-only or --without-node")
	}
	if err := s.labelZone(ctx); err != nil { // first, so that a failed request can be repeated
		return err
	}
	f, err := s.record(name)
	if err != nil {
		return err
	}
	return s.boot(ctx, f)
}

// record adds a further node to the cluster's state.
func (s *Supervisor) record(name string) (*further, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state, n, err := s.state.AddNode(name)
	if err != nil {
		return nil, err
	}
	if err := layout.WriteState(s.config.Layout.StateFile(), state); err != nil {
		return nil, err
	}
	s.state = state
	f := s.newFurther(n)
	s.nodes = append(s.nodes, f)
	return f, nil
}

// removeNode ends a further node and deletes its Node object and its data. The state names the node
// until all of that is gone, so that the request can be repeated.
func (s *Supervisor) removeNode(ctx context.Context, f *further) error {
	if err := s.cut(f); err != nil {
		return err
	}
	client, err := s.client()
	if err != nil {
		return err
	}
	if err := client.CoreV1().Nodes().Delete(ctx, f.node.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting node %s: %w", f.node.Name, err)
	}
	if err := errors.Join(host.SweepNode(f.layout, s.launcher.netns), host.RemoveTree(f.layout.Data)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.state.RemoveNode(f.node.Name)
	if err := layout.WriteState(s.config.Layout.StateFile(), state); err != nil {
		return err
	}
	s.state = state
	s.nodes = slices.DeleteFunc(s.nodes, func(one *further) bool { return one == f })
	log.Printf("node %s is removed", f.node.Name)
	return nil
}

// labelZone gives the first node its zone. The kubelets of further nodes register with theirs.
func (s *Supervisor) labelZone(ctx context.Context) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"metadata": {"labels": {%q: %q}}}`, component.ZoneLabel, layout.Node{}.Zone())
	name := s.config.Layout.NodeName()
	if _, err := client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("labelling node %s with its zone: %w", name, err)
	}
	return nil
}

// answerWithin is how long a further node's supervisor may take to report its status.
const answerWithin = 3 * time.Second

// nodeStatus reports on the further nodes.
func (s *Supervisor) nodeStatus() []control.Node {
	var all []control.Node
	for _, f := range s.further() {
		n := control.Node{
			Name: f.node.Name, IP: layout.NetOf(s.config.State.Block).Of(f.node).Node.String(), Zone: f.node.Zone(), State: control.Off,
		}
		s.mu.Lock()
		n.Isolated = f.isolated
		on := f.process != nil
		s.mu.Unlock()
		if on {
			n.State = control.Starting
			ctx, cancel := context.WithTimeout(context.Background(), answerWithin)
			if status, err := f.client.Status(ctx); err == nil {
				n.State, n.Frozen, n.PID, n.Components = status.Stage, status.Frozen, status.PID, status.Components
				if n.State == control.Failed {
					n.Message = status.Message
				}
			}
			cancel()
		}
		all = append(all, n)
	}
	return all
}

// stopNodes shuts the further nodes down in order. One that does not end in time is cut.
func (s *Supervisor) stopNodes() error {
	var wait sync.WaitGroup
	all := s.further()
	errs := make([]error, len(all))
	for i, f := range all {
		p := s.running(f)
		if p == nil {
			continue
		}
		wait.Go(func() {
			errs[i] = errors.Join(s.connect(f, true), f.shutDown(p, nodeGrace))
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// shutDown shuts a further node down, and cuts it when the time is over.
func (f *further) shutDown(p *proc.Process, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := f.client.Stop(ctx)
	select {
	case <-p.Done():
	case <-ctx.Done():
		err = errors.Join(err, p.Signal(syscall.SIGKILL))
		<-p.Done()
	}
	return err
}

// nodeGrace is how long a further node may take to shut down: its kubelet, two rounds of pods, its
// runtime and a margin.
const nodeGrace = 5 * grace
