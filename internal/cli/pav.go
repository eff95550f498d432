package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
)

func newPavCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pav",
		Short: "Develop provisioners: begin them, check them, see their pods, test them",
	}
	cmd.PersistentFlags().StringSlice(stepNamespacesFlag, steppod.DefaultNamespaces, "namespaces where step pods may run, as for tarn controller; the first is the default of templates that name none; * for all")
	cmd.AddCommand(newPavNewCommand(), newPavLintCommand(), newPavRenderCommand(), newPavTestCommand())
	return cmd
}

const stepNamespacesFlag = "step-namespaces"

// stepNamespaces reads the flag for the namespaces of step pods.
func stepNamespaces(cmd *cobra.Command) (steppod.Namespaces, error) {
	if cmd.Flag(stepNamespacesFlag) == nil {
		return steppod.DefaultNamespaces, nil
	}
	list, err := cmd.Flags().GetStringSlice(stepNamespacesFlag)
	return list, cmp.Or(err, steppod.Namespaces(list).Check())
}

// standardInput is the file name that stands for standard input.
const standardInput = "-"

// readInput reads a file or standard input, and returns the name to show for it.
func readInput(cmd *cobra.Command, file string) (name string, text []byte, err error) {
	if file == standardInput {
		text, err = io.ReadAll(cmd.InOrStdin())
		return "standard input", text, err
	}
	text, err = os.ReadFile(file)
	return file, text, err
}

// readProvisioner reads the one PavProvisioner of a file, or the one with that name. If lint finds
// errors in it, they are returned in place of a provisioner. Warnings are printed.
func readProvisioner(cmd *cobra.Command, file, name string) (*pavv1.PavProvisioner, *manifest, error) {
	shown, text, err := readInput(cmd, file)
	if err != nil {
		return nil, nil, err
	}
	all, findings := readManifests(shown, text)
	var found []*manifest
	var names []string
	for _, m := range all {
		if !m.isProvisioner() || name != "" && m.name() != name {
			continue
		}
		found, names = append(found, m), append(names, m.name())
	}
	switch {
	case len(findings) > 0 && len(found) != 1:
		findings.print(cmd.ErrOrStderr())
		return nil, nil, exitError{1}
	case len(found) == 0 && name != "":
		return nil, nil, fmt.Errorf("%s has no PavProvisioner %q; see --name", shown, name)
	case len(found) == 0:
		return nil, nil, fmt.Errorf("%s has no PavProvisioner", shown)
	case len(found) > 1:
		return nil, nil, fmt.Errorf("%s has %d PavProvisioners: %s; choose one with --name", shown, len(found), strings.Join(names, ", "))
	}
	namespaces, err := stepNamespaces(cmd)
	if err != nil {
		return nil, nil, err
	}
	p, findings := checkProvisioner(found[0], namespaces)
	if errors := findings.only(levelError); len(errors) > 0 {
		errors.print(cmd.ErrOrStderr())
		return nil, nil, exitError{1}
	}
	findings.only(levelWarning).print(cmd.ErrOrStderr())
	return p, found[0], nil
}
