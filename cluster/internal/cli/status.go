package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"tarn.dev/tarn/cluster/internal/control"
	"tarn.dev/tarn/cluster/internal/host"
	"tarn.dev/tarn/cluster/internal/layout"
)

func newStatus(c *cluster) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether a cluster runs, and each of its components",
		Long: `Show whether a cluster runs, and for each component its process, how long it has run, how often it was started again and how it
last ended. Exit status 0 means the cluster is Ready.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("output %q: use table or json", output)
			}
			l, err := c.find()
			if err != nil {
				return err
			}
			s, err := control.NewClient(l.ControlSocket()).Status(cmd.Context())
			if errors.Is(err, os.ErrPermission) {
				return fmt.Errorf("cluster %s: %w: run the command with sudo", l.Name, err)
			}
			if err != nil {
				if s, err = silent(l); err != nil {
					return err
				}
			}
			if output == "json" {
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				err = encoder.Encode(s)
			} else {
				err = table(cmd.OutOrStdout(), s, time.Now())
			}
			if err != nil {
				return fmt.Errorf("printing the status: %w", err)
			}
			if s.Stage != control.Ready {
				return fmt.Errorf("cluster %s is %s", s.Name, s.Stage)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}

// silent is the status of a cluster whose supervisor does not answer: it is not running, or it
// hangs.
func silent(l layout.Layout) (control.Status, error) {
	s := control.Status{Name: l.Name, Stage: control.Down, DataDir: l.Data}
	h, err := host.Supervisor(l)
	if err != nil || h == nil {
		return s, err
	}
	defer h.Close()
	s.Stage, s.PID, s.Kubeconfig = control.Failed, h.PID, l.Kubeconfig()
	s.Message = "its supervisor does not respond: `tarn-cluster up --name " + l.Name + "` restarts it"
	if state, err := layout.ReadState(l.StateFile()); err == nil {
		s.Server = state.Server()
	}
	return s, nil
}

// ended lists the components of a started cluster that wait for their next restart. A component
// that keeps ending does not stop the others.
func ended(s control.Status) []string {
	var names []string
	for _, c := range s.Components {
		if s.Stage == control.Ready && c.State == control.Waiting {
			names = append(names, c.Name)
		}
	}
	return names
}

// table prints a status for people.
func table(out io.Writer, s control.Status, now time.Time) error {
	fmt.Fprintf(out, "cluster %s: %s", s.Name, s.Stage)
	if s.Message != "" && s.Stage != control.Ready {
		fmt.Fprintf(out, " (%s)", s.Message)
	}
	if down := ended(s); len(down) > 0 {
		fmt.Fprintf(out, ", but for %s: see `tarn-cluster logs %s --name %s`", strings.Join(down, ", "), down[0], s.Name)
	}
	fmt.Fprintln(out)
	if s.Stage == control.Down {
		return nil
	}
	fmt.Fprintf(out, "supervisor %d, API server %s\nkubeconfig %s\ndata in %s\n", s.PID, s.Server, s.Kubeconfig, s.DataDir)
	if s.Apps != "" {
		fmt.Fprintf(out, "REST API of applications %s/docs, certificate authority %s\n", s.Apps, s.AppsCA)
	}
	if s.Node != "" {
		fmt.Fprintf(out, "node %s at %s\n", s.Node, s.NodeIP)
	}
	if err := components(out, s.Components, now); err != nil {
		return err
	}
	for _, n := range s.Nodes {
		fmt.Fprintf(out, "\nnode %s at %s, zone %s: %s\n", n.Name, n.IP, n.Zone, nodeState(n))
		if len(n.Components) == 0 {
			continue
		}
		if err := components(out, n.Components, now); err != nil {
			return err
		}
	}
	return nil
}

// nodeState is the state of a further node in words.
func nodeState(n control.Node) string {
	text := n.State
	if n.Frozen {
		text += ", frozen"
	}
	if n.Isolated {
		text += ", isolated"
	}
	if n.Message != "" {
		text += " (" + n.Message + ")"
	}
	return text
}

// components prints the components of a cluster or of a further node.
func components(out io.Writer, all []control.Component, now time.Time) error {
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "COMPONENT\tSTATE\tPID\tUPTIME\tRESTARTS\tLAST EXIT")
	for _, c := range all {
		pid, uptime := "-", "-"
		if c.State == control.Running {
			pid, uptime = strconv.Itoa(c.PID), now.Sub(c.Started).Round(time.Second).String()
		}
		last := c.LastExit
		if c.Note != "" {
			last = c.Note
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", c.Name, c.State, pid, uptime, c.Restarts, last)
	}
	return w.Flush()
}
