package cli

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/control"
)

func newKubeconfig(c *cluster) *cobra.Command {
	var content bool
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of the administrator's kubeconfig",
		Long: `Print the path of the administrator's kubeconfig, for

  export KUBECONFIG=$(tarn-cluster kubeconfig)

Only root can read the file. With --content the file itself is printed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := c.find()
			if err != nil {
				return err
			}
			f, err := os.Open(l.Kubeconfig())
			if os.IsNotExist(err) {
				return fmt.Errorf("cluster %s has no kubeconfig yet: start it with `tarn-cluster up --name %s`", l.Name, l.Name)
			}
			if err != nil {
				return fmt.Errorf("reading the kubeconfig: %w: run the command with sudo", err)
			}
			defer f.Close()
			if !content {
				fmt.Fprintln(cmd.OutOrStdout(), l.Kubeconfig())
				return nil
			}
			_, err = io.Copy(cmd.OutOrStdout(), f)
			return err
		},
	}
	cmd.Flags().BoolVar(&content, "content", false, "print the file, not its path")
	return cmd
}

func newLogs(c *cluster) *cobra.Command {
	var follow bool
	var node string
	known := append([]string{"supervisor", "tarn-install", "image-import"}, component.Names()...)
	cmd := &cobra.Command{
		Use:       "logs COMPONENT",
		Short:     "Print the log of a component",
		Long:      "Print the log of a component: one of " + strings.Join(known, ", ") + ".",
		Args:      cobra.ExactArgs(1),
		ValidArgs: known,
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := c.find()
			if err != nil {
				return err
			}
			if !slices.Contains(known, args[0]) {
				return fmt.Errorf("component %q: use one of %s", args[0], strings.Join(known, ", "))
			}
			if l, err = ofNode(l, node); err != nil {
				return err
			}
			path := l.Log(args[0])
			f, err := os.Open(path)
			if os.IsNotExist(err) {
				return fmt.Errorf("component %s of cluster %s has no log: it has not been started", args[0], l.Name)
			}
			if err != nil {
				return fmt.Errorf("reading a log: %w", err)
			}
			defer f.Close()
			if !follow {
				_, err = io.Copy(cmd.OutOrStdout(), f)
				return err
			}
			tail, err := exec.LookPath("tail")
			if err != nil {
				return fmt.Errorf("following a log needs the program tail: %w", err)
			}
			return syscall.Exec(tail, []string{"tail", "-n", "+1", "-F", path}, os.Environ())
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "keep printing new lines")
	cmd.Flags().StringVar(&node, "node", "", nodeFlag)
	return cmd
}

func newRestart(c *cluster) *cobra.Command {
	var kill bool
	var node string
	cmd := &cobra.Command{
		Use:       "restart COMPONENT",
		Short:     "Restart one component",
		Long:      "Stop one component with SIGTERM, or with SIGKILL to simulate a crash; the supervisor starts it again. One of " + strings.Join(component.Names(), ", ") + ".",
		Args:      cobra.ExactArgs(1),
		ValidArgs: component.Names(),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, client, err := c.running(cmd.Context())
			if err != nil {
				return err
			}
			if l, err = ofNode(l, node); err != nil {
				return err
			}
			if l.Node.Name != "" {
				client = control.NewClient(l.ControlSocket())
				if !client.Answers(cmd.Context()) {
					return offError(l)
				}
			}
			return client.Restart(cmd.Context(), args[0], kill)
		},
	}
	cmd.Flags().BoolVar(&kill, "kill", false, "use SIGKILL")
	cmd.Flags().StringVar(&node, "node", "", nodeFlag)
	return cmd
}
