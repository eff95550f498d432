package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/control"
	"tarn.dev/tarn/cluster/internal/host"
	"tarn.dev/tarn/cluster/internal/image"
	"tarn.dev/tarn/cluster/internal/layout"
	"tarn.dev/tarn/cluster/internal/supervisor"
)

// up is one run of the command.
type up struct {
	*cluster
	options layout.Options
	nodes   int // 0 for those the cluster has
	wait    bool
	began   time.Time
	out     io.Writer
}

func newUp(c *cluster) *cobra.Command {
	u := &up{cluster: c}
	u.options.ExtraArgs = map[string][]string{}
	extra := map[string]*[]string{}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster and wait until it is ready",
		Long: `Start a cluster, print each step on standard error, and return when pods can run.

The cluster runs in the background until "tarn-cluster down". "up" of a running cluster changes nothing, says so
and succeeds. "up" of a cluster that was killed restarts it with its data, as a machine restarts after a power cut.

  --stock                plain Kubernetes without Tarn, for comparison
  --control-plane-only   only etcd and the API server, ready in seconds: no node and no controllers
  --without-node         the controllers too, but no node: for everything that needs no pods, such as binding claims to volumes
  --without-api          no REST API of applications
  --binder               which controller binds claims to volumes, tarn or kubernetes; the other is disabled
  --protection           likewise, which controllers protect claims and volumes in use
  --tarn-controllers 2   a second controller stands by, and takes over if the first one fails
  --nodes 3              three nodes on this machine, to test what happens when one of them fails

A cluster keeps the last four with its data: you do not have to repeat them after "down --keep-data".

You can add arguments to each component, which override the defaults: --kube-controller-manager-arg=--kube-api-qps=5000`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			u.began, u.out = time.Now(), cmd.ErrOrStderr()
			for name, args := range extra {
				if len(*args) > 0 {
					u.options.ExtraArgs[name] = *args
				}
			}
			return u.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&u.options.Stock, "stock", false, "plain Kubernetes, without Tarn")
	flags.BoolVar(&u.options.ControlPlaneOnly, "control-plane-only", false, "only etcd and the API server")
	flags.BoolVar(&u.options.WithoutNode, "without-node", false, "everything except the node and its agent")
	flags.BoolVar(&u.options.WithoutAPI, "without-api", false, "no REST API of applications")
	flags.StringVar(&u.options.Binder, "binder", "", "which controller binds claims to volumes: tarn or kubernetes (default "+layout.DefaultBinder+")")
	flags.StringVar(&u.options.Protection, "protection", "", "which controllers protect claims and volumes in use: tarn or kubernetes (default "+layout.DefaultProtection+")")
	flags.IntVar(&u.options.TarnControllers, "tarn-controllers", 0, fmt.Sprintf("number of Tarn's controllers, 1 or 2 (default %d)", layout.DefaultControllers))
	flags.IntVar(&u.nodes, "nodes", 0, fmt.Sprintf("number of nodes, 1 to %d (default 1)", layout.MaxNodes))
	flags.BoolVar(&u.options.SpendMemory, "spend-memory", false, "collect garbage less often: Kubernetes uses about a tenth less processor time, but more memory")
	flags.BoolVar(&u.wait, "wait", true, "wait until the cluster is ready; --wait=false returns when its supervisor runs")
	flags.StringVar(&u.options.TarnBinary, "tarn-binary", "", "path of the tarn program (default: tarn beside tarn-cluster)")
	for _, name := range component.Names() {
		extra[name] = flags.StringArray(name+"-arg", nil, "additional argument for "+name+"; may be repeated")
	}
	return cmd
}

func (u *up) run(ctx context.Context) error {
	if err := u.options.Check(); err != nil {
		return err
	}
	if _, err := (layout.State{Name: u.name, Options: u.options}).WithNodes(u.nodes); err != nil {
		return err
	}
	l, err := u.find()
	if err != nil {
		return err
	}
	dir, err := programs()
	if err != nil {
		return err
	}
	if err := host.Check(host.Needs{Node: u.options.HasNode(), Data: l.Data, Programs: dir}); err != nil {
		return err
	}
	if u.options.HasTarn() {
		if u.options.TarnBinary, err = tarnBinary(u.options.TarnBinary, filepath.Dir(dir)); err != nil {
			return err
		}
	}
	unlock, err := l.LockCluster()
	if err != nil {
		return err
	}
	defer unlock()
	already, err := host.Supervisor(l)
	if err != nil {
		return err
	}
	client := control.NewClient(l.ControlSocket())
	if already != nil {
		defer already.Close()
		if s, err := client.Status(ctx); err == nil && s.Stage != control.Failed && s.Stage != control.Stopping {
			return u.keep(ctx, l, client)
		}
		// The supervisor lives but does not answer, or its start has failed: start over.
		if err := end(already); err != nil {
			return err
		}
	}
	if err := u.start(ctx, l); err != nil {
		return err
	}
	return u.follow(ctx, client, false)
}

// keep leaves a running cluster as it is. If the cluster is still starting, keep waits for it.
func (u *up) keep(ctx context.Context, l layout.Layout, client *control.Client) error {
	note := ""
	state, err := layout.ReadState(l.StateFile())
	if err != nil {
		return err
	}
	if !state.Options.Same(u.options) || u.nodes != 0 && u.nodes != 1+len(state.Nodes) {
		note = ", with other options: to change them, run tarn-cluster down first"
	}
	fmt.Fprintf(u.out, "cluster %s is up already%s\n", l.Name, note)
	return u.follow(ctx, client, true)
}

// tarnBinary finds the tarn program.
func tarnBinary(given, beside string) (string, error) {
	path, remedy := given, "give its path with --tarn-binary"
	if path == "" {
		path, remedy = filepath.Join(beside, "tarn"), "build it with `make build`, give its path with --tarn-binary, or start plain Kubernetes with --stock"
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("program tarn: %w", err)
	}
	if info, err := os.Stat(abs); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("program tarn is not at %s: %s", abs, remedy)
	}
	return abs, nil
}

// start prepares the machine and starts the supervisor.
func (u *up) start(ctx context.Context, l layout.Layout) error {
	earlier, err := u.recover(l)
	if err != nil {
		return err
	}
	config := supervisor.Config{Layout: l}
	if u.options.HasNode() {
		if config.Images, err = baseImages(ctx, func(text string) { u.say(text) }); err != nil {
			return err
		}
	}
	networks, err := host.Networks()
	if err != nil {
		return err
	}
	earlier.Name = l.Name
	withNodes := earlier
	withNodes.Options = u.options
	if withNodes, err = withNodes.WithNodes(u.nodes); err != nil {
		return err
	}
	earlier.Nodes = withNodes.Nodes
	if earlier.Ports == nil {
		if earlier.Loops, err = host.Loops(); err != nil {
			return err
		}
	}
	if config.State, err = l.Allot(earlier, u.options.After(earlier.Options), networks); err != nil {
		return err
	}
	if err := errors.Join(host.MakeMountPoints(false), host.PrepareSettings(config.State.Options.HasNode())); err != nil {
		return err
	}
	if config.Machine, err = machine(l); err != nil {
		return err
	}
	if options := config.State.Options; options.HasNode() && options.HasTarn() {
		config.TarnImages = l.Config("tarn-image.tar")
		if config.Machine.TarnImage, err = image.Program(config.TarnImages, "tarn.dev/tarn", options.TarnBinary); err != nil {
			return err
		}
	}
	return detach(l, config)
}

// recover removes what an earlier run left on the machine and returns its state.
func (u *up) recover(l layout.Layout) (layout.State, error) {
	earlier, err := layout.ReadState(l.StateFile())
	switch {
	case errors.Is(err, os.ErrNotExist):
		if entries, err := os.ReadDir(l.Data); err == nil && len(entries) > 0 && !l.Begun() {
			return earlier, fmt.Errorf("data directory %s holds files that are not a cluster's: choose an empty one with --data-dir", l.Data)
		}
	case err != nil:
		return earlier, err
	case earlier.Name != l.Name:
		return earlier, fmt.Errorf("data directory %s belongs to cluster %s: choose another with --data-dir, or --name %s", l.Data, earlier.Name, earlier.Name)
	}
	if _, err := os.Stat(l.Run); err == nil {
		u.say("removing what an earlier run left")
	}
	if earlier.Doomed {
		return layout.State{}, host.Remove(l, earlier)
	}
	return earlier, host.Sweep(l, earlier.Loops)
}

// detach starts the supervisor as the first process of its own namespaces, and waits until it answers.
func detach(l layout.Layout, config supervisor.Config) error {
	raw, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("encoding the supervisor's configuration: %w", err)
	}
	task := filepath.Join(l.Run, "task.json")
	if err := layout.WriteFile(task, raw, 0o600); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(l.Log("supervisor")), 0o755); err != nil {
		return fmt.Errorf("creating the log directory: %w", err)
	}
	out, err := os.OpenFile(l.Log("supervisor"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("opening the supervisor's log: %w", err)
	}
	defer out.Close()
	greeting, child, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("creating a pipe to the supervisor: %w", err)
	}
	defer greeting.Close()
	cmd := exec.Command(self, "supervise", task)
	cmd.Dir = "/"
	cmd.Env = slices.Concat([]string{l.Marker()}, baseEnv)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{child}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	err = cmd.Start()
	child.Close()
	if err != nil {
		return fmt.Errorf("starting the supervisor in its own namespaces: %w: check that the kernel and the container runtime allow namespaces", err)
	}
	said, err := io.ReadAll(greeting)
	if err != nil || string(said) != greetingOK {
		cmd.Process.Kill() //nolint:errcheck // it has ended, or is about to
		cmd.Wait()         //nolint:errcheck
		if len(said) == 0 {
			return fmt.Errorf("the supervisor exited at once: see %s", l.Log("supervisor"))
		}
		return errors.New(string(said))
	}
	return cmd.Process.Release()
}

// baseEnv is the supervisor's environment. A cluster gets no variable from the caller's shell.
var baseEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}

// follow prints the steps of the start until the start has ended. For a cluster that was up
// already, it only waits.
func (u *up) follow(ctx context.Context, client *control.Client, already bool) error {
	if !u.wait {
		fmt.Fprintf(u.out, "cluster %s is starting: watch it with `tarn-cluster status --name %s`\n", u.name, u.name)
		return nil
	}
	last, err := client.Follow(ctx, func(s control.Step) {
		if !already && s.Stage != control.Failed {
			u.say(s.Text)
		}
	})
	if err != nil {
		return err
	}
	if last.Stage == control.Failed {
		return errors.New(last.Text)
	}
	return nil
}

// say prints a line of progress with the seconds since the command began.
func (u *up) say(text string) {
	fmt.Fprintf(u.out, "%6.1fs  %s\n", time.Since(u.began).Seconds(), text)
}

// end kills a supervisor and, with it, every process of its cluster.
func end(h *host.Handle) error {
	if err := h.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	return h.Wait(time.Minute)
}
