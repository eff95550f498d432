package cli

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// lintServer has an API server check provisioners.
type lintServer struct{ client client.Client }

// newLintServer reaches the API server; a server that is not there is an error at
// the first check.
func newLintServer(to connection) (*lintServer, error) {
	c, err := to.client()
	if err != nil {
		return nil, err
	}
	// Unknown fields are refused, as kubectl has it.
	return &lintServer{client.WithFieldValidation(c, "Strict")}, nil
}

// check gives what the API server says to the provisioner, in its own words. One
// that is there already is checked as a change to it.
func (s *lintServer) check(ctx context.Context, m *manifest) findings {
	o := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(toInts(m.object))}
	err := s.client.Create(ctx, o, client.DryRunAll)
	if apierrors.IsAlreadyExists(err) {
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(o.GroupVersionKind())
		if err = s.client.Get(ctx, client.ObjectKeyFromObject(o), live); err == nil {
			o.SetResourceVersion(live.GetResourceVersion())
			err = s.client.Update(ctx, o, client.DryRunAll)
		}
	}
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case meta.IsNoMatchError(err):
		return findings{m.findingAt(levelError, "", nil, "the API server does not know PavProvisioners; run tarn install")}
	case errors.As(err, &status):
		return findings{m.findingAt(levelError, "", nil, "the API server refuses it: "+err.Error())}
	}
	return findings{m.findingAt(levelError, "", nil, "the API server did not check it: "+err.Error())}
}
