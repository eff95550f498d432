// Command tarn is all of Tarn in one binary: the controller, the node agent, the REST API and the
// command line. This directory only wires them together.
package main

import (
	"os"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	"tarn.dev/tarn/internal/cli"
)

func main() {
	root := newRoot()
	cli.CalledAs(root, os.Args[0], os.Args[1:])
	os.Exit(cli.ExitStatus(root.ExecuteContext(ctrl.SetupSignalHandler()), os.Stderr))
}

// newRoot returns the whole command line.
func newRoot() *cobra.Command {
	return cli.NewRoot(newAPICommand(), newControllerCommand(), newNodeCommand(), newScrubCommand())
}
