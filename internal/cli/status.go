package cli

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"tarn.dev/tarn/internal/cli/status"
	"tarn.dev/tarn/internal/cli/terminal"
)

// statusTime bounds an answer.
const statusTime = 30 * time.Second

func newStatusCommand() *cobra.Command {
	var output output
	var to connection
	var namespace string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of Tarn and all problems",
		Long: "Show the state of Tarn at a glance: the leading controller, node agents, provisioners, pools,\n" +
			"apps, claims, volumes by state, the trash and stages. Then list the problems, each with a command that helps.\n\n" +
			"Everything is read live with your own rights. With --namespace only the claims and apps of that namespace are read,\n" +
			"for users who may read only that namespace. Nothing is changed.\n\n" +
			"The exit status is 0 if everything is healthy, and 1 if there are problems or something may not be read.",
		Example: "  tarn status\n" +
			"  tarn status --namespace shop\n" +
			"  tarn status --output json | jq -r '.problems[].command'",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runStatus(cmd, to, namespace, output) },
	}
	output.register(cmd)
	to.register(cmd, cmd.Flags())
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "only this namespace; the default is the whole cluster")
	completeFlag(cmd, "namespace", &to, namespaceKind)
	return cmd
}

func runStatus(cmd *cobra.Command, to connection, namespace string, output output) error {
	config, err := to.config()
	if err != nil {
		return err
	}
	c, err := to.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), statusTime, errors.New("the API server did not respond within the timeout"))
	defer cancel()
	now := serverTime(ctx, config)
	report, err := status.Status(ctx, status.Source{Client: c, System: Namespace, Namespace: namespace}, now)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout() // not what print gives, which lets no colours through
	err = output.print(out, report, func(io.Writer) error { return report.Print(out, terminal.Of(out), now) })
	if err == nil && !report.Healthy {
		return exitError{1}
	}
	return err
}
