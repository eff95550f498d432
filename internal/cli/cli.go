// Package cli is the command line, with one file for each subcommand. It talks to the API server
// and to Tarn's domain packages; it knows no controller and no node agent.
package cli

import (
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// Namespace is the namespace that Tarn itself runs in.
const Namespace = tarnv1.SystemNamespace

// Version is the version of this build, set at link time.
var Version = "v0.0.0-dev"

// Groups of commands, as shown by --help.
const (
	groupLook   = "look"
	groupApps   = "apps"
	groupData   = "data"
	groupMakers = "makers"
	groupRun    = "run"
)

// NewRoot returns the command `tarn` with every subcommand. The caller passes those subcommands
// that need wiring.
func NewRoot(wired ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:   "tarn",
		Short: "Persistent volumes for Kubernetes, ready when a pod needs them",
		Long: "Persistent volumes for Kubernetes that are ready when a pod needs them and that survive mistakes. You write a\n" +
			"provisioner as a pod template.\n\n" +
			"Tarn uses the same cluster as kubectl. If kubectl-tarn is on the PATH, `kubectl tarn` is the same command.\n\n" + exitHelp,
		Example: "  tarn status\n" +
			"  tarn explain claim shop/data\n" +
			"  tarn app deploy --file paas.toml",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddGroup(
		&cobra.Group{ID: groupLook, Title: "Check the state:"},
		&cobra.Group{ID: groupApps, Title: "Deploy applications:"},
		&cobra.Group{ID: groupData, Title: "Restore data:"},
		&cobra.Group{ID: groupMakers, Title: "Write provisioners:"},
		&cobra.Group{ID: groupRun, Title: "Install and run Tarn:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, cmd := range commands {
			cmd.GroupID = group
		}
		root.AddCommand(commands...)
	}
	add(groupLook, newStatusCommand(), newExplainCommand(), newAuditCommand())
	add(groupApps, newAppCommand(), newVolumeCommand())
	add(groupData, newTrashCommand(), newUndeleteCommand())
	add(groupMakers, newPavCommand(), newJinjaCommand())
	add(groupRun, newInstallCommand(), newProvisionerCommand(), newUninstallCommand(), newRetryCommand(), newForgetCommand())
	add(groupRun, wired...)
	root.Version = versionLine()
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(newVersionCommand())
	tellUsage(root)
	return root
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
}

func versionLine() string {
	return fmt.Sprintf("tarn %s %s %s/%s", Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

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
