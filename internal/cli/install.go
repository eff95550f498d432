package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/deploy"
	"tarn.dev/tarn/internal/kube"
)

func newInstallCommand() *cobra.Command {
	var kubeconfig string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Apply what Tarn needs in a cluster: resources, roles, policies",
		Long: "Apply Tarn's custom resources, namespace, service accounts, roles, admission policies and\n" +
			"CSI driver, and wait until the API server serves and enforces them. Running it again changes\n" +
			"only what differs. It starts no process of Tarn's.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := restConfig(kubeconfig)
			if err != nil {
				return err
			}
			c, err := client.New(config, client.Options{Scheme: kube.Scheme()})
			if err != nil {
				return fmt.Errorf("reaching the API server: %w", err)
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
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig file; without it $KUBECONFIG or ~/.kube/config")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the API server to serve what was applied")
	return cmd
}
