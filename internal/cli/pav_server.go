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
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/kube"
)

// answerTime is how long a server may take to answer if the user has not asked for it.
const answerTime = 5 * time.Second

// lintServer has an API server check provisioners.
type lintServer struct {
	client client.Client
	// offered says that the user has not asked for this server. Then it is no finding if it does
	// not know a resource, or does not let the caller ask.
	offered bool
}

// reach returns the API server that checks too, nil where there is none. It prints the reason to
// standard error.
func (l *pavLint) reach(cmd *cobra.Command) (*lintServer, error) {
	switch l.server {
	case serverNever, "false": // as for a boolean flag
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

// newLintServer returns a client of the API server. If the server is down, only the first check
// fails. The time limit for one answer is each; 0 means no limit.
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
	// Unknown fields are rejected, as by kubectl.
	return &lintServer{client: client.WithFieldValidation(c, "Strict")}, nil
}

// check returns the API server's objections to the provisioner, in its own words. A provisioner
// that exists already is checked as an update.
func (s *lintServer) check(ctx context.Context, m *manifest) findings {
	o := m.unstructured()
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

// unanswered returns the level of a check that the API server did not make.
func (s *lintServer) unanswered() level {
	if s.offered {
		return levelNote
	}
	return levelError
}
