package bind

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// newestMinor is the newest minor version of Kubernetes 1 whose claim and volume fields this
// program knows completely: that of its libraries.
const newestMinor = 36

// checkVersion checks the API server's version when binding begins.
func checkVersion(mgr ctrl.Manager, config *rest.Config, log logr.Logger) error {
	api, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("making the client that asks for the API server's version: %w", err)
	}
	err = mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		warnIfNewer(ctx, api.ServerVersion, log)
		return nil
	}))
	if err != nil {
		return fmt.Errorf("adding the check of the API server's version: %w", err)
	}
	return nil
}

// warnIfNewer logs a warning if the API server is newer than the libraries. The binder writes whole
// claims and volumes. Each write would erase the fields that were added since, or the API server
// would reject it.
func warnIfNewer(ctx context.Context, ask func() (*apiversion.Info, error), log logr.Logger) {
	info, err := ask()
	if err != nil {
		if ctx.Err() == nil {
			log.Error(err, "cannot read the API server's version; the binder knows the fields of claims and volumes up to Kubernetes 1."+strconv.Itoa(newestMinor))
		}
		return
	}
	minor, err := strconv.Atoi(strings.TrimRight(info.Minor, "+")) // some clouds report 36+
	if err != nil || info.Major != "1" || minor > newestMinor {
		log.Info("the API server is newer than this binder, which erases fields of claims and volumes that it does not know when it writes them: "+
			"update Tarn, or leave binding to kube-controller-manager until then", "apiServer", info.GitVersion, "known", "v1."+strconv.Itoa(newestMinor))
	}
}
