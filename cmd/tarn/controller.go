package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/cli"
	"tarn.dev/tarn/internal/controller/apps"
	"tarn.dev/tarn/internal/controller/pool"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/plugin/hostpath"
	"tarn.dev/tarn/internal/steppod"
)

type controllerFlags struct {
	process     cli.ProcessFlags
	controllers []string
	election    electionFlags
	plugins     pluginFlags
	stateDir    string
	namespaces  []string
	workers     int
	pauseImage  string
	scrubImage  string
	pullSecrets []string
	appClasses  map[string]string
	// provisioning says whether the binder calls provisioners.
	provisioning bool
	// insecureKubelets says that the certificates of kubelets are not verified.
	insecureKubelets bool
}

func newControllerCommand() *cobra.Command {
	var flags controllerFlags
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Run the controllers: provisioners, volumes, stages, reclaiming",
		Long: "Run Tarn's controllers until they are stopped. You can run several: one is the leader, and another takes over within\n" +
			"seconds; see docs/operations/high-availability.md. If Kubernetes itself binds and protects claims,\n" +
			"which is usual, leave bind and protect out with --controllers.",
		Example: "  tarn controller\n" +
			"  tarn controller --controllers '*' --scrub-image tarn:latest",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runController(cmd, flags) },
	}
	flags.process.Register(cmd.Flags())
	cmd.Flags().StringSliceVar(&flags.controllers, "controllers", defaultControllers, "controllers to run: * for all, names, and -name to leave one out; for bind and protect, disable Kubernetes' own in kube-controller-manager ("+strings.Join(controllerNames(), ", ")+"; provision and reclaim are former names of pavvolume)")
	flags.election.register(cmd.Flags())
	flags.plugins.register(cmd.Flags())
	cmd.Flags().BoolVar(&flags.provisioning, "enable-dynamic-provisioning", true, "whether the controller bind requests new volumes if none fits; kube-controller-manager has the same flag for its binder")
	cmd.Flags().StringVar(&flags.stateDir, "state-dir", tarnv1.DefaultStateDir, "directory of the node agent on every node; must be the same for tarn node")
	cmd.Flags().StringSliceVar(&flags.namespaces, "step-namespaces", steppod.DefaultNamespaces, "namespaces where pods of PavProvisioners may run; the first is the default of templates that name none; * for all. These pods are root on their nodes, and so may be users who can edit one of these namespaces")
	cmd.Flags().StringVar(&flags.pauseImage, "pause-image", pool.DefaultPauseImage, "image of the pods that make the scheduler select nodes for pools; they do not start, so it does not have to exist")
	cmd.Flags().StringVar(&flags.scrubImage, "scrub-image", "", "image of tarn, for the pods that recycle released volumes; empty switches recycling off")
	cmd.Flags().StringSliceVar(&flags.pullSecrets, "scrub-pull-secret", nil, "names of Secrets in Tarn's namespace for pulling that image")
	registerClasses(cmd.Flags(), &flags.appClasses)
	cmd.Flags().BoolVar(&flags.insecureKubelets, "kubelet-insecure-tls", false, "do not verify the certificates of kubelets, which controller autogrow asks how full volumes are; for clusters whose authority has not signed them. They are shown a token that is good for this question alone")
	cmd.Flags().IntVar(&flags.workers, "workers", 16, "how many objects of a kind are reconciled at a time")
	return cmd
}

func runController(cmd *cobra.Command, flags controllerFlags) error {
	if err := steppod.Namespaces(flags.namespaces).Check(); err != nil {
		return err
	}
	if err := flags.election.check(); err != nil {
		return err
	}
	config, err := flags.process.RESTConfig()
	if err != nil {
		return err
	}
	flags.process.SetUpLogging()
	cached, err := controllerCache()
	if err != nil {
		return err
	}
	spareMemory(&cached)
	spareProcessors()
	options := ctrl.Options{
		Scheme:                 kube.Scheme(),
		Cache:                  cached,
		Metrics:                flags.process.Metrics(),
		HealthProbeBindAddress: flags.process.ProbeAddress,
		PprofBindAddress:       flags.process.ProfileAddress,
	}
	flags.election.apply(&options)
	mgr, err := kube.NewManager(config, options)
	if err != nil {
		return fmt.Errorf("starting the controllers: %w", err)
	}
	selected, err := selectControllers(flags.controllers)
	if err != nil {
		return err
	}
	if err := errors.Join(register(mgr, flags), flags.election.fillCaches(cmd.Context(), mgr.GetCache(), selected)); err != nil {
		return err
	}
	if err := errors.Join(
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("leading", ready(mgr.GetCache(), mgr.GetAPIReader(), mgr.Elected())),
	); err != nil {
		return err
	}
	return mgr.Start(cmd.Context())
}

func register(mgr ctrl.Manager, flags controllerFlags) error {
	selected, err := selectControllers(flags.controllers)
	if err != nil {
		return err
	}
	plugins, err := flags.plugins.plugins()
	if err != nil {
		return err
	}
	classes, err := appClasses(flags.appClasses)
	if err != nil {
		return err
	}
	shared := parts{
		plugins: plugins,
		steps:   &steppod.Steps{Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), StateDir: flags.stateDir, Namespaces: flags.namespaces, EventsOf: steppod.LiveEvents(mgr.GetAPIReader())},
		workers: flags.workers, pauseImage: flags.pauseImage, scrubImage: flags.scrubImage, pullSecrets: flags.pullSecrets, appClasses: classes,
		ownBinder: slices.Contains(selected, "bind"), provisioning: flags.provisioning, insecureKubelets: flags.insecureKubelets,
		pods: sync.OnceValues(func() (cache.Cache, error) { return kube.AllPods(mgr) }),
	}
	mgr = kube.Shared(mgr)
	for _, name := range selected {
		if err := controllers[name](mgr, shared); err != nil {
			return fmt.Errorf("registering controller %s: %w", name, err)
		}
	}
	mgr.GetLogger().Info("controllers are set up", "controllers", selected)
	return nil
}

// controllerCache returns what the controllers keep in their cache. Of pods and disruption budgets,
// it holds only those that Tarn has created, and of storage capacities those in Tarn's namespace.
// Of Apps, and of Deployments and ConfigMaps with their label, it holds a few hundred bytes each. It
// holds no fields that only API servers read.
func controllerCache() (cache.Options, error) {
	ours, err := labels.NewRequirement(tarnv1.LabelStep, selection.Exists, nil)
	if err != nil {
		return cache.Options{}, fmt.Errorf("selecting Tarn's pods: %w", err)
	}
	held, err := apps.Cached()
	if err != nil {
		return cache.Options{}, err
	}
	held[&corev1.Pod{}] = cache.ByObject{Label: labels.NewSelector().Add(*ours)}
	held[&storagev1.CSIStorageCapacity{}] = cache.ByObject{Namespaces: map[string]cache.Config{cli.Namespace: {}}}
	held[&policyv1.PodDisruptionBudget{}] = cache.ByObject{Label: labels.NewSelector().Add(*ours)}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		NewInformer:      kube.SteadyInformer,
		ByObject:         held,
	}, nil
}

// pluginFlags say which in-process plugins run.
type pluginFlags struct {
	hostPathRoot string
	nodeName     string
}

func (f *pluginFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.hostPathRoot, "host-path-root", "", "directory where "+hostpath.Provisioner+" makes volumes, at the path that this node's kubelet uses; for clusters of one node; empty switches it off")
	flags.StringVar(&f.nodeName, "node-name", os.Getenv("NODE_NAME"), "name in the API of this process's node; needed for --host-path-root; the default is $NODE_NAME")
}

// plugins returns the plugins that the flags ask for.
func (f *pluginFlags) plugins() ([]plugin.Plugin, error) {
	if f.hostPathRoot == "" {
		return nil, nil
	}
	made, err := hostpath.New(f.hostPathRoot, f.nodeName)
	if err != nil {
		return nil, fmt.Errorf("--host-path-root and --node-name: %w", err)
	}
	if made.Place == "" {
		fmt.Fprintf(os.Stderr, "--host-path-root %s: cannot create .tarn-root there, for example because the disk is full or read-only: Tarn would not notice if another disk is mounted there later\n", f.hostPathRoot)
	}
	return []plugin.Plugin{made}, nil
}
