package cli

import (
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"tarn.dev/tarn/cluster/internal/control"
	"tarn.dev/tarn/cluster/internal/layout"
)

const nodeFlag = "of this node; the default is the first, which also runs the control plane"

func newNode(c *cluster) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Add nodes to a running cluster, and let them fail",
		Long: `Add nodes to a running cluster, remove them, and let them fail as machines do. Each failure is undone by another command:

  cut       every process of the node dies at once, as in a power cut; "start" boots it with its data
  isolate   the node loses its network, and its processes continue; "join" connects it again
  freeze    all processes of the node are stopped; "thaw" continues them

The first node runs the control plane. It can neither fail nor be removed.`,
	}
	cmd.AddCommand(newNodeList(c))
	for _, one := range []struct{ request, done, short string }{
		{control.AddNode, "is Ready", "Add a node, and wait until it is ready"},
		{control.RemoveNode, "is removed", "End a node at once, and delete its Node object and its data; drain it first to move its pods"},
		{control.CutNode, "is off", "Kill every process of a node at once, as a power cut does"},
		{control.StartNode, "is Ready", "Boot a node that is off, and wait until it is ready"},
		{control.IsolateNode, "is isolated", "Cut the cable of a node: its processes run without a network"},
		{control.JoinNode, "is connected", "Connect a node again that was isolated"},
		{control.FreezeNode, "is frozen", "Stop all processes of a node with SIGSTOP"},
		{control.ThawNode, "runs", "Continue the processes of a frozen node"},
	} {
		args, usage := cobra.ExactArgs(1), one.request+" NAME"
		if one.request == control.AddNode {
			args, usage = cobra.MaximumNArgs(1), "add [NAME]"
		}
		cmd.AddCommand(&cobra.Command{
			Use: usage, Short: one.short, Args: args,
			RunE: func(cmd *cobra.Command, args []string) error {
				began := time.Now()
				name, err := requestNode(cmd, c, one.request, args)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "node %s %s (%.1fs)\n", name, one.done, time.Since(began).Seconds())
				return nil
			},
		})
	}
	return cmd
}

// requestNode sends a request about a node to the supervisor, and returns the name of the node.
func requestNode(cmd *cobra.Command, c *cluster, request string, args []string) (string, error) {
	l, client, err := c.running(cmd.Context())
	if err != nil {
		return "", err
	}
	if len(args) > 0 {
		return args[0], client.Node(cmd.Context(), args[0], request)
	}
	state, err := layout.ReadState(l.StateFile())
	if err != nil {
		return "", err
	}
	_, n, err := state.AddNode("")
	if err != nil {
		return "", err
	}
	return n.Name, client.Node(cmd.Context(), n.Name, request)
}

func newNodeList(c *cluster) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the nodes of a cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, client, err := c.running(cmd.Context())
			if err != nil {
				return err
			}
			s, err := client.Status(cmd.Context())
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tSTATE\tADDRESS\tZONE")
			if s.Node != "" {
				zone := ""
				if len(s.Nodes) > 0 {
					zone = layout.Node{}.Zone()
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Node, s.Stage, s.NodeIP, zone)
			}
			for _, n := range s.Nodes {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", n.Name, nodeState(n), n.IP, n.Zone)
			}
			return w.Flush()
		},
	}
}

// ofNode returns the layout of a node of the cluster. Without a name, it is that of the first.
func ofNode(l layout.Layout, name string) (layout.Layout, error) {
	if name == "" || name == l.NodeName() {
		return l, nil
	}
	state, err := layout.ReadState(l.StateFile())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return l, err
	}
	n, found := state.Node(name)
	if !found {
		return l, fmt.Errorf("cluster %s has no node %s: see `tarn-cluster node list --name %[1]s`", l.Name, name)
	}
	return l.OfNode(n), nil
}

// offError reports that a node does not run.
func offError(l layout.Layout) error {
	return fmt.Errorf("node %s is off: start it with `tarn-cluster node start %[1]s --name %s`", l.Node.Name, l.Name)
}
