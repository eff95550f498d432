package cli

import (
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"tarn.dev/tarn/internal/cli/guard"
)

// ProcessFlags are the flags of every long-running process of Tarn.
type ProcessFlags struct {
	// Kubeconfig is a file. If it is empty, the process uses $KUBECONFIG, ~/.kube/config, or the
	// service account of its pod.
	Kubeconfig string
	// MetricsAddress and ProbeAddress are host:port, or 0 for none.
	MetricsAddress, ProbeAddress string
	// MetricsSecure serves metrics over TLS, and only to callers that the API server allows.
	MetricsSecure bool
	// ProfileAddress is host:port of Go's profiles; 0 disables them. Anyone who can reach it can
	// read the process' memory and timing.
	ProfileAddress string
	// Verbosity is the highest level that is logged.
	Verbosity int
}

// Register adds the flags to a set.
func (f *ProcessFlags) Register(flags *pflag.FlagSet) {
	flags.StringVar(&f.Kubeconfig, "kubeconfig", "", "kubeconfig file; the default is $KUBECONFIG, ~/.kube/config or the pod's service account")
	flags.StringVar(&f.MetricsAddress, "metrics-bind-address", ":8080", "address that serves /metrics; 0 switches it off")
	flags.BoolVar(&f.MetricsSecure, "metrics-secure", false, "serve /metrics over TLS with a self-signed certificate, to callers whose token may get /metrics")
	flags.StringVar(&f.ProbeAddress, "health-probe-bind-address", ":8081", "address that serves /healthz and /readyz; 0 switches them off")
	flags.StringVar(&f.ProfileAddress, "pprof-bind-address", "0", "address that serves /debug/pprof, without authentication; 0 switches it off")
	flags.IntVarP(&f.Verbosity, "v", "v", 0, "log level: 0 main events, 1 every step, 2 debugging")
}

// RESTConfig returns how to reach the API server. It sets no client-side rate limit: the API
// server's priority and fairness knows better what it can take.
func (f *ProcessFlags) RESTConfig() (*rest.Config, error) {
	return connection{kubeconfig: f.Kubeconfig}.config()
}

// Metrics returns how metrics are served.
func (f *ProcessFlags) Metrics() metricsserver.Options {
	options := metricsserver.Options{BindAddress: f.MetricsAddress, SecureServing: f.MetricsSecure}
	if f.MetricsSecure {
		options.FilterProvider = guard.New
	}
	return options
}

// SetUpLogging makes controller-runtime log as the flags say, in JSON lines on standard error.
func (f *ProcessFlags) SetUpLogging() {
	handler := slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.Level(-f.Verbosity)})
	logger := logr.FromSlogHandler(lateHandler{Handler: handler})
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
}
