package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/cli"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/node"
)

// defaultKubeletDir is the default root directory of a kubelet.
const defaultKubeletDir = "/var/lib/kubelet"

// nodeMemory is the soft limit of the node agent's memory, in bytes. It is low because the agent
// runs on every node; near the limit, garbage is collected more often.
const nodeMemory = 32 << 20

type nodeFlags struct {
	process cli.ProcessFlags
	options node.Options
}

func newNodeCommand() *cobra.Command {
	flags := nodeFlags{options: node.Options{Version: cli.Version}}
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run the node agent: CSI sockets, stages, /pav of pods",
		Long: "Run the node agent, as root, on each node whose pods use Tarn's volumes. It serves the kubelet on one CSI socket for each\n" +
			"provisioner, mounts volumes, and reads what pods leave in /pav. It never creates pods.",
		Example: "  tarn node --node-name n1\n" +
			"  tarn node --node-name n1 --cri-endpoint /run/containerd/containerd.sock",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runNode(cmd, flags) },
	}
	flags.process.Register(cmd.Flags())
	f := cmd.Flags()
	f.StringVar(&flags.options.NodeName, "node-name", os.Getenv("NODE_NAME"), "name of this node in the API; the default is $NODE_NAME")
	f.StringVar(&flags.options.KubeletDir, "kubelet-dir", defaultKubeletDir, "the kubelet's root directory, at the path that the kubelet uses")
	f.StringVar(&flags.options.StateDir, "state-dir", "", "directory of the node agent; the default is plugins/"+tarnv1.ResultsDriver+" in the kubelet's directory; must be the same for tarn controller")
	f.StringVar(&flags.options.CRIEndpoint, "cri-endpoint", "", "socket of the container runtime, to detect ended pods at once; without it the kubelet reports them 1 to 2 s later (the kernel, for staging pods in use)")
	return cmd
}

func (f *nodeFlags) check() error {
	if f.options.NodeName == "" {
		return errors.New("the node's name is missing; give --node-name or set NODE_NAME")
	}
	if !filepath.IsAbs(f.options.KubeletDir) {
		return fmt.Errorf("--kubelet-dir %q is not an absolute path; give the kubelet's root directory", f.options.KubeletDir)
	}
	if f.options.StateDir == "" {
		f.options.StateDir = filepath.Join(f.options.KubeletDir, "plugins", tarnv1.ResultsDriver)
	}
	if !filepath.IsAbs(f.options.StateDir) {
		return fmt.Errorf("--state-dir %q is not an absolute path; give one such as /var/lib/kubelet/plugins/tarn.dev", f.options.StateDir)
	}
	return nil
}

func runNode(cmd *cobra.Command, flags nodeFlags) error {
	if err := flags.check(); err != nil {
		return err
	}
	config, err := flags.process.RESTConfig()
	if err != nil {
		return err
	}
	flags.process.SetUpLogging()
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(nodeMemory)
	}
	grace := 10 * time.Second
	mgr, err := kube.NewManager(config, ctrl.Options{
		Scheme:                  kube.Scheme(),
		Cache:                   node.CacheOptions(flags.options.NodeName),
		Metrics:                 flags.process.Metrics(),
		HealthProbeBindAddress:  flags.process.ProbeAddress,
		PprofBindAddress:        flags.process.ProfileAddress,
		GracefulShutdownTimeout: &grace,
	})
	if err != nil {
		return fmt.Errorf("starting the node agent: %w", err)
	}
	agent, err := node.Register(mgr, flags.options)
	if err != nil {
		return fmt.Errorf("starting the node agent: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("drivers", agent.Ready); err != nil {
		return err
	}
	return mgr.Start(cmd.Context())
}
