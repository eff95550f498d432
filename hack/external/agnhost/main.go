// Command agnhost has the commands of Kubernetes' test image of that name that the storage suite
// uses: pods that look at a mount, and pods that only stay.
package main

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/kubernetes/test/images/agnhost/mounttest"
	"k8s.io/kubernetes/test/images/agnhost/pause"
)

func main() {
	root := &cobra.Command{Use: "agnhost"}
	root.AddCommand(mounttest.CmdMounttest, pause.CmdPause)
	if root.Execute() != nil {
		os.Exit(1)
	}
}
