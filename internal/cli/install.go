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

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
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
		Short: "Install Tarn's resources, roles and policies in a cluster",
		Long: "Apply Tarn's custom resources, namespace, service accounts, roles, admission policies and\n" +
			"CSI driver, and wait until the API server serves and enforces them. Running it again only\n" +
			"changes what differs. It does not start Tarn's processes.\n\n" +
			"--provisioners applies ready-made PavProvisioners too: " + strings.Join(provisioners.Names(), ", ") + ".\n" +
			"It creates no StorageClass; `tarn provisioner install` does.\n\n" +
			"With --protection=kubernetes, install leaves out or removes the policy that gives new claims and volumes their\n" +
			"finalizers: the API server's own plugin does that, and each policy makes its requests a little slower.",
		Example: "  tarn install\n  tarn install --context staging --timeout 3m",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if protection != "tarn" && protection != "kubernetes" {
				return fmt.Errorf("--protection %q is unknown; give tarn or kubernetes, whose controllers protect claims and volumes in use", protection)
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
				if now := provisioners.Replacement(name); now != name {
					cmd.PrintErrf("warning: --provisioners: %s is called %s now; new StorageClasses name %s as their provisioner\n", name, now, now)
					name = now
				}
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
			if err := kube.Apply(ctx, c, beside, applied); err != nil {
				return err
			}
			return tellKept(ctx, cmd, c, beside)
		},
	}
	to.register(cmd, cmd.Flags())
	cmd.Flags().StringSliceVar(&ready, "provisioners", nil, "names of ready-made PavProvisioners to apply too")
	cmd.Flags().StringSliceVar(&steps, stepNamespacesFlag, steppod.DefaultNamespaces, "namespaces in which a policy lets the controller create pods; give the same as to tarn controller")
	cmd.Flags().StringVar(&protection, "protection", "tarn", "which controllers protect claims and volumes in use: tarn or kubernetes")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait until the API server serves what was applied")
	return cmd
}

// tellKept names the PavProvisioners of an earlier release that stay beside those that replace
// them. The provisioner of a StorageClass cannot be changed, so that class still needs the old one.
func tellKept(ctx context.Context, cmd *cobra.Command, c client.Client, applied []*unstructured.Unstructured) error {
	all := &pavv1.PavProvisionerList{}
	if err := c.List(ctx, all); err != nil {
		return fmt.Errorf("listing PavProvisioners: %w", err)
	}
	for i := range all.Items {
		old := all.Items[i].Name
		now := provisioners.Replacement(old)
		if now != old && slices.ContainsFunc(applied, func(o *unstructured.Unstructured) bool { return o.GetName() == now }) {
			cmd.Printf("kept PavProvisioner %s of an earlier release for the StorageClasses that name it; %s replaces it in new ones\n", old, now)
		}
	}
	return nil
}

// withoutFinalizersPolicy separates one policy and its binding from the other objects. That policy
// makes new claims and volumes start with their finalizers.
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
