// Package cli is the command line of tarn-cluster, with one file for each subcommand.
//
// It must not know how a cluster is put together. It checks the machine, calls or starts the
// supervisor, and reports the result in words.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/control"
	"tarn.dev/tarn/cluster/internal/host"
	"tarn.dev/tarn/cluster/internal/image"
	"tarn.dev/tarn/cluster/internal/layout"
)

// cluster is the cluster a command is about.
type cluster struct {
	name    string
	dataDir string
}

// New returns the whole command line.
func New() *cobra.Command {
	c := &cluster{}
	root := &cobra.Command{
		Use:   "tarn-cluster",
		Short: "Run a real Kubernetes on this machine, with nothing installed",
		Long: `tarn-cluster runs a real Kubernetes ` + kubernetesVersion + ` of one to five nodes on this machine: etcd, kube-apiserver, kube-controller-manager,
kube-scheduler, kubelet, kube-proxy, containerd and runc, built from Go modules, with Tarn in it. No Docker, no registry, no cloud.

You can run several clusters, each with its own --name. Each has its own process, mount and network namespaces, so the machine's
own mounts, ports below 20000 and packet filter do not change.`,
		Version:       "for Kubernetes " + kubernetesVersion,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&c.name, "name", layout.DefaultName, "name of the cluster")
	root.PersistentFlags().StringVar(&c.dataDir, "data-dir", "", "data directory of the cluster (default /var/lib/tarn-cluster/NAME)")
	root.AddCommand(newUp(c), newDown(c), newStatus(c), newKubeconfig(c), newLogs(c), newRestart(c), newImage(c), newNode(c), newSupervise())
	for _, group := range root.Commands() {
		if group.HasSubCommands() { // cobra prints the help for a misspelled one, and succeeds
			group.Args, group.RunE = cobra.NoArgs, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
	return root
}

// kubernetesVersion is the version of every Kubernetes part; the Makefile reads it from go.mod and links it in.
var kubernetesVersion = "(version not linked in)"

// find returns the layout of the cluster the command is about.
func (c *cluster) find() (layout.Layout, error) { return layout.Find(c.name, c.dataDir) }

// running returns the layout of a cluster whose supervisor answers, and a client for that
// supervisor.
func (c *cluster) running(ctx context.Context) (layout.Layout, *control.Client, error) {
	l, err := c.find()
	if err != nil {
		return l, nil, err
	}
	if os.Geteuid() != 0 {
		return l, nil, errors.New("only root can use a cluster's supervisor: run the command with sudo")
	}
	client := control.NewClient(l.ControlSocket())
	if !client.Answers(ctx) {
		return l, nil, fmt.Errorf("cluster %s is not running: start it with `tarn-cluster up --name %s`", l.Name, l.Name)
	}
	return l, client, nil
}

// programs is the directory with the parts of a cluster: tarn-cluster.d beside this program.
func programs() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	return self + ".d", nil
}

// machine gathers the facts about this machine that components need.
func machine(l layout.Layout) (component.Machine, error) {
	dir, err := programs()
	if err != nil {
		return component.Machine{}, err
	}
	resolver, text := l.Config("resolv.conf"), host.Resolver()
	if err := layout.WriteFile(resolver, text, 0o644); err != nil {
		return component.Machine{}, err
	}
	return component.Machine{
		Programs: dir, RestrictOOM: !host.CanLowerOOMScore(), PacketFilter: host.PacketFilter(),
		ResolverConfig: resolver, NameServers: host.NameServers(text),
	}, nil
}

// baseImages returns the archive of the images every cluster starts with, and makes it if it is not
// cached.
func baseImages(ctx context.Context, say func(string)) (string, error) {
	dir, err := programs()
	if err != nil {
		return "", err
	}
	return image.BaseArchive(ctx, filepath.Join(dir, "pause"), layout.CacheRoot(), say)
}
