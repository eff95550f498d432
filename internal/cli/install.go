package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/deploy"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/provisioners"
)

func newInstallCommand() *cobra.Command {
	var to connection
	var ready, steps []string
	var protection string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Apply what Tarn needs in a cluster: resources, roles, policies",
		Long: "Apply Tarn's custom resources, namespace, service accounts, roles, admission policies and\n" +
			"CSI driver, and wait until the API server serves and enforces them. Running it again changes\n" +
			"only what differs. It starts no process of Tarn's.\n\n" +
			"The ready PavProvisioners that --provisioners names are applied after that: " + strings.Join(provisioners.Names(), ", ") + ".\n" +
			"A StorageClass for each is yours to make.\n\n" +
			"With --protection=kubernetes the policy is left out, or removed, by which claims and volumes are born with their\n" +
			"finalizers: the API server's own plugin gives them those, and each policy costs a little of each request it looks at.",
		Example: "  tarn install\n  tarn install --context staging --timeout 3m",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if protection != "tarn" && protection != "kubernetes" {
				return fmt.Errorf("--protection %q is not known; give tarn or kubernetes, as for whose controllers protect", protection)
			}
			if err := steppod.Namespaces(steps).Check(); err != nil {
				return err
			}
			c, err := to.client()
			if err != nil {
				return err
			}
			objects, err := deploy.Objects()
			if err != nil {
				return err
			}
			if err := deploy.AllowSteps(objects, steps); err != nil {
				return err
			}
			var needless []*unstructured.Unstructured
			if protection == "kubernetes" {
				objects, needless = withoutFinalizersPolicy(objects)
			}
			beside := make([]*unstructured.Unstructured, len(ready))
			for i, name := range ready {
				if beside[i], err = provisioners.Provisioner(name); err != nil {
					return fmt.Errorf("--provisioners: %w", err)
				}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			applied := func(kind, name string) { cmd.Printf("applied %s %s\n", kind, name) }
			if err := kube.Install(ctx, c, objects, applied); err != nil {
				return err
			}
			for _, o := range needless { // that an earlier run has brought
				switch err := c.Delete(ctx, o); {
				case err == nil:
					cmd.Printf("removed %s %s\n", o.GetKind(), o.GetName())
				case client.IgnoreNotFound(err) != nil && !meta.IsNoMatchError(err):
					return fmt.Errorf("removing %s %s: %w", o.GetKind(), o.GetName(), err)
				}
			}
			return kube.Apply(ctx, c, beside, applied)
		},
	}
	to.register(cmd, cmd.Flags())
	cmd.Flags().StringSliceVar(&ready, "provisioners", nil, "ready PavProvisioners to apply as well, by name")
	cmd.Flags().StringSliceVar(&steps, stepNamespacesFlag, steppod.DefaultNamespaces, "namespaces in which a policy lets the controller create pods; give what tarn controller is given")
	cmd.Flags().StringVar(&protection, "protection", "tarn", "who protects claims and volumes in use: tarn or kubernetes")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the API server to serve what was applied")
	return cmd
}

// withoutFinalizersPolicy parts the policy, and its binding, by which claims and volumes are
// born with their finalizers from the other objects.
func withoutFinalizersPolicy(objects []*unstructured.Unstructured) (others, policy []*unstructured.Unstructured) {
	for _, o := range objects {
		if o.GetName() == deploy.FinalizersPolicy {
			policy = append(policy, o)
		} else {
			others = append(others, o)
		}
	}
	slices.Reverse(policy) // its binding first
	return others, policy
}
