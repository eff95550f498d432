package cli

import (
	"path/filepath"

	"github.com/spf13/cobra"
)

// The name by which kubectl finds the plugin, and that of the program that completes its arguments.
const (
	pluginName          = "kubectl-tarn"
	pluginCompleterName = "kubectl_complete-tarn"
)

// CalledAs adapts the root command to the name that the program was called by, through a link or a
// copy. As kubectl-tarn, its help shows `kubectl tarn`. As kubectl_complete-tarn, it completes the
// arguments; the last of them is the word to complete.
func CalledAs(root *cobra.Command, program string, args []string) {
	switch filepath.Base(program) {
	case pluginName:
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl tarn"}
	case pluginCompleterName:
		root.SetArgs(append([]string{cobra.ShellCompRequestCmd}, args...))
	}
}
