package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"tarn.dev/tarn/deploy"
	"tarn.dev/tarn/internal/kube"
)

func newInstallCommand() *cobra.Command {
	var to connection
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Apply what Tarn needs in a cluster: resources, roles, policies",
		Long: "Apply Tarn's custom resources, namespace, service accounts, roles, admission policies and\n" +
			"CSI driver, and wait until the API server serves and enforces them. Running it again changes\n" +
			"only what differs. It starts no process of Tarn's.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := to.client()
			if err != nil {
				return err
			}
			objects, err := deploy.Objects()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return kube.Install(ctx, c, objects, func(kind, name string) { cmd.Printf("applied %s %s\n", kind, name) })
		},
	}
	to.register(cmd.Flags())
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the API server to serve what was applied")
	return cmd
}
