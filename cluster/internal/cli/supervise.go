package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"
	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/layout"
	"tarn.dev/tarn/cluster/internal/supervisor"
)

// superviseFile is how `up` passes its task to the supervisor.
type superviseFile struct {
	Layout  layout.Layout
	State   layout.State
	Machine component.Machine
	Images  string
	// TarnImages is the archive of the tarn program's image.
	TarnImages string
}

// greetingOK is what the supervisor writes to file descriptor 3 once it answers. Anything else is
// an error message.
const greetingOK = "ok"

func newSupervise() *cobra.Command {
	return &cobra.Command{
		Use:    "supervise FILE",
		Short:  "Run a cluster in the foreground; started by up, in namespaces of its own",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			raw, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("reading the supervisor's configuration: %w", err)
			}
			var task superviseFile
			if err := json.Unmarshal(raw, &task); err != nil {
				return fmt.Errorf("reading the supervisor's configuration: %w", err)
			}
			task.Machine.Processors = runtime.GOMAXPROCS(0) // read here, because the caller's GOMAXPROCS does not reach this process
			syscall.CloseOnExec(3)
			syscall.Umask(0o022)
			greeting := os.NewFile(3, "greeting")
			return supervisor.Run(supervisor.Config{
				Layout: task.Layout, State: task.State, Machine: task.Machine, Images: task.Images, TarnImages: task.TarnImages,
				Greet: func(err error) {
					text := greetingOK
					if err != nil {
						text = err.Error()
					}
					greeting.WriteString(text) //nolint:errcheck // `up` was interrupted: the cluster starts all the same
					greeting.Close()
				},
			})
		},
	}
}
