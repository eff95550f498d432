package cli

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	appplan "tarn.dev/tarn/internal/app/plan"
)

func newVolumeCommand() *cobra.Command {
	var flags appFlags
	cmd := &cobra.Command{
		Use:   "volume",
		Short: "List and expand the volumes of applications",
		Long: "List and expand the volumes of applications. For other volumes use kubectl get pvc and tarn explain volume.\n\n" +
			"The commands call Kubernetes, or with --server or $TARN_SERVER a server of `tarn api`.",
	}
	flags.register(cmd)
	cmd.AddCommand(newVolumeListCommand(&flags), newVolumeResizeCommand(&flags))
	return cmd
}

func newVolumeListCommand(flags *appFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [APP]",
		Short: "List the volumes of an app, or of all apps of a namespace",
		Long: "List the volumes of an app, or of all apps of a namespace, from their live claims: status, size, access mode, class,\n" +
			"and what happens to each when its app is deleted. Volumes that are no longer mounted are listed as detached. Only a\n" +
			"server of `tarn api` knows how much of a volume is in use.",
		Example:           "  tarn volume list\n  tarn volume list shop --output json",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: flags.completeApps(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			calls, namespace, err := flags.connect()
			if err != nil {
				return err
			}
			all, err := volumesOf(cmd, calls, namespace, args)
			if err != nil {
				return told(cmd, "", err)
			}
			rows := []volumeRow{}
			for _, a := range all {
				for _, v := range a.Volumes {
					rows = append(rows, volumeRow{a.ID, false, v})
				}
				for _, v := range a.Detached {
					rows = append(rows, volumeRow{a.ID, true, v})
				}
			}
			return flags.output.print(cmd.OutOrStdout(), rows, func(w io.Writer) error { return printVolumes(w, all) })
		},
	}
	flags.output.register(cmd)
	return cmd
}

// volumeRow is a volume in JSON and YAML: the API's fields, and the app that it belongs to.
type volumeRow struct {
	App      string `json:"app"`
	Detached bool   `json:"detached"`
	appplan.Volume
}

// volumesOf returns the named app, or all apps, with their volumes.
func volumesOf(cmd *cobra.Command, calls apps, namespace string, args []string) ([]appplan.App, error) {
	if len(args) == 0 {
		return calls.List(cmd.Context(), namespace)
	}
	app, err := calls.Get(cmd.Context(), namespace, args[0])
	if err != nil {
		return nil, err
	}
	// The bytes in use come from a call of their own, because it is expensive.
	if app.Volumes, err = calls.Volumes(cmd.Context(), namespace, args[0]); err != nil {
		return nil, err
	}
	return []appplan.App{*app}, nil
}

func newVolumeResizeCommand(flags *appFlags) *cobra.Command {
	var wait waiting
	cmd := &cobra.Command{
		Use:   "resize APP VOLUME SIZE",
		Short: "Expand a volume while the app runs, and wait until it is done",
		Long: "Expand a volume while the app runs: its storage, and then its file system. SIZE is in GiB, such as 20 or 20Gi. A volume\n" +
			"never shrinks, and its class must allow expansion. A later deploy with a smaller size does not shrink it.",
		Example:           "  tarn volume resize shop data 20Gi",
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: flags.completeApps(flags.volumesOfApp),
		RunE: func(cmd *cobra.Command, args []string) error {
			size, err := strconv.ParseInt(strings.TrimSuffix(args[2], "Gi"), 10, 64)
			if err != nil {
				return misuse(cmd, "SIZE %q is not a valid size in GiB; write it as 20 or 20Gi", args[2])
			}
			calls, namespace, err := flags.connect()
			if err != nil {
				return err
			}
			resized, err := calls.Resize(cmd.Context(), namespace, args[0], args[1], size)
			if err != nil {
				return told(cmd, "", err)
			}
			volume, failed := wait.resized(cmd, calls, namespace, args[0], resized)
			return cmp.Or(flags.output.print(cmd.OutOrStdout(), volume, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "volume %s of app %s is %s, %dGi\n", volume.Name, args[0], volume.Status, volume.SizeGi)
				return err
			}), failed)
		},
	}
	wait.register(cmd)
	flags.output.register(cmd)
	return cmd
}
