package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	appplan "tarn.dev/tarn/internal/app/plan"
	"tarn.dev/tarn/internal/cli/terminal"
)

// defaultFile is the paas.toml to read when the command names none.
const defaultFile = "paas.toml"

// appSource is the paas.toml of a command, and the app it is for.
type appSource struct {
	file string

	// shown is the name of the file in errors.
	shown  string
	source appplan.Source
	id     string
}

func (s *appSource) register(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&s.file, "file", "f", defaultFile, "the paas.toml, or the same content as JSON; - for standard input")
}

// read reads the file. The app's id is the argument, else the name in the file.
func (s *appSource) read(cmd *cobra.Command, args []string) error {
	var err error
	if s.shown, s.source.Text, err = readInput(cmd, s.file); err != nil {
		return fmt.Errorf("%w; choose another file with --file", err)
	}
	s.source.JSON = strings.EqualFold(filepath.Ext(s.file), ".json") || bytes.HasPrefix(bytes.TrimSpace(s.source.Text), []byte("{"))
	if len(args) > 0 {
		s.id = args[0]
		return nil
	}
	file, _, bad := s.source.Read("")
	if bad != nil {
		return told(cmd, s.shown, bad)
	}
	if s.id = file.App.Name; s.id == "" {
		return misuse(cmd, "%s does not name an app; give the app's ID as argument, or set name in section [app]", s.shown)
	}
	return nil
}

func newAppPlanCommand(flags *appFlags) *cobra.Command {
	var s appSource
	cmd := &cobra.Command{
		Use:   "plan [ID]",
		Short: "Show what a deploy would create, keep, expand, detach and reject",
		Long: "Show what deploying a paas.toml would do to each volume and to the pods. Nothing is changed. The app does not have to\n" +
			"exist yet. The ID is the argument, or the name in the file.\n\n" +
			"The exit status is 1 if the deploy would be rejected.",
		Example: "  tarn app plan\n" +
			"  tarn app plan shop --file deploy/paas.toml --namespace web",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: flags.completeApps(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := s.read(cmd, args); err != nil {
				return err
			}
			calls, namespace, err := flags.connect()
			if err != nil {
				return err
			}
			plan, _, err := s.plan(cmd.Context(), calls, namespace)
			if err != nil {
				return told(cmd, s.shown, err)
			}
			err = flags.output.print(cmd.OutOrStdout(), plan, func(w io.Writer) error { return printPlan(w, plan) })
			if err == nil && plan.Refused {
				return exitError{exitFailed}
			}
			return err
		},
	}
	s.register(cmd)
	flags.output.register(cmd)
	return cmd
}

// plan returns what a deploy would do. isNew says that the app does not exist yet.
func (s *appSource) plan(ctx context.Context, calls apps, namespace string) (plan *appplan.Plan, isNew bool, err error) {
	plan, err = calls.Plan(ctx, namespace, s.id, s.source, false)
	if isCode(err, appplan.NotFound) {
		isNew = true
		plan, err = calls.Plan(ctx, namespace, s.id, s.source, true)
	}
	return plan, isNew, err
}

func isCode(err error, code appplan.Code) bool {
	var answered *appplan.Error
	return errors.As(err, &answered) && answered.Code == code
}

func newAppDeployCommand(flags *appFlags) *cobra.Command {
	var s appSource
	var wait waiting
	cmd := &cobra.Command{
		Use:   "deploy [ID]",
		Short: "Deploy a paas.toml, and wait until the app runs",
		Long: "Deploy a paas.toml: create missing volumes, attach existing ones, expand those that are to be larger, and run the app.\n" +
			"The ID is the argument, or the name in the file. An app that does not exist is created.\n" +
			"A deploy that is rejected at once changes nothing. If Kubernetes rejects a later part, for example because of a quota,\n" +
			"the earlier parts stay, and Tarn retries the rest. You can deploy again at any time.\n\n" +
			"A deploy never deletes a volume: one that the file no longer names is detached and kept. If a volume is ReadWriteOnce,\n" +
			"the old pod is stopped before the new one starts.",
		Example: "  tarn app deploy\n" +
			"  tarn app deploy shop --file deploy/paas.toml --namespace web --wait=false",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: flags.completeApps(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := s.read(cmd, args); err != nil {
				return err
			}
			calls, namespace, err := flags.connect()
			if err != nil {
				return err
			}
			return s.deploy(cmd, calls, namespace, flags.output, wait)
		},
	}
	s.register(cmd)
	wait.register(cmd)
	flags.output.register(cmd)
	return cmd
}

func (s *appSource) deploy(cmd *cobra.Command, calls apps, namespace string, output output, wait waiting) error {
	ctx := cmd.Context()
	deployed, err := calls.Deploy(ctx, namespace, s.id, s.source)
	if isCode(err, appplan.NotFound) {
		deployed, err = s.first(ctx, calls, namespace)
	}
	if err != nil {
		return told(cmd, s.shown, err)
	}
	if output == outputTable {
		if err := printPlan(terminal.Clean(cmd.OutOrStdout()), &deployed.Plan); err != nil {
			return err
		}
	}
	app, failed := wait.settled(cmd, calls, &deployed.App)
	deployed.App = *app
	return cmp.Or(output.print(cmd.OutOrStdout(), deployed, func(w io.Writer) error { return printOutcome(w, app) }), failed)
}

// first creates and deploys an app that does not exist. It creates the app only after the plan
// shows that the deploy will not be rejected.
func (s *appSource) first(ctx context.Context, calls apps, namespace string) (*appplan.Deployed, error) {
	plan, err := calls.Plan(ctx, namespace, s.id, s.source, true)
	if err == nil && !plan.Refused {
		_, err = calls.Create(ctx, namespace, s.id)
	}
	if err != nil && !isCode(err, appplan.Conflict) { // another deploy created it first
		return nil, err
	}
	if plan != nil && plan.Refused {
		var lines []string
		for _, c := range plan.Changes {
			if c.Action == appplan.Refuse {
				lines = append(lines, c.Message)
			}
		}
		return nil, appplan.Errorf(appplan.Invalid, "%s", strings.Join(lines, "\n"))
	}
	return calls.Deploy(ctx, namespace, s.id, s.source)
}

// printPlan writes what a deploy does with each volume and with the pods.
func printPlan(w io.Writer, plan *appplan.Plan) error {
	if len(plan.Changes) > 0 {
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "ACTION\tVOLUME\tSIZE\tCLAIM\tWHY")
		for _, c := range plan.Changes {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", c.Action, dash(c.Volume), sizes(c), dash(c.ClaimName), dash(strings.ReplaceAll(c.Message, "\n", "; ")))
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	pods := fmt.Sprintf("app %s: %s", plan.ID, count(int(plan.Replicas), "pod"))
	switch {
	case plan.Refused:
		pods = fmt.Sprintf("app %s: rejected, nothing is changed", plan.ID)
	case plan.Restart && plan.Strategy == appplan.Recreate:
		pods += ", replaced: the old pod is stopped before the new one starts"
	case plan.Restart:
		pods += ", replaced one after the other"
	}
	if _, err := fmt.Fprintln(w, pods); err != nil {
		return err
	}
	return printWarnings(w, plan.Warnings)
}

// sizes words the size that a volume has and the size it will have.
func sizes(c appplan.Change) string {
	switch {
	case c.FromGi > 0 && c.ToGi > 0 && c.FromGi != c.ToGi:
		return fmt.Sprintf("%dGi -> %dGi", c.FromGi, c.ToGi)
	case c.ToGi > 0:
		return fmt.Sprintf("%dGi", c.ToGi)
	case c.FromGi > 0:
		return fmt.Sprintf("%dGi", c.FromGi)
	}
	return "-"
}

func printWarnings(w io.Writer, warnings []string) error {
	for _, warning := range warnings {
		if _, err := fmt.Fprintln(w, "warning:", warning); err != nil {
			return err
		}
	}
	return nil
}
