package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"tarn.dev/tarn/cluster/internal/control"
	"tarn.dev/tarn/cluster/internal/host"
	"tarn.dev/tarn/cluster/internal/layout"
)

// shutdownLimit is how long an orderly shutdown may take: five rounds of the supervisor's grace and
// a margin.
const shutdownLimit = 75 * time.Second

func newDown(c *cluster) *cobra.Command {
	var keep bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop a cluster and remove it",
		Long: `Stop a cluster and remove everything it made: processes, containers, mounts, network interface, cgroups, loop devices, and its data.

With --keep-data the cluster is shut down like a machine and its data stays: the next "up" continues with it. Pods are stopped
gracefully, those with system priorities last, and killed after 10 s. Without --keep-data, all processes are killed at once, as
there is nothing to save. A cluster that does not exist is not an error.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			began := time.Now()
			existed, err := down(cmd.Context(), c, keep)
			if err != nil {
				return err
			}
			if !existed {
				fmt.Fprintf(cmd.ErrOrStderr(), "cluster %s does not exist\n", c.name)
				return nil
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "cluster %s is down (%.1fs)\n", c.name, time.Since(began).Seconds())
			return nil
		},
	}
	cmd.Flags().BoolVar(&keep, "keep-data", false, "shut down in order and keep the data for the next up")
	return cmd
}

// down removes or stops the cluster and reports whether there was one.
func down(ctx context.Context, c *cluster, keep bool) (existed bool, err error) {
	l, err := c.find()
	if err != nil {
		return false, err
	}
	if os.Geteuid() != 0 {
		return false, errors.New("only root can manage a cluster: run the command with sudo")
	}
	unlock, err := l.LockCluster()
	if err != nil {
		return false, err
	}
	defer unlock()
	running, err := host.Supervisor(l)
	if err != nil {
		return false, err
	}
	if running != nil {
		existed = true
		defer running.Close()
		if err := stop(ctx, l, running, keep); err != nil {
			return existed, err
		}
	}
	state, err := layout.ReadState(l.StateFile())
	hasState := err == nil
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		state, hasState = layout.State{}, true // damaged, but ours by its name; it is to be removed anyway
		if keep {
			return existed, err
		}
	}
	if _, err := os.Stat(l.Run); err == nil {
		existed = true
	}
	if err := sweep(l, state, hasState, keep); err != nil {
		return existed, err
	}
	existed = existed || hasState && !keep
	return existed, host.SweepShared(l)
}

// sweep removes the remains of a cluster without processes. A directory without our state file is
// left alone, whatever --data-dir says. The exception is a first start that was killed before it
// wrote the file.
func sweep(l layout.Layout, state layout.State, hasState, keep bool) error {
	if (hasState || l.Begun()) && !keep {
		return host.Remove(l, state)
	}
	return host.Sweep(l, state.Loops)
}

// stop ends every process of the cluster: in order where its data is kept, else at once.
func stop(ctx context.Context, l layout.Layout, running *host.Handle, keep bool) error {
	if keep {
		limit := shutdownLimit
		if state, err := layout.ReadState(l.StateFile()); err == nil && len(state.Nodes) > 0 {
			limit *= 2 // they end before the first node
		}
		if err := control.NewClient(l.ControlSocket()).Stop(ctx); err == nil && running.Wait(limit) == nil {
			return nil
		}
	}
	return end(running)
}
