package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/scrub"
)

type scrubFlags struct {
	method, path, device, report string
	check                        bool
}

// newScrubCommand returns the command that runs in a scrub pod.
func newScrubCommand() *cobra.Command {
	var flags scrubFlags
	cmd := &cobra.Command{
		Use:   "scrub",
		Short: "Erase the data on a volume, verify it, and print the certificate",
		Long: "Erase the data on a volume for its next user, verify it, and print the certificate as JSON.\n" +
			"There is no confirmation. --check changes nothing: it reads a volume that was recycled by other means and must be empty,\n" +
			"or zeros, unless it was made again. The controller runs both in scrub pods; see docs/guides/recycle-volumes.md.",
		Example: "  tarn scrub --method Files --path /volume\n" +
			"  tarn scrub --method Zero --device /dev/volume --report /report\n" +
			"  tarn scrub --check --method Zero --device /dev/volume",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runScrub(cmd, flags) },
	}
	cmd.Flags().StringVar(&flags.method, "method", "", "Files, Zero or Discard; with --check also Recreate")
	cmd.Flags().StringVar(&flags.path, "path", "", "directory where the volume is mounted")
	cmd.Flags().StringVar(&flags.device, "device", "", "block device, instead of --path; for Zero and Discard")
	cmd.Flags().StringVar(&flags.report, "report", "", "file to also write the certificate to")
	cmd.Flags().BoolVar(&flags.check, "check", false, "only read the volume, after another program has applied the method")
	return cmd
}

func runScrub(cmd *cobra.Command, flags scrubFlags) error {
	if (flags.path == "") == (flags.device == "") {
		return errors.New("give either --path or --device")
	}
	method := tarnv1.RecycleMethod(flags.method)
	do, target := scrub.File, flags.path
	switch {
	case flags.device != "" && flags.check:
		do, target = scrub.CheckDevice, flags.device
	case flags.device != "":
		do, target = scrub.Device, flags.device
	case flags.check:
		do = scrub.CheckFile
	}
	cert, err := do(cmd.Context(), method, target)
	if err != nil {
		return err
	}
	text, err := json.Marshal(cert)
	if err != nil {
		return fmt.Errorf("writing the certificate: %w", err)
	}
	if flags.report != "" {
		if err := os.WriteFile(flags.report, text, 0o600); err != nil {
			return fmt.Errorf("--report: %w", err)
		}
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), string(text))
	return err
}
