package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"
	"tarn.dev/tarn/cluster/internal/supervisor"
)

// greetingOK is what the supervisor writes to file descriptor 3 once it answers. Anything else is
// an error message.
const greetingOK = "ok"

func newSupervise() *cobra.Command {
	return &cobra.Command{
		Use:    "supervise FILE",
		Short:  "Run a cluster, or a further node of one, in the foreground; started by up, in namespaces of its own",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			raw, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("reading the supervisor's configuration: %w", err)
			}
			var task supervisor.Config
			if err := json.Unmarshal(raw, &task); err != nil {
				return fmt.Errorf("reading the supervisor's configuration: %w", err)
			}
			task.Machine.Processors = runtime.GOMAXPROCS(0) // read here, because the caller's GOMAXPROCS does not reach this process
			syscall.Umask(0o022)
			task.Greet = func(error) {} // nobody waits for the greeting of a further node's supervisor
			if task.Layout.Node.Name == "" {
				task.Greet = greet()
			}
			return supervisor.Run(task)
		},
	}
}

// greet returns the function that greets `up`.
func greet() func(error) {
	syscall.CloseOnExec(3)
	greeting := os.NewFile(3, "greeting")
	return func(err error) {
		text := greetingOK
		if err != nil {
			text = err.Error()
		}
		greeting.WriteString(text) //nolint:errcheck // `up` was interrupted: the cluster starts all the same
		greeting.Close()
	}
}
