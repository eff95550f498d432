// Command tarn-cluster runs a real Kubernetes on this machine, with Tarn in it. See internal/cli.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"tarn.dev/tarn/cluster/internal/cli"
)

// init keeps all other goroutines off the first thread. Some move their thread to other namespaces
// for good, and /proc shows the mounts of the first thread as those of the process.
func init() { runtime.LockOSThread() }

func main() {
	ctx := context.Background()
	// The supervisor, process 1 of its namespace, handles these signals itself.
	if os.Getpid() != 1 {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
		defer stop()
	}
	if err := cli.New().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "tarn-cluster:", err)
		os.Exit(1)
	}
}
