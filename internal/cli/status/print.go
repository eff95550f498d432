package status

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"tarn.dev/tarn/internal/cli/terminal"
	"tarn.dev/tarn/internal/volume"
)

// mostProblems is how many problems are printed.
const mostProblems = 20

// Paint marks good states, bad states and hints. Each method returns its text, with or without
// colours.
type Paint interface {
	Good(text string) string
	Bad(text string) string
	Hint(text string) string
}

// Print writes a report as text: the verdict, and a line for each part. Then come tables of
// provisioners, pools and apps, and the problems, each with a command that tells more.
func (r *Report) Print(w io.Writer, paint Paint, now time.Time) error {
	var text strings.Builder
	if r.Healthy {
		text.WriteString(paint.Good(r.Verdict) + "\n\n")
	} else {
		text.WriteString(paint.Bad(r.Verdict) + "\n\n")
	}
	for _, write := range []func(io.Writer, time.Time) error{r.lines, r.tables} {
		if err := write(&text, now); err != nil {
			return err
		}
	}
	if len(r.Problems) > 0 {
		text.WriteString("\nproblems:\n")
	}
	for i, p := range r.Problems {
		if i == mostProblems {
			fmt.Fprintf(&text, "and %d more; see all with --output json\n", len(r.Problems)-i)
			break
		}
		since := ""
		if p.Since != nil {
			since = ", since " + duration.HumanDuration(max(now.Sub(*p.Since), 0))
		}
		fmt.Fprintf(&text, "- %s%s: %s\n    %s\n", paint.Bad(p.Object.String()), since, strings.ReplaceAll(strings.TrimSpace(terminal.Plain(p.Message)), "\n", "\n    "), paint.Hint(p.Command))
	}
	if len(r.Unread) > 0 {
		text.WriteString("\n")
	}
	for _, u := range r.Unread {
		fmt.Fprintf(&text, "cannot read each %s: %s\n", u.Kind, terminal.Plain(u.Message))
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// lines writes one line for each part that has no table.
func (r *Report) lines(w io.Writer, now time.Time) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(table, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	if c := r.Controller; c != nil && c.Leads {
		line("controller", "%s is the leader, renewed %s ago", terminal.Plain(c.Holder), duration.HumanDuration(max(now.Sub(*c.Renewed), 0)))
	} else if c != nil && c.State == "missing" {
		line("controller", "holds no lease, as usual on the embedded cluster; on other clusters check that its pod runs")
	} else if c != nil {
		line("controller", "no leader: its lease is %s", c.State)
	}
	if n := r.Nodes; n != nil {
		without := ""
		if len(n.Without) > 0 {
			without = ", not on " + strings.Join(n.Without, ", ")
		}
		line("node agents", "on %d of %d nodes%s", n.WithAgent, n.Total, without)
	}
	for _, l := range r.Workloads {
		line(strings.ToLower(l.Kind), "%s: %d of %d pods ready", l.Name, l.Ready, l.Wanted)
	}
	counted := func(name, kind string, all []Count) {
		if !slices.ContainsFunc(r.Unread, func(u Unread) bool { return u.Kind == kind }) {
			line(name, "%s", told(all))
		}
	}
	counted("claims", kindClaim, r.Claims)
	if r.Namespace == "" {
		counted("volumes", kindVolume, r.Volumes)
		counted("records", kindRecord, r.Records)
		counted("stages", kindStage, r.Stages)
	}
	if t := r.Trash; t != nil {
		next := "none has an end"
		if t.Next != nil {
			next = "the next expires in " + duration.HumanDuration(max(t.Next.Sub(now), 0))
		}
		line("trash", "%d, %s; %s", t.Volumes, volume.Size(t.Bytes), next)
	}
	return table.Flush()
}

// told words counts in one line.
func told(all []Count) string {
	if len(all) == 0 {
		return "none"
	}
	var parts []string
	for _, c := range all {
		part := fmt.Sprintf("%d %s", c.Count, c.State)
		if c.Bytes > 0 {
			part += fmt.Sprintf(" (%s)", volume.Size(c.Bytes))
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

// tables writes the parts that are listed by name.
func (r *Report) tables(w io.Writer, _ time.Time) error {
	var rows [][]any
	for _, p := range r.Provisioners {
		rows = append(rows, []any{p.Name, yes(p.Accepted), p.Volumes, p.Failing})
	}
	if err := table(w, "PROVISIONER\tACCEPTED\tVOLUMES\tFAILING", rows); err != nil {
		return err
	}
	rows = nil
	for _, p := range r.Pools {
		rows = append(rows, []any{p.Name, yes(p.Ready), p.Spare, p.Minimum, p.Making, p.InUse, p.Maximum})
	}
	if err := table(w, "POOL\tREADY\tSPARE\tMINIMUM\tMAKING\tIN USE\tMAXIMUM", rows); err != nil {
		return err
	}
	rows = nil
	for _, a := range r.Apps {
		rows = append(rows, []any{a.Namespace, a.Name, yes(a.Ready), fmt.Sprintf("%d/%d", a.Running, a.Replicas), a.Volumes, a.Reason})
	}
	return table(w, "NAMESPACE\tAPP\tREADY\tRUNNING\tVOLUMES\tREASON", rows)
}

func table(w io.Writer, head string, rows [][]any) error {
	if len(rows) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\n%s\n", head)
	for _, row := range rows {
		fmt.Fprintf(table, strings.Repeat("%v\t", len(row)-1)+"%v\n", row...)
	}
	return table.Flush()
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}
