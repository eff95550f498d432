// Command tarn is everything of Tarn in one binary: the controller, the node agent
// and the command line. This folder only wires the parts together.
package main

import (
	"errors"
	"fmt"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"

	"tarn.dev/tarn/internal/cli"
)

func main() {
	root := cli.NewRoot()
	root.AddCommand(newControllerCommand(), newNodeCommand(), newScrubCommand())
	if err := root.ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		os.Exit(exitCode(err))
	}
}

// exitCode prints an error, unless the command has said all it had to say, and
// gives the status to exit with.
func exitCode(err error) int {
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "tarn:", err)
	return 1
}
