package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/cli/terminal"
)

// audit lists everything that Tarn keeps in a cluster and on this node.
type audit struct {
	output              output
	connection          connection
	provisioner         string
	stateDir, mountinfo string
	hostPathRoot        string
	settle              time.Duration

	client client.Client
	screen terminal.Terminal
	// node is where the node side is read; nil where it is left out.
	node *nodeSide
}

// auditReport is what --output json prints.
type auditReport struct {
	Items    []auditItem `json:"items"`
	Orphaned int         `json:"orphaned"`
	// NodeSide says where the node side was read, or why it was not.
	NodeSide string `json:"nodeSide"`
}

// auditItem is one object, directory or mount of Tarn's.
type auditItem struct {
	// Kind is PavVolume, PersistentVolume, PersistentVolumeClaim, PavStage, Pod, Folder or Mount.
	Kind        string `json:"kind"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name"`
	Volume      string `json:"volume,omitempty"`
	Provisioner string `json:"provisioner,omitempty"`
	Node        string `json:"node,omitempty"`
	State       string `json:"state,omitempty"`
	// Orphaned names the missing owner and says what to do. It is empty if the owner exists.
	Orphaned string `json:"orphaned,omitempty"`
}

func newAuditCommand() *cobra.Command {
	var a audit
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "List everything that Tarn manages, and what of it is orphaned",
		Long: "List both sides of every volume: its record (PavVolume) and PersistentVolume, its stages and their pods, and, on a\n" +
			"node, the directories and mounts of the node agent. What belongs to an object that no longer exists is orphaned; then\n" +
			"the exit status is 1. What is being removed has --settle to disappear. For a directory or a mount whose stage or pod\n" +
			"is gone the provisioner may be unknown: it is listed with every --provisioner.\n\n" +
			"The node side is read from the node agent's directory on this machine, as root: --node-state-dir, or by default\n" +
			tarnv1.DefaultStateDir + " if it exists; 'none' leaves the node side out. A kubelet in a mount\n" +
			"namespace of its own, as in the embedded cluster, is read through /proc/PID/root. The default of --mountinfo is then\n" +
			"/proc/PID/mountinfo.",
		Example: "  tarn audit\n" +
			"  tarn audit --output json --provisioner hello-world\n" +
			"  tarn audit --node-state-dir /proc/$(pidof kubelet)/root" + tarnv1.DefaultStateDir,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.run(cmd) },
	}
	f := cmd.Flags()
	a.output.register(cmd)
	a.connection.register(cmd, f)
	f.StringVar(&a.provisioner, "provisioner", "", "only what belongs to this PavProvisioner, and orphans whose provisioner is unknown")
	completeFlag(cmd, "provisioner", &a.connection, provisionerKind)
	f.StringVar(&a.stateDir, "node-state-dir", "", "directory of the node agent, as this machine sees it; none leaves the node side out")
	f.StringVar(&a.mountinfo, "mountinfo", "", "mount table of the kubelet; the default is that of this process")
	f.StringVar(&a.hostPathRoot, "host-path-root", "", "directory of the volumes of tarn.dev/host-path, as for tarn controller; empty leaves them out")
	f.DurationVar(&a.settle, "settle", 5*time.Second, "how long to wait for orphans to be removed")
	return cmd
}

func (a *audit) run(cmd *cobra.Command) error {
	var err error
	if a.client, err = a.connection.client(); err != nil {
		return err
	}
	a.screen = terminal.Of(cmd.ErrOrStderr())
	said, err := a.findNode()
	if err != nil {
		return err
	}
	items, err := a.look(cmd.Context())
	if err != nil {
		return err
	}
	report := auditReport{Items: items, NodeSide: said}
	for _, item := range items {
		if item.Orphaned != "" {
			report.Orphaned++
		}
	}
	err = a.output.print(cmd.OutOrStdout(), report, report.print)
	if err == nil && report.Orphaned > 0 {
		return exitError{1}
	}
	return err
}

// findNode decides where the node side is read, and describes that for the report.
func (a *audit) findNode() (string, error) {
	const none = "none"
	if a.stateDir == none {
		return "left out, because of --node-state-dir none", nil
	}
	given := a.stateDir != ""
	if !given {
		a.stateDir = tarnv1.DefaultStateDir
	}
	node, err := newNodeSide(a.stateDir, a.mountinfo)
	switch {
	case err == nil:
		a.node = node
		return "read from " + a.stateDir, nil
	case given:
		return "", fmt.Errorf("--node-state-dir: %w", err)
	case errors.Is(err, os.ErrNotExist):
		return "left out: this machine has no " + a.stateDir + "; run on a node, or give --node-state-dir", nil
	}
	return fmt.Sprintf("left out: %v; run as root", err), nil
}

// again is how long the audit waits before it checks an orphan once more. It must poll, because a
// node's file system sends no events.
const again = 250 * time.Millisecond

// look lists everything. It repeats this while something is orphaned, until the settle time is
// over. An object may have been read without another one that was created or removed a moment ago.
func (a *audit) look(ctx context.Context) ([]auditItem, error) {
	over, next := time.NewTimer(a.settle), time.NewTicker(again)
	defer over.Stop()
	defer next.Stop()
	defer a.screen.Done()
	for last := false; ; {
		v, err := a.gather(ctx)
		if err != nil {
			return nil, err
		}
		items, orphaned := v.judge(a.provisioner)
		if !orphaned || last {
			return items, nil
		}
		a.screen.Progress(fmt.Sprintf("something is orphaned; waiting up to %s for its removal", a.settle))
		select {
		case <-next.C:
		case <-over.C:
			last = true
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// print writes the report as a table. The orphans follow once more below it.
func (r *auditReport) print(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "VOLUME\tKIND\tNAME\tPROVISIONER\tNODE\tSTATE")
	for _, i := range r.Items {
		state := i.State
		if i.Orphaned != "" {
			state = strings.TrimSpace(state + " ORPHANED")
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", dash(i.Volume), i.Kind, i.fullName(), dash(i.Provisioner), dash(i.Node), dash(state))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nnode side: %s\n", r.NodeSide)
	for _, i := range r.Items {
		if i.Orphaned != "" {
			fmt.Fprintf(w, "orphaned: %s %s: %s\n", i.Kind, i.fullName(), i.Orphaned)
		}
	}
	fmt.Fprintf(w, "%s, %d orphaned\n", count(len(r.Items), "thing"), r.Orphaned)
	return nil
}

func (i auditItem) fullName() string {
	if i.Namespace == "" {
		return i.Name
	}
	return i.Namespace + "/" + i.Name
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
