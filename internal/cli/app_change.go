package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	appplan "tarn.dev/tarn/internal/app/plan"
)

func newAppScaleCommand(flags *appFlags) *cobra.Command {
	var wait waiting
	cmd := &cobra.Command{
		Use:   "scale ID PODS",
		Short: "Change the number of pods of an app",
		Long: "Change the number of pods of an app. An app with a ReadWriteOnce volume can have only one pod. What counts is the access\n" +
			"mode of the live claim, not that in the file. 0 and 1 are always allowed.",
		Example:           "  tarn app scale shop 3\n  tarn app scale shop 0 --namespace web",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: flags.completeApps(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			pods, err := strconv.ParseInt(args[1], 10, 32)
			if err != nil {
				return misuse(cmd, "PODS %q is not a number of pods; write a whole number such as 3", args[1])
			}
			calls, namespace, err := flags.connect()
			if err != nil {
				return err
			}
			app, err := calls.Scale(cmd.Context(), namespace, args[0], int32(pods))
			if err != nil {
				return told(cmd, "", err)
			}
			app, failed := wait.settled(cmd, calls, app)
			return cmp.Or(flags.output.print(cmd.OutOrStdout(), app, func(w io.Writer) error { return printOutcome(w, app) }), failed)
		},
	}
	wait.register(cmd)
	flags.output.register(cmd)
	return cmd
}

func newAppDeleteCommand(flags *appFlags) *cobra.Command {
	var wait waiting
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete ID",
		Short: "Delete an app and its volumes, except those to preserve",
		Long: "Delete an app: its pods and its volumes with their data, except volumes with preserveOnDelete. Without --yes the\n" +
			"command only lists what it would delete and keep. A later app with the same ID gets the preserved volumes again.",
		Example:           "  tarn app delete shop\n  tarn app delete shop --yes",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: flags.completeApps(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			calls, namespace, err := flags.connect()
			if err != nil {
				return err
			}
			app, err := calls.Get(cmd.Context(), namespace, args[0])
			if err != nil {
				return told(cmd, "", err)
			}
			if !yes {
				printFate(cmd.OutOrStdout(), app)
				return errors.New("nothing was changed; to do it, add --yes")
			}
			deletion, err := calls.Delete(cmd.Context(), namespace, app.ID)
			if err != nil {
				return told(cmd, "", err)
			}
			gone, err := wait.gone(cmd, calls, app)
			if err != nil {
				return err
			}
			return flags.output.print(cmd.OutOrStdout(), deletion, func(w io.Writer) error { return printDeletion(w, deletion, gone) })
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "delete them; data on deleted volumes is lost, unless their class has a trash")
	wait.register(cmd)
	flags.output.register(cmd)
	return cmd
}

// printFate writes what happens to each volume when an app is deleted.
func printFate(w io.Writer, app *appplan.App) {
	fmt.Fprintf(w, "would delete app %s, %s\n", app.ID, count(int(app.Replicas), "pod"))
	for _, v := range slices.Concat(app.Volumes, app.Detached) {
		what := "would delete"
		if v.PreserveOnDelete {
			what = "would keep"
		}
		fmt.Fprintf(w, "%s volume %s, %dGi, claim %s\n", what, v.Name, v.SizeGi, v.ClaimName)
	}
}

func printDeletion(w io.Writer, d *appplan.Deletion, gone bool) error {
	state := "is being deleted"
	if gone {
		state = "is deleted"
	}
	fmt.Fprintf(w, "app %s %s\n", d.ID, state)
	if len(d.Deleted) > 0 {
		fmt.Fprintf(w, "deleted with it: %s\n", strings.Join(d.Deleted, ", "))
	}
	if len(d.Preserved) > 0 {
		fmt.Fprintf(w, "preserved: %s\n", strings.Join(d.Preserved, ", "))
	}
	return nil
}
