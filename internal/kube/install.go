package kube

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
)

// installer is the field manager for applied objects.
const installer = client.FieldOwner("tarn-install")

// dispensable are kinds that API servers before 1.36 do not serve by default. A controller adds
// shortly afterwards what these policies add at admission.
var dispensable = []string{"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}

// Install applies objects as Apply does. It then waits until the API server serves the custom
// resources and enforces the policy on provisioners. The API server takes up policies in the order
// of their creation and this policy is the last, so it enforces all of them then.
func Install(ctx context.Context, c client.Client, objects []*unstructured.Unstructured, applied func(kind, name string)) error {
	objects = slices.Clone(objects)
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int {
		return cmp.Compare(rank(a), rank(b))
	})
	if err := Apply(ctx, c, objects, applied); err != nil {
		return err
	}
	for _, o := range objects {
		if o.GetKind() != "CustomResourceDefinition" {
			continue
		}
		if err := waitEstablished(ctx, c, o.GetName()); err != nil {
			return fmt.Errorf("waiting for the API server to serve %s: %w", o.GetName(), err)
		}
	}
	if err := waitEnforced(ctx, c); err != nil {
		return fmt.Errorf("waiting for the API server to enforce the admission policy on PavProvisioners: %w", err)
	}
	return nil
}

func rank(o *unstructured.Unstructured) int {
	if o.GetName() == policyName {
		return 1
	}
	return 0
}

// Apply applies objects in their order by server-side apply. Fields that others have set stay.
// Kinds that Tarn can do without are skipped if the API server does not know them. Apply calls
// applied for each object, unless it is nil.
func Apply(ctx context.Context, c client.Client, objects []*unstructured.Unstructured, applied func(kind, name string)) error {
	for _, o := range objects {
		err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), installer, client.ForceOwnership)
		if meta.IsNoMatchError(err) && slices.Contains(dispensable, o.GetKind()) {
			continue
		}
		if err != nil {
			return fmt.Errorf("applying %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		if applied != nil {
			applied(o.GetKind(), o.GetName())
		}
	}
	return nil
}

func waitEstablished(ctx context.Context, c client.Client, name string) error {
	return wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
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
}

// policyName is the policy of deploy/policies/pavprovisioners.yaml. Its rejections contain the
// name.
const policyName = "pavprovisioners.tarn.dev"

// waitEnforced waits until the policy rejects what it should. The API server takes a moment to
// compile a policy, and no provisioner created after an installation may bypass it.
func waitEnforced(ctx context.Context, c client.Client) error {
	wrong := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": pavv1.GroupVersion.String(), "kind": "PavProvisioner",
		"metadata": map[string]any{"name": "tarn-install-probe"},
		"spec": map[string]any{
			"provisioningModes": []any{"Static"},
			"volumeStaging":     map[string]any{"noSuchField": true},
		},
	}}
	return wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		err := c.Create(ctx, wrong.DeepCopy(), client.DryRunAll)
		switch {
		case err == nil, meta.IsNoMatchError(err), apierrors.IsNotFound(err),
			apierrors.IsInternalError(err), apierrors.IsServiceUnavailable(err), apierrors.IsTooManyRequests(err):
			return false, nil
		case strings.Contains(err.Error(), policyName): // no error code distinguishes a policy from a missing right
			return true, nil
		}
		return false, err
	})
}
