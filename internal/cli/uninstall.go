package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func newUninstallCommand() *cobra.Command {
	var to connection
	var yes, keep bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Show how to remove Tarn from a cluster; with --yes, remove it",
		Long: "Show the steps that remove Tarn from a cluster. With --yes, run them: empty the pools, stop the controllers,\n" +
			"release provisioners and volumes, then delete node agents, policies, roles, resources and the namespace.\n" +
			"Nothing that is in use is removed: the command lists it, says what to do, and changes nothing. Objects of others\n" +
			"in Tarn's namespace are listed too. They stay, and so does the namespace, unless they only accompany\n" +
			"other objects, such as a Role or a NetworkPolicy.\n\n" +
			"With --keep-volumes, volumes stay as they are, objects and data, with reclaim policy Retain. A Tarn that you\n" +
			"install later, with the same provisioners, serves them again. Only the spare volumes of pools are destroyed, and\n" +
			"volumes whose destruction has already started. The command waits for that, and says so if no controller runs.",
		Example: "  tarn uninstall\n  tarn uninstall --keep-volumes --yes",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := to.client()
			if err != nil {
				return err
			}
			kinds, err := to.namespacedKinds()
			if err != nil {
				return err
			}
			u := &uninstaller{client: c, kinds: kinds, out: cmd.OutOrStdout(), keep: keep}
			if !yes {
				return u.tell(cmd.Context())
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			err = u.run(ctx)
			if errors.Is(err, context.DeadlineExceeded) {
				return timeoutError{fmt.Errorf("timeout after %s: %w; completed steps stay; run the command again to continue", timeout, err)}
			}
			return err
		},
	}
	to.register(cmd, cmd.Flags())
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	cmd.Flags().BoolVar(&keep, "keep-volumes", false, "keep volumes and their data, with reclaim policy Retain")
	cmd.Flags().DurationVar(&timeout, "timeout", 3*time.Minute, "how long to wait for deletions, for example of the spare volumes of pools")
	return cmd
}

// namespacedKinds asks the API server once for all kinds of namespaced objects.
func (c connection) namespacedKinds() (func() ([]*metav1.APIResourceList, error), error) {
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	asked, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reaching the API server: %w", err)
	}
	return sync.OnceValues(asked.ServerPreferredNamespacedResources), nil
}

// uninstaller removes Tarn from a cluster.
type uninstaller struct {
	client client.WithWatch
	// kinds returns the kinds of namespaced objects; every account may ask for them. Nil means only
	// the kinds that this program knows.
	kinds func() ([]*metav1.APIResourceList, error)
	out   io.Writer
	// keep keeps the volumes and their data.
	keep bool
	// abandoned says that no controller of Tarn was running when the command began.
	abandoned bool
	// releases names the helm releases that installed Tarn and keep their records in its namespace.
	releases []string
}

// look finds out whether a controller is running.
func (u *uninstaller) look(ctx context.Context) error {
	leader, err := u.leader(ctx)
	u.abandoned = leader == ""
	return err
}

// tell prints the plan. A blocked plan is an error.
func (u *uninstaller) tell(ctx context.Context) error {
	if err := u.look(ctx); err != nil {
		return err
	}
	in, err := u.survey(ctx)
	if err != nil {
		return err
	}
	p := planUninstall(in, u.keep)
	if err := u.blocked(p); err != nil {
		return err
	}
	for i, step := range p.steps {
		fmt.Fprintf(u.out, "%d. %s\n", i+1, step.what)
	}
	fmt.Fprintln(u.out, "nothing was changed; to run these steps, add --yes")
	return nil
}

// survey gathers everything, including other users' objects in Tarn's namespace.
func (u *uninstaller) survey(ctx context.Context) (*installed, error) {
	in, err := u.gather(ctx)
	if err != nil {
		return nil, err
	}
	s, err := u.space(ctx)
	in.theirs, in.lost = s.theirs, s.lost
	return in, err
}

// blocked prints what blocks a plan, and returns an error if anything does.
func (u *uninstaller) blocked(p uninstallPlan) error {
	if len(p.blockers) == 0 {
		return nil
	}
	for _, b := range p.blockers {
		fmt.Fprintf(u.out, "%s\n    %s\n", b.what, b.remedy)
	}
	return fmt.Errorf("not uninstalled: see above the obstacles (%d) and what to do about each", len(p.blockers))
}

// run executes the plan step by step. It reads the cluster again before each step, because a step
// may change what blocks the next one, as emptying the pools does.
func (u *uninstaller) run(ctx context.Context) error {
	if err := u.look(ctx); err != nil {
		return err
	}
	for done := map[uninstallStep]bool{}; ; {
		in, err := u.survey(ctx)
		if err != nil {
			return err
		}
		in.ended = done[stepControllers]
		p := planUninstall(in, u.keep)
		if err := u.blocked(p); err != nil {
			return err
		}
		next := p.next(done)
		if next == nil {
			fmt.Fprintln(u.out, "Tarn is uninstalled")
			return nil
		}
		fmt.Fprintln(u.out, next.what)
		if err := u.do(ctx, next.step, in); err != nil {
			return fmt.Errorf("%s: %w", next.what, err)
		}
		done[next.step] = true
	}
}
