package main

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"tarn.dev/tarn/internal/api"
	appspec "tarn.dev/tarn/internal/app/spec"
	"tarn.dev/tarn/internal/cli"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/kubelet"
)

type apiFlags struct {
	process   cli.ProcessFlags
	listening api.Listening
	options   api.Options
	classes   map[string]string
}

func newAPICommand() *cobra.Command {
	flags := apiFlags{options: api.Options{Version: cli.Version, Limits: api.DefaultLimits}}
	cmd := &cobra.Command{
		Use:   "api",
		Short: "Run the REST API of applications: deploy a paas.toml, scale, resize",
		Long: `Run the REST API of applications. Callers send a Kubernetes token; what they may do is what Kubernetes lets them do with
apps.tarn.dev in the namespace. The API describes itself at /docs and /openapi.json. It keeps no state: any number may run.`,
		Example: "  tarn api\n" +
			"  tarn api --bind-address :8443 --tls-cert-file tls.crt --tls-private-key-file tls.key",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runAPI(cmd, flags) },
	}
	flags.process.Register(cmd.Flags())
	cmd.AddCommand(newDocumentCommand())
	f := cmd.Flags()
	f.StringVar(&flags.listening.Address, "bind-address", "127.0.0.1:8084", "address that serves the API")
	f.StringVar(&flags.listening.CertFile, "tls-cert-file", "", "TLS certificate; reloaded when it changes")
	f.StringVar(&flags.listening.KeyFile, "tls-private-key-file", "", "private key of --tls-cert-file")
	f.BoolVar(&flags.listening.Insecure, "insecure", false, "serve plain HTTP on other addresses than loopback, behind a proxy that terminates TLS")
	f.StringVar(&flags.options.Namespace, "default-namespace", "default", "default namespace for callers that are not service accounts")
	f.StringSliceVar(&flags.options.Audiences, "audience", nil, "audience that tokens must have; the default is the API server's own")
	registerClasses(f, &flags.classes)
	f.Float64Var(&flags.options.Limits.PerSecond, "calls-per-second", api.DefaultLimits.PerSecond, "sustained calls per second allowed for a user, or for all service accounts of a namespace together")
	f.IntVar(&flags.options.Limits.Burst, "calls-at-once", api.DefaultLimits.Burst, "burst of calls allowed for them")
	f.IntVar(&flags.options.Limits.Streams, "streams", api.DefaultLimits.Streams, "event streams allowed for them at a time")
	f.IntVar(&flags.options.Limits.Apps, "apps-per-namespace", api.DefaultLimits.Apps, "apps allowed in a namespace before the API rejects new ones; 0 for no limit")
	return cmd
}

func newDocumentCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "openapi",
		Short:   "Print the description of the REST API, OpenAPI 3.1",
		Example: "  tarn api openapi > openapi.json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := api.Document(cli.Version)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
}

// registerClasses adds the flag for the storage classes of volumes that name none. The API and the
// controllers must get the same value.
func registerClasses(flags *pflag.FlagSet, classes *map[string]string) {
	cli.RegisterAppClasses(flags, classes, "default storage class of applications' volumes, for each access mode; must be the same for the API and the controllers")
}

// appClasses reads the flag of registerClasses.
func appClasses(words map[string]string) (map[appspec.AccessMode]string, error) {
	return cli.AppClasses(words)
}

// usedBytes returns a function that asks kubelets how full volumes are. Usage that they do not
// report is unknown.
func usedBytes(config *rest.Config, live client.Client, log logr.Logger) (func(context.Context, string, map[string]string) map[string]kubelet.Usage, error) {
	if config.Insecure {
		log.Info("the usage of volumes is unknown: there is no certificate authority to verify the kubelets with")
		return nil, nil
	}
	kubelets, err := askingKubelets(config, live, false)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, namespace string, labels map[string]string) map[string]kubelet.Usage {
		used, err := kubelets.Used(ctx, namespace, labels)
		if err != nil {
			log.V(1).Info("the usage of some volumes is unknown", "namespace", namespace, "because", err.Error())
		}
		return used
	}, nil
}

// actingAs returns a function that makes clients which write only with a caller's token.
func actingAs(config *rest.Config, live client.Client) func(string) (client.Writer, error) {
	return func(token string) (client.Writer, error) {
		own := rest.AnonymousClientConfig(config)
		own.BearerToken, own.QPS, own.Burst = token, -1, -1
		return client.New(own, client.Options{Scheme: live.Scheme(), Mapper: live.RESTMapper()})
	}
}

func runAPI(cmd *cobra.Command, flags apiFlags) error {
	if err := flags.listening.Check(); err != nil {
		return err
	}
	classes, err := appClasses(flags.classes)
	if err != nil {
		return err
	}
	config, err := flags.process.RESTConfig()
	if err != nil {
		return err
	}
	flags.process.SetUpLogging()
	grace := 15 * time.Second
	mgr, err := kube.NewManager(config, ctrl.Options{
		Scheme:                  kube.Scheme(),
		Metrics:                 flags.process.Metrics(),
		HealthProbeBindAddress:  flags.process.ProbeAddress,
		PprofBindAddress:        flags.process.ProfileAddress,
		GracefulShutdownTimeout: &grace,
	})
	if err != nil {
		return fmt.Errorf("starting the REST API: %w", err)
	}
	live, err := client.NewWithWatch(config, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		return fmt.Errorf("starting the REST API: %w", err)
	}
	options := flags.options
	options.As = actingAs(config, live)
	options.Client, options.Classes, options.Log, options.Metrics = live, classes, mgr.GetLogger().WithName("api"), ctrlmetrics.Registry
	if options.Used, err = usedBytes(config, live, options.Log); err != nil {
		return fmt.Errorf("starting the REST API: %w", err)
	}
	server, err := api.New(options)
	if err != nil {
		return fmt.Errorf("starting the REST API: %w", err)
	}
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { return server.Serve(ctx, flags.listening) })); err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("listening", server.Ready); err != nil {
		return err
	}
	return mgr.Start(cmd.Context())
}
