// Package cli is the command line: one file a subcommand. It talks to the API
// server and to Tarn's own words; it knows no controller and no node agent.
package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// Namespace is where Tarn itself lives.
const Namespace = "tarn-system"

// Version is the version of this build, set at link time.
var Version = "v0.0.0-dev"

// NewRoot is the command `tarn` with every subcommand that needs no wiring.
func NewRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "tarn",
		Short:         "Persistent volumes for Kubernetes that are there when they are asked for",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newAuditCommand(), newExplainCommand(), newInstallCommand(), newJinjaCommand(), newPavCommand(), newStatusCommand(), newTrashCommand(), newUndeleteCommand(), newVersionCommand())
	return root
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "tarn %s %s %s/%s\n", Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
