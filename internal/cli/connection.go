package cli

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/kube"
)

// connection names the cluster that a command works on, as kubectl does.
type connection struct {
	// kubeconfig is a file, or empty for $KUBECONFIG or ~/.kube/config; context is one
	// of its contexts, or empty for the current one.
	kubeconfig, context string
}

// register adds the flags of a connection to the command's own or persistent flags.
func (c *connection) register(cmd *cobra.Command, flags *pflag.FlagSet) {
	flags.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig file; the default is $KUBECONFIG or ~/.kube/config")
	flags.StringVar(&c.context, "context", "", "context of the kubeconfig; the default is the current one")
	completeContexts(cmd, c)
}

func (c connection) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.context})
}

// config returns how to reach the API server, without a client-side rate limit.
func (c connection) config() (*rest.Config, error) {
	config, err := c.loader().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no cluster is configured: %w; give --kubeconfig FILE or set KUBECONFIG", err)
	}
	config.QPS, config.Burst = -1, -1
	config.UserAgent = "tarn/" + Version
	return config, nil
}

// serverTime returns the time by the API server's clock, which wrote the times in objects. It is
// this machine's time if the two clocks agree to about a second, or if the API server does not say.
func serverTime(ctx context.Context, config *rest.Config) time.Time {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return time.Now()
	}
	caller, err := rest.HTTPClientFor(config)
	if err != nil {
		return time.Now()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("version").String(), nil)
	if err != nil {
		return time.Now()
	}
	response, err := caller.Do(request)
	if err != nil {
		return time.Now()
	}
	response.Body.Close()
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil && time.Since(date).Abs() > 2*time.Second {
		return date
	}
	return time.Now()
}

// client returns a client that reads from the cluster without a cache.
func (c connection) client() (client.WithWatch, error) {
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	live, err := client.NewWithWatch(config, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		return nil, fmt.Errorf("reaching the API server: %w", err)
	}
	return live, nil
}

// patchAsRead writes what has changed in an object since base. It fails if the object has changed
// on the cluster since it was read as base. doing says in an error what the patch does.
func patchAsRead(ctx context.Context, c client.Client, o, base client.Object, doing string) error {
	err := c.Patch(ctx, o, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return fmt.Errorf("%s %s was changed at the same time; run the command again", reflect.TypeOf(o).Elem().Name(), o.GetName())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// namespace returns the namespace that kubectl would use.
func (c connection) namespace() (string, error) {
	namespace, _, err := c.loader().Namespace()
	if err != nil {
		return "", fmt.Errorf("reading the kubeconfig: %w; give --kubeconfig FILE or set KUBECONFIG", err)
	}
	return namespace, nil
}

// ownNamespace returns the namespace that the kubeconfig's context names. It is empty where the
// context names none or the kubeconfig does not exist.
func (c connection) ownNamespace() string {
	raw, err := c.loader().RawConfig()
	if err != nil {
		return ""
	}
	name := c.context
	if name == "" {
		name = raw.CurrentContext
	}
	if context := raw.Contexts[name]; context != nil {
		return context.Namespace
	}
	return ""
}

// objectsOf returns the objects of a list of any kind.
func objectsOf(list client.ObjectList) []client.Object {
	var found []client.Object
	_ = meta.EachListItem(list, func(item runtime.Object) error {
		if o, ok := item.(client.Object); ok {
			found = append(found, o)
		}
		return nil
	})
	return found
}
