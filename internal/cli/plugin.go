package cli

import (
	"path/filepath"

	"github.com/spf13/cobra"
)

// The names by which kubectl finds a plugin, and what completes its command line.
const (
	pluginName          = "kubectl-tarn"
	pluginCompleterName = "kubectl_complete-tarn"
)

// CalledAs makes the root command what the program was called as, by a link or a copy:
// as kubectl-tarn its help is that of `kubectl tarn`; as kubectl_complete-tarn it
// completes the arguments, the last of which is the word to complete.
func CalledAs(root *cobra.Command, program string, args []string) {
	switch filepath.Base(program) {
	case pluginName:
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl tarn"}
	case pluginCompleterName:
		root.SetArgs(append([]string{cobra.ShellCompRequestCmd}, args...))
	}
}
