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

type scrubFlags struct{ method, path, device, report string }

// newScrubCommand is what runs in a scrub pod.
func newScrubCommand() *cobra.Command {
	var flags scrubFlags
	cmd := &cobra.Command{
		Use:   "scrub",
		Short: "Destroy what is on a volume, verify it, and print the certificate",
		Long: "Destroy what is on a volume for its next user, verify it, and print the certificate as JSON.\n" +
			"Nobody is asked. The controller runs it in scrub pods; see docs/recycling.md.",
		Example: "  tarn scrub --method Files --path /volume\n" +
			"  tarn scrub --method Zero --device /dev/volume --report /report",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runScrub(cmd, flags) },
	}
	cmd.Flags().StringVar(&flags.method, "method", "", "Files, Zero or Discard")
	cmd.Flags().StringVar(&flags.path, "path", "", "folder at which the volume is mounted")
	cmd.Flags().StringVar(&flags.device, "device", "", "block device, instead of --path; for Zero and Discard")
	cmd.Flags().StringVar(&flags.report, "report", "", "file to write the certificate to, too")
	return cmd
}

func runScrub(cmd *cobra.Command, flags scrubFlags) error {
	if (flags.path == "") == (flags.device == "") {
		return errors.New("--path and --device: give one of them")
	}
	method := tarnv1.RecycleMethod(flags.method)
	do, target := scrub.File, flags.path
	if flags.device != "" {
		do, target = scrub.Device, flags.device
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
