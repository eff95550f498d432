package explain

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Print writes an answer as text: the verdict, what happens next, the chain, and last the commands
// that help. A healthy object takes one line.
func (e *Explanation) Print(w io.Writer, now time.Time) error {
	var text strings.Builder
	text.WriteString(e.Verdict + "\n")
	shown := e.Links
	if e.Healthy { // only what could not be read
		shown = slices.DeleteFunc(slices.Clone(shown), func(l Link) bool { return l.State != notRead })
	}
	if next := e.next(); next != "" && !e.Healthy {
		fmt.Fprintf(&text, "next: %s\n", next)
	}
	if len(shown) > 0 {
		text.WriteString("\n")
	}
	aside := false
	for _, l := range shown {
		if l.Aside && !aside {
			text.WriteString("\nother problems:\n")
		} else if aside && !l.Aside {
			text.WriteString("\n")
		}
		aside = l.Aside
		l.print(&text, now)
	}
	if commands := e.commands(); len(commands) > 0 && !e.Healthy {
		text.WriteString("\nto fix it:\n")
		for _, c := range commands {
			if !strings.Contains(c, "\n") { // a shell needs the lines of a longer one unchanged
				c = "  " + c
			}
			text.WriteString(c + "\n")
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// next returns when it continues, as told by the link nearest to the cause.
func (e *Explanation) next() string {
	for i := len(e.Links) - 1; i >= 0; i-- {
		if e.Links[i].Next != "" && !e.Links[i].Aside {
			return e.Links[i].Next
		}
	}
	return ""
}

// commands returns the commands of the links, that nearest to the cause first.
func (e *Explanation) commands() []string {
	var found []string
	for i := len(e.Links) - 1; i >= 0; i-- {
		if c := e.Links[i].Command; c != "" {
			found = append(found, c)
		}
	}
	return found
}

// print writes a link: the object and its state, its message, and its log.
func (l *Link) print(w io.Writer, now time.Time) {
	if l.State == notRead {
		fmt.Fprintf(w, "- %s\n", l.Message)
		return
	}
	fmt.Fprintf(w, "- %s: %s", l.Object, l.State)
	if l.Node != "" && !strings.Contains(l.State, l.Node) {
		fmt.Fprintf(w, " on node %s", l.Node)
	}
	if l.Since != nil {
		fmt.Fprintf(w, ", since %s (%s)", duration.HumanDuration(now.Sub(*l.Since)), l.Since.Format(time.RFC3339))
	}
	if l.Reason != "" {
		fmt.Fprintf(w, ", %s", l.Reason)
	}
	fmt.Fprintln(w)
	if l.Message != "" {
		fmt.Fprintf(w, "    %s\n", strings.ReplaceAll(strings.TrimSpace(l.Message), "\n", "\n    "))
	}
	if l.Next != "" {
		fmt.Fprintf(w, "    next: %s\n", l.Next)
	}
	for _, line := range l.Log {
		fmt.Fprintf(w, "    | %s\n", line)
	}
}
