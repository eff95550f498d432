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

// newScrubCommand is what runs in a scrub pod.
func newScrubCommand() *cobra.Command {
	var flags scrubFlags
	cmd := &cobra.Command{
		Use:   "scrub",
		Short: "Destroy what is on a volume, verify it, and print the certificate",
		Long: "Destroy what is on a volume for its next user, verify it, and print the certificate as JSON.\n" +
			"Nobody is asked. With --check nothing is changed: what somebody else has recycled is read, and must be empty,\n" +
			"or zeros, unless it was made anew. The controller runs both in scrub pods; see docs/guides/recycle-volumes.md.",
		Example: "  tarn scrub --method Files --path /volume\n" +
			"  tarn scrub --method Zero --device /dev/volume --report /report\n" +
			"  tarn scrub --check --method Zero --device /dev/volume",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runScrub(cmd, flags) },
	}
	cmd.Flags().StringVar(&flags.method, "method", "", "Files, Zero or Discard; with --check Recreate, too")
	cmd.Flags().StringVar(&flags.path, "path", "", "folder at which the volume is mounted")
	cmd.Flags().StringVar(&flags.device, "device", "", "block device, instead of --path; for Zero and Discard")
	cmd.Flags().StringVar(&flags.report, "report", "", "file to write the certificate to, too")
	cmd.Flags().BoolVar(&flags.check, "check", false, "read only what is on the volume, after somebody else has done the method")
	return cmd
}

func runScrub(cmd *cobra.Command, flags scrubFlags) error {
	if (flags.path == "") == (flags.device == "") {
		return errors.New("--path and --device: give one of them")
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
