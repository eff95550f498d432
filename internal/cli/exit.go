package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"tarn.dev/tarn/internal/cli/terminal"
)

// Exit statuses, as listed in --help of the root command.
const (
	exitFailed  = 1
	exitUsage   = 2
	exitTimeout = 3
)

const exitHelp = `Exit status:
  0  success, or everything is healthy
  1  failed or rejected, or something is unhealthy
  2  the command line is wrong; nothing was changed
  3  still in progress at the end of --timeout`

// exitError ends the process with a status. The command has already printed its message.
type exitError struct{ code int }

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", e.code) }

// timeoutError says that a result did not arrive in time; it may still arrive later.
type timeoutError struct{ error }

func (e timeoutError) Unwrap() error { return e.error }

// usageError says that a command line is wrong.
type usageError struct {
	error
	// command is the command whose help to propose.
	command string
}

func (e usageError) Unwrap() error { return e.error }

// ExitStatus prints an error of a command on stderr, unless the command has printed it already. It
// returns the exit status, which is 0 for no error.
func ExitStatus(err error, stderr io.Writer) int {
	var told exitError
	var usage usageError
	var late timeoutError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &told):
		return told.code
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "tarn: %s; see %s --help\n", terminal.Plain(err.Error()), usage.command)
		return exitUsage
	}
	fmt.Fprintln(stderr, "tarn:", terminal.Plain(err.Error()))
	if errors.As(err, &late) {
		return exitTimeout
	}
	return exitFailed
}

// misuse returns an error for a wrong command line that only the command itself can detect.
func misuse(cmd *cobra.Command, format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...), cmd.CommandPath()}
}

// tellUsage marks errors of the command line as such, in a command and all below it. A command that
// only has subcommands prints its help.
func tellUsage(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError{err, cmd.CommandPath()} })
	check := cmd.Args
	if check == nil {
		check = cobra.ArbitraryArgs
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		// Cobra would check the flags only later, and would report a failure instead of a usage
		// error.
		if err := errors.Join(check(cmd, args), cmd.ValidateRequiredFlags()); err != nil {
			return usageError{err, cmd.CommandPath()}
		}
		return nil
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.RunE, cmd.DisableFlagsInUseLine = helpOrUnknown, true
	}
	for _, below := range cmd.Commands() {
		tellUsage(below)
	}
}

func helpOrUnknown(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	cmd.SuggestionsMinimumDistance = 2
	hint := ""
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		hint = "; did you mean " + strings.Join(like, " or ") + "?"
	}
	return misuse(cmd, "%s has no command %q%s", cmd.CommandPath(), args[0], hint)
}
