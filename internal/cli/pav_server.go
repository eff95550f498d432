package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/kube"
)

// answerTime is how long a server that nobody has asked for has to answer.
const answerTime = 5 * time.Second

// lintServer has an API server check provisioners.
type lintServer struct {
	client client.Client
	// offered says that nobody has asked for this server: what it does not know or does not let the caller ask says
	// nothing against the file.
	offered bool
}

// reach gives the API server that checks too, nil where none does, which standard error tells of.
func (l *pavLint) reach(cmd *cobra.Command) (*lintServer, error) {
	switch l.server {
	case serverNever, "false": // as of a flag that is on or off
		return nil, nil
	case serverAlways, "true":
		server, err := newLintServer(l.connection, 0)
		if err != nil {
			return nil, fmt.Errorf("--server: %w", err)
		}
		return server, nil
	case serverAuto:
	default:
		return nil, fmt.Errorf("--server %q is unknown; give %s, %s or %s", l.server, serverAuto, serverAlways, serverNever)
	}
	config, err := l.connection.config()
	if err != nil {
		if l.connection != (connection{}) || !clientcmd.IsEmptyConfig(errors.Unwrap(err)) { // a cluster was named
			return nil, err
		}
		cmd.PrintErrln("note: no API server checked this, as no kubeconfig names one")
		return nil, nil
	}
	config.Timeout = answerTime
	asked, err := discovery.NewDiscoveryClientForConfig(config)
	if err == nil {
		_, err = asked.ServerVersion()
	}
	if err != nil {
		cmd.PrintErrf("note: no API server checked this; the request to %s failed: %v\n", config.Host, err)
		return nil, nil
	}
	server, err := newLintServer(l.connection, answerTime)
	if err != nil {
		return nil, err
	}
	server.offered = true
	cmd.PrintErrf("note: the API server %s checks this too; --server=never skips that\n", config.Host)
	return server, nil
}

// newLintServer reaches the API server; a server that is not there is an error at
// the first check. Each answer may take so long; 0 is for ever.
func newLintServer(to connection, each time.Duration) (*lintServer, error) {
	config, err := to.config()
	if err != nil {
		return nil, err
	}
	config.Timeout = each
	c, err := client.New(config, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		return nil, fmt.Errorf("reaching the API server: %w", err)
	}
	// Unknown fields are refused, as kubectl has it.
	return &lintServer{client: client.WithFieldValidation(c, "Strict")}, nil
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
		return findings{m.findingAt(s.unanswered(), "", nil, "the API server has no resource PavProvisioner; run tarn install")}
	case errors.As(err, &status) && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) && !deniedByWebhook(err) || !s.offered):
		return findings{m.findingAt(levelError, "", nil, "the API server rejects it: "+err.Error())}
	}
	return findings{m.findingAt(s.unanswered(), "", nil, "the API server did not check it: "+err.Error())}
}

// unanswered is how bad it is that the API server has not checked something.
func (s *lintServer) unanswered() level {
	if s.offered {
		return levelNote
	}
	return levelError
}
