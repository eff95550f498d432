package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/api/crds"
	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	"tarn.dev/tarn/deploy"
	"tarn.dev/tarn/internal/kube"
)

// fieldOwner is the manager under which `tarn install` applies.
const fieldOwner = client.FieldOwner("tarn-install")

func newInstallCommand() *cobra.Command {
	var kubeconfig string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Apply what Tarn needs in a cluster: resources, roles, policies",
		Long: "Apply Tarn's custom resources, namespace, service accounts, roles, admission policies and\n" +
			"CSI driver, and wait until the API server serves and enforces them. Running it again changes\n" +
			"only what differs. It starts no process of Tarn's.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := restConfig(kubeconfig)
			if err != nil {
				return err
			}
			c, err := client.New(config, client.Options{Scheme: kube.Scheme()})
			if err != nil {
				return fmt.Errorf("reaching the API server: %w", err)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return install(ctx, c, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig file; without it $KUBECONFIG or ~/.kube/config")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the API server to serve what was applied")
	return cmd
}

func install(ctx context.Context, c client.Client, out io.Writer) error {
	resources, err := readObjects(crds.FS)
	if err != nil {
		return err
	}
	others, err := readObjects(deploy.FS)
	if err != nil {
		return err
	}
	for _, o := range append(resources, others...) {
		if err := apply(ctx, c, o); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "applied %s %s\n", o.GetKind(), o.GetName()); err != nil {
			return err
		}
	}
	for _, o := range resources {
		if err := waitEstablished(ctx, c, o.GetName()); err != nil {
			return err
		}
	}
	return waitEnforced(ctx, c)
}

// apply is a server-side apply: what others have set on the object stays.
func apply(ctx context.Context, c client.Client, o *unstructured.Unstructured) error {
	err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), fieldOwner, client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("applying %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

func readObjects(files fs.FS) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		file, err := files.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
		for {
			object := &unstructured.Unstructured{}
			if err := decoder.Decode(object); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return fmt.Errorf("reading %s: %w", path, err)
			}
			if len(object.Object) > 0 {
				objects = append(objects, object)
			}
		}
	})
	return objects, err
}

func waitEstablished(ctx context.Context, c client.Client, name string) error {
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := c.Get(ctx, client.ObjectKey{Name: name}, crd); err != nil {
			return false, err
		}
		for _, condition := range crd.Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the API server to serve %s: %w", name, err)
	}
	return nil
}

// waitEnforced waits until the admission policy refuses what it should: the API
// server takes a moment to compile a policy, and whoever creates a provisioner after
// `tarn install` must not slip through.
func waitEnforced(ctx context.Context, c client.Client) error {
	wrong := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": pavv1.GroupVersion.String(), "kind": "PavProvisioner",
		"metadata": map[string]any{"name": "tarn-install-probe"},
		"spec": map[string]any{
			"provisioningModes": []any{"Static"},
			"volumeStaging":     map[string]any{"noSuchField": true},
		},
	}}
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		err := c.Create(ctx, wrong.DeepCopy(), client.DryRunAll)
		switch {
		case err == nil, meta.IsNoMatchError(err), apierrors.IsNotFound(err):
			return false, nil
		case apierrors.IsInvalid(err), apierrors.IsForbidden(err):
			return true, nil
		}
		return false, err
	})
	if err != nil {
		return fmt.Errorf("waiting for the API server to enforce the admission policy pavprovisioners.tarn.dev: %w", err)
	}
	return nil
}
