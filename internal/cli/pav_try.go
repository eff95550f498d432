package cli

import "github.com/spf13/cobra"

func newPavTestCommand() *cobra.Command { return &cobra.Command{Use: "test"} }
