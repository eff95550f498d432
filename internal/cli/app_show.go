package cli

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/duration"

	appplan "tarn.dev/tarn/internal/app/plan"
)

func newAppListCommand(flags *appFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the apps of a namespace",
		Example: "  tarn app list\n  tarn app list --namespace web --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			calls, namespace, err := flags.connect()
			if err != nil {
				return err
			}
			all, err := calls.List(cmd.Context(), namespace)
			if err != nil {
				return told(cmd, "", err)
			}
			now := time.Now()
			return flags.output.print(cmd.OutOrStdout(), all, func(w io.Writer) error { return printApps(w, all, now) })
		},
	}
	flags.output.register(cmd)
	return cmd
}

func printApps(w io.Writer, all []appplan.App, now time.Time) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "APP\tSTATUS\tPODS\tVOLUMES\tIMAGE\tAGE\tMESSAGE")
	for _, a := range all {
		fmt.Fprintf(table, "%s\t%s\t%d/%d\t%d\t%s\t%s\t%s\n", a.ID, a.Status, a.ReadyReplicas, a.Replicas, len(a.Volumes), dash(a.Image),
			duration.HumanDuration(max(now.Sub(a.CreatedAt), 0)), dash(appplan.Brief(a.Message)))
	}
	return table.Flush()
}

func newAppShowCommand(flags *appFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:               "show ID",
		Short:             "Show an app, its volumes, and its preserved volumes",
		Example:           "  tarn app show shop\n  tarn app show shop --namespace web --output yaml",
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
			return flags.output.print(cmd.OutOrStdout(), app, func(w io.Writer) error { return printApp(w, app) })
		},
	}
	flags.output.register(cmd)
	return cmd
}

func printApp(w io.Writer, app *appplan.App) error {
	if err := printOutcome(w, app); err != nil {
		return err
	}
	if app.Image != "" {
		port := ""
		if app.Port > 0 {
			port = fmt.Sprintf(", port %d", app.Port)
		}
		fmt.Fprintf(w, "image %s%s\n", app.Image, port)
	}
	if len(app.Volumes)+len(app.Detached) > 0 {
		fmt.Fprintln(w)
		if err := printVolumes(w, []appplan.App{*app}); err != nil {
			return err
		}
	}
	return printWarnings(w, app.Warnings)
}

// printVolumes writes the volumes of apps, mounted ones first.
func printVolumes(w io.Writer, all []appplan.App) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "APP\tVOLUME\tSTATUS\tSIZE\tUSED\tACCESS\tCLASS\tMOUNTED AT\tON DELETE\tCLAIM\tMESSAGE")
	for _, a := range all {
		for i, v := range slices.Concat(a.Volumes, a.Detached) {
			at := v.MountPath
			if i >= len(a.Volumes) {
				at = "(detached)"
			}
			fate := "deleted"
			if v.PreserveOnDelete {
				fate = "kept"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%dGi\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", a.ID, v.Name, v.Status, v.SizeGi, used(v), v.AccessMode, dash(v.StorageClass),
				dash(at), fate, v.ClaimName, dash(v.Message))
		}
	}
	return table.Flush()
}

func used(v appplan.Volume) string {
	if v.UsedBytes == nil {
		return "-"
	}
	const mebi = 1 << 20
	return resource.NewQuantity((*v.UsedBytes+mebi-1)/mebi*mebi, resource.BinarySI).String()
}
