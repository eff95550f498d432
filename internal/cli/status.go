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
		Short: "Say at a glance how everything stands, and what is wrong",
		Long: "Say at a glance how everything of Tarn stands: the controller that leads, the node agents, provisioners, pools,\n" +
			"apps, claims, volumes by state, the trash, stages; and then what is wrong, each with the command to go on with.\n\n" +
			"Everything is read live with your own rights. With --namespace only the claims and apps of that namespace are\n" +
			"looked at, for whoever may read no more than that. Nothing is changed.\n\n" +
			"The exit status is 0 where all is well, and 1 where something is wrong or may not be read.",
		Example: "  tarn status\n" +
			"  tarn status --namespace shop\n" +
			"  tarn status --output json | jq -r '.problems[].command'",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runStatus(cmd, to, namespace, output) },
	}
	output.register(cmd)
	to.register(cmd, cmd.Flags())
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "only this namespace; without it the whole cluster")
	completeFlag(cmd, "namespace", &to, namespaceKind)
	return cmd
}

func runStatus(cmd *cobra.Command, to connection, namespace string, output output) error {
	c, err := to.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), statusTime, errors.New("the API server has not answered in time"))
	defer cancel()
	now := time.Now()
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
