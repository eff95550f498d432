package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/node/capacity"
	"tarn.dev/tarn/internal/node/driver"
	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/podend"
	"tarn.dev/tarn/internal/node/results"
	"tarn.dev/tarn/internal/node/stages"
	"tarn.dev/tarn/internal/steppod"
)

// Options are the flags of the node agent.
type Options struct {
	// NodeName is the node's name in the API.
	NodeName string
	// KubeletDir is the kubelet's root directory, as the kubelet sees it.
	KubeletDir string
	// StateDir is the agent's own directory.
	StateDir string
	// CRIEndpoint is the container runtime's socket; empty if the agent has no access to it.
	CRIEndpoint string
	// Version is the version of Tarn.
	Version string
}

// Agent is the node agent.
type Agent struct {
	options Options
	cached  client.Reader
	drivers *driver.Drivers
	stages  *stages.Stages
	results *results.Results
	meter   *capacity.Meter
	// open is closed once the leftovers of an earlier run are cleared, so that volumes may be
	// served. served is set when all are.
	open   chan struct{}
	served atomic.Bool
}

// CacheOptions limit the cache to what the agent reads: the stages and capacities of its node,
// and whether provisioners may be used.
func CacheOptions(nodeName string) cache.Options {
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		NewInformer:      kube.SteadyInformer,
		ByObject: map[client.Object]cache.ByObject{
			&tarnv1.PavStage{}:              {Field: fields.OneTermEqualSelector(stages.NodeField, nodeName)},
			&pavv1.PavProvisioner{}:         {Transform: stripProvisioner},
			&storagev1.CSIStorageCapacity{}: capacity.CacheOptions(nodeName),
		},
	}
}

// stripProvisioner drops the templates, which are large and which the agent never evaluates. It
// keeps whether volumeExpansion exists, and whether a staging template reads readOnly.
func stripProvisioner(object any) (any, error) {
	if p, ok := object.(*pavv1.PavProvisioner); ok {
		expansion, apart := p.Spec.VolumeExpansion, steppod.StagesApart(p)
		p.ManagedFields, p.Annotations, p.Spec = nil, nil, pavv1.PavProvisionerSpec{}
		if expansion != nil {
			p.Spec.VolumeExpansion = &apiextensionsv1.JSON{Raw: []byte("{}")}
		}
		if apart {
			p.Spec.VolumeStaging = &apiextensionsv1.JSON{Raw: []byte(`"{{ readOnly }}"`)}
		}
	}
	return object, nil
}

// Register builds the agent and adds it to the manager. The manager's cache must have been made
// with CacheOptions.
func Register(m manager.Manager, o Options) (*Agent, error) {
	if err := mounts.CheckKernel(); err != nil {
		return nil, err
	}
	table := mounts.NewPatient(stages.ServerAnswer)
	a := &Agent{options: o, cached: m.GetCache(), open: make(chan struct{})}
	live := ownPods{Reader: m.GetAPIReader(), writer: m.GetClient(), node: o.NodeName}
	var err error
	a.stages, err = stages.New(stages.Config{
		Writer: m.GetClient(), Live: live, Cached: m.GetCache(), Mounts: table,
		Folder: filepath.Join(o.StateDir, "stages"), KubeletFolder: filepath.Clean(o.KubeletDir),
		NodeName: o.NodeName, Now: time.Now,
	})
	if err != nil {
		return nil, fmt.Errorf("watch /pav directories: %w", err)
	}
	a.results = results.New(results.Config{
		Writer: m.GetClient(), Live: live, Mounts: table,
		Folder: filepath.Join(o.StateDir, "results"), KubeletFolder: filepath.Clean(o.KubeletDir),
	})
	a.meter = capacity.New(m.GetClient(), m.GetCache(), o.NodeName)
	a.drivers = driver.New(driver.Config{
		Volumes: &volumes{stages: a.stages, results: a.results, stepEnded: a.meter.StepEnded}, Mounts: table,
		Folder: filepath.Join(o.StateDir, "drivers"), Registry: filepath.Join(o.KubeletDir, "plugins_registry"),
		NodeName: o.NodeName, Version: o.Version,
	})
	return a, a.register(m)
}

func (a *Agent) register(m manager.Manager) error {
	if err := m.Add(manager.RunnableFunc(func(ctx context.Context) error { return a.run(ctx, m) })); err != nil {
		return err
	}
	if err := a.stages.Register(m); err != nil {
		return err
	}
	if err := a.meter.Register(m); err != nil {
		return err
	}
	return builder.ControllerManagedBy(m).
		Named("node-drivers").
		For(&pavv1.PavProvisioner{}).
		Watches(&tarnv1.PavStage{}, handler.EnqueueRequestsFromMapFunc(provisionerOf)).
		WithOptions(controller.Options{RateLimiter: kube.RateLimiter()}).
		Complete(reconcile.Func(a.reconcileDriver))
}

// Ready is a readiness check: it fails until all volumes of the node are served.
func (a *Agent) Ready(*http.Request) error {
	if !a.served.Load() {
		return errors.New("not all CSI sockets are served yet")
	}
	return nil
}

func logger() logr.Logger { return log.Log.WithName("node") }

// run starts the agent's work once the cache is filled, and ends it with ctx.
func (a *Agent) run(ctx context.Context, m manager.Manager) error {
	if !m.GetCache().WaitForCacheSync(ctx) {
		return nil
	}
	logger := logger()
	ctx = log.IntoContext(ctx, logger)
	informer, err := m.GetCache().GetInformer(ctx, &tarnv1.PavStage{})
	if err != nil {
		return fmt.Errorf("watch PavStages: %w", err)
	}
	if err := a.stages.Watch(informer); err != nil {
		return fmt.Errorf("watch PavStages: %w", err)
	}
	if err := errors.Join(a.stages.Collect(ctx), a.results.Collect(ctx)); err != nil {
		logger.Error(err, "cannot remove everything that an earlier run left; the next start retries")
	}
	if a.options.CRIEndpoint != "" {
		go func() {
			if err := podend.Follow(ctx, a.options.CRIEndpoint, a.node(m.GetAPIReader()), a.results, a.stages); err != nil {
				logger.Error(err, "cannot follow the container runtime; ends of pods are seen when the kubelet reports them")
			}
		}()
	}
	defer a.drivers.Close()
	if err := a.clean(ctx); err != nil {
		return err
	}
	close(a.open)
	for !a.serveAll(ctx) {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait.Jitter(time.Second, 0.5)): // the release of a socket by another process causes no event
		}
	}
	a.served.Store(true)
	logger.Info("all drivers are served")
	<-ctx.Done()
	return nil
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get

// node reads the Node the agent runs on.
func (a *Agent) node(live client.Reader) func(context.Context) (*corev1.Node, error) {
	return func(ctx context.Context) (*corev1.Node, error) {
		node := &corev1.Node{}
		err := live.Get(ctx, client.ObjectKey{Name: a.options.NodeName}, node)
		return node, err
	}
}

// provisionerOf enqueues the driver of a stage that is created or deleted.
func provisionerOf(_ context.Context, stage client.Object) []reconcile.Request {
	s, ok := stage.(*tarnv1.PavStage)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: s.Spec.Provisioner.Name}}}
}

// wanted gives the names of all drivers to serve: Tarn's own, and those of the provisioners, except
// names that another driver has. The drivers of stages on this node are always among them, even
// without their provisioner. The kubelet must be able to unpublish, otherwise their pods could
// never be deleted.
func (a *Agent) wanted(ctx context.Context) (map[string]bool, error) {
	provisioners, stages := &pavv1.PavProvisionerList{}, &tarnv1.PavStageList{}
	if err := errors.Join(a.cached.List(ctx, provisioners), a.cached.List(ctx, stages)); err != nil {
		return nil, fmt.Errorf("list PavProvisioners and PavStages: %w", err)
	}
	names := map[string]bool{tarnv1.ResultsDriver: true}
	for i := range provisioners.Items {
		if p := &provisioners.Items[i]; !nameTaken(p) {
			names[p.Name] = true
		}
	}
	for i := range stages.Items {
		names[stages.Items[i].Spec.Provisioner.Name] = true
	}
	return names, nil
}

// nameTaken says whether the CSIDriver with a provisioner's name belongs to another driver. If the
// agent registered the name all the same, that driver would lose it when its pod restarts. A
// provisioner that was not checked yet is offered.
func nameTaken(p *pavv1.PavProvisioner) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c metav1.Condition) bool {
		return c.Status == metav1.ConditionFalse && c.Reason == pavv1.ReasonDriverNameTaken
	})
}

// clean removes the sockets that an earlier run has left for drivers that are no longer wanted.
func (a *Agent) clean(ctx context.Context) error {
	names, err := a.wanted(ctx)
	if err != nil {
		return err
	}
	if err := a.drivers.Clean(func(name string) bool { return names[name] }); err != nil {
		log.FromContext(ctx).Error(err, "cannot remove the sockets of drivers that are gone")
	}
	return nil
}

// serveAll serves every driver that is not served yet, and says whether all are served now.
func (a *Agent) serveAll(ctx context.Context) bool {
	names, err := a.wanted(ctx)
	for name := range names {
		if failed := a.settle(ctx, name); !a.isAnothers(ctx, name, failed) {
			err = errors.Join(err, failed)
		}
	}
	if err != nil {
		log.FromContext(ctx).Error(err, "not all drivers are served yet")
	}
	return err == nil
}

// isAnothers says whether a driver is not served because the owner of its name has registered
// itself. The agent is still ready then. The kubelet asks the owner about our volumes, too, until
// it is removed, and reconcileDriver retries.
func (a *Agent) isAnothers(ctx context.Context, name string, failed error) bool {
	if !errors.Is(failed, driver.ErrServed) {
		return false
	}
	p := &pavv1.PavProvisioner{}
	return a.cached.Get(ctx, client.ObjectKey{Name: name}, p) == nil && nameTaken(p)
}

// reconcileDriver serves a driver as long as its PavProvisioner exists, accepted or not, under
// deletion or not: staged volumes must be unstaged. If another driver has the name, the agent
// serves it only for that.
func (a *Agent) reconcileDriver(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	select {
	case <-a.open:
	case <-ctx.Done():
		return reconcile.Result{}, nil
	}
	// The driver's log outlives this reconcile and is not about it.
	return reconcile.Result{}, a.settle(log.IntoContext(ctx, logger()), request.Name)
}

// settle serves or ends a driver, as wanted at that moment.
func (a *Agent) settle(ctx context.Context, name string) error {
	return a.drivers.Settle(ctx, name, func() (bool, error) {
		names, err := a.wanted(ctx)
		return names[name], err
	})
}
