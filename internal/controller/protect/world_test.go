//go:build integration

package protect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

// world is an API server, the controllers on it with the account they have in a cluster, and a
// namespace for one case. The test acts as scheduler, kubelet and binder.
type world struct {
	t         *testing.T
	ctx       context.Context
	config    *rest.Config
	client    client.WithWatch
	namespace string
	barriers  int
	mu        sync.Mutex
	// lists counts the controllers' live lists of pods by namespace. The first failing lists of the
	// case's own namespace are rejected.
	lists   map[string]int
	failing int
	// patches counts the controllers' patches by path. refuses says which are rejected, nil for
	// none.
	patches map[string]int
	refuses func(path string, nth int) bool
	// clock is the controllers' clock, nil for the real one; known is their cache.
	clock clock.PassiveClock
	known client.Reader
}

func newWorld(t *testing.T, config *rest.Config, name string) *world {
	t.Helper()
	ctrl.SetLogger(logr.Discard()) // killed controllers log many errors
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Limit)
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx, config: config, client: testkit.Client(t, config), lists: map[string]int{}, patches: map[string]int{}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"}} // new in each run
	w.create(namespace)
	w.namespace = namespace.Name
	return w
}

func (w *world) create(o client.Object) {
	w.t.Helper()
	w.must(w.client.Create(w.ctx, o))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// run starts the controllers with a configuration and returns the function that stops them. see
// wraps the cache of all pods; nil leaves it as it is.
func (w *world) run(restConfig *rest.Config, see func(cache.Cache) cache.Cache) (stop func()) {
	w.t.Helper()
	restConfig = rest.CopyConfig(restConfig)
	restConfig.Impersonate.UserName = asController
	restConfig.Wrap(w.watchLists)
	restConfig.Wrap(w.watchPatches)
	mgr, err := kube.NewManager(restConfig, ctrl.Options{
		Scheme: kube.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller:              config.Controller{SkipNameValidation: ptr.To(true)},
		GracefulShutdownTimeout: ptr.To(5 * time.Second),
	})
	w.must(err)
	pods, err := kube.AllPods(mgr)
	w.must(err)
	if see != nil {
		pods = see(pods)
	}
	w.must(Register(mgr, Options{Pods: pods, MaxConcurrent: 4, Clock: w.clock}))
	w.known = mgr.GetClient()
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = mgr.Start(ctx) // a killed manager returns an error
	}()
	return func() { cancel(); <-done }
}

// start runs the controllers until the case ends.
func (w *world) start() { w.t.Cleanup(w.run(w.config, nil)) }

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (w *world) watchLists(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		rest, found := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/")
		namespace, is := strings.CutSuffix(rest, "/pods")
		if found && is && r.Method == http.MethodGet && w.refuse(namespace) {
			return nil, errors.New("the API server did not answer")
		}
		return next.RoundTrip(r)
	})
}

func (w *world) refuse(namespace string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lists[namespace]++
	if namespace != w.namespace || w.failing == 0 {
		return false
	}
	w.failing--
	return true
}

// answer makes the lists succeed from now on.
func (w *world) answer() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failing = 0
}

func (w *world) watchPatches(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodPatch && w.refusePatch(r.URL.Path) {
			return nil, errors.New("the API server did not answer")
		}
		return next.RoundTrip(r)
	})
}

func (w *world) refusePatch(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.patches[path]++
	return w.refuses != nil && w.refuses(path, w.patches[path])
}

// patched is how often the controllers have patched an object of the case.
func (w *world) patched(o client.Object) int {
	path := "/api/v1/persistentvolumes/" + o.GetName()
	if o.GetNamespace() != "" {
		path = "/api/v1/namespaces/" + o.GetNamespace() + "/persistentvolumeclaims/" + o.GetName()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.patches[path]
}

// listed is how often the controllers have listed the pods of a namespace live.
func (w *world) listed(namespace string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lists[namespace]
}

func (w *world) claim(name string, changes ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	claim := testkit.Claim(w.namespace, name, "", "none")
	claim.Annotations = nil
	for _, change := range changes {
		change(claim)
	}
	w.create(claim)
	return claim
}

// pod creates a pod, with a node unless it is meant to be unscheduled.
func (w *world) pod(pod corev1.Pod) *corev1.Pod {
	w.t.Helper()
	pod.UID, pod.Namespace, pod.Status = "", w.namespace, corev1.PodStatus{}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "busybox:1.36"}}
	for i := range pod.Spec.Volumes {
		if e := pod.Spec.Volumes[i].Ephemeral; e != nil {
			e.VolumeClaimTemplate = &corev1.PersistentVolumeClaimTemplate{Spec: testkit.Claim("", "", "", "none").Spec}
		}
	}
	w.create(&pod)
	return &pod
}

// kill deletes a pod as the kubelet does when all its containers are gone.
func (w *world) kill(pod *corev1.Pod) {
	w.t.Helper()
	w.must(w.client.Delete(w.ctx, pod, client.GracePeriodSeconds(0)))
}

func (w *world) phase(pod *corev1.Pod, phase corev1.PodPhase) {
	w.t.Helper()
	base := pod.DeepCopy()
	pod.Status.Phase = phase
	w.must(w.client.Status().Patch(w.ctx, pod, client.MergeFrom(base)))
}

func (w *world) delete(objects ...client.Object) {
	w.t.Helper()
	for _, o := range objects {
		w.must(w.client.Delete(w.ctx, o))
	}
}

// volume creates a volume that points at a claim, or at none if that is nil.
func (w *world) volume(name string, claim *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
	w.t.Helper()
	vol := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace + "-" + name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:         corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			StorageClassName: "none", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}},
		},
	}
	if claim != nil {
		vol.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	}
	w.create(vol)
	w.volumePhase(vol, phase)
	return vol
}

// boundTo creates a volume from a source and binds a claim to it.
func (w *world) boundTo(claim *corev1.PersistentVolumeClaim, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
	w.t.Helper()
	vol := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace + "-" + claim.Name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:         corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			StorageClassName: "none", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: source,
			ClaimRef:               &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		},
	}
	w.create(vol)
	w.volumePhase(vol, corev1.VolumeBound)
	claim.Spec.VolumeName = vol.Name
	w.must(w.client.Update(w.ctx, claim))
	return vol
}

// staged creates the stage through which a pod has a volume mounted.
func (w *world) staged(vol *corev1.PersistentVolume, driver string, pod *corev1.Pod) *tarnv1.PavStage {
	w.t.Helper()
	stage := &tarnv1.PavStage{ObjectMeta: metav1.ObjectMeta{Name: vol.Name}, Spec: tarnv1.PavStageSpec{
		Provisioner: tarnv1.ProvisionerReference{Name: driver, UID: "p"}, VolumeName: vol.Name, VolumeUID: vol.UID, NodeName: pod.Spec.NodeName,
	}}
	w.create(stage)
	stage.Status.Node.Targets = []string{"/var/lib/kubelet/pods/" + string(pod.UID) + "/volumes/kubernetes.io~csi/" + vol.Name + "/mount"}
	w.must(w.client.Status().Update(w.ctx, stage))
	return stage
}

func (w *world) volumePhase(vol *corev1.PersistentVolume, phase corev1.PersistentVolumePhase) {
	w.t.Helper()
	base := vol.DeepCopy()
	vol.Status.Phase = phase
	w.must(w.client.Status().Patch(w.ctx, vol, client.MergeFrom(base)))
}

// until waits until check finds nothing wrong.
func (w *world) until(check func() string) {
	w.t.Helper()
	wrong := ""
	if !testkit.MirrorOf(w.t, w.config).Until(w.ctx, func() bool { wrong = check(); return wrong == "" }) {
		w.t.Fatal(wrong)
	}
}

// gone waits until an object is gone.
func (w *world) gone(o client.Object) {
	w.t.Helper()
	w.until(func() string {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("%T %s is there with finalizers %q, deleted at %v (%v)", o, o.GetName(), o.GetFinalizers(), o.GetDeletionTimestamp(), err)
		}
		return ""
	})
}

// kept checks that claims being deleted still exist after the controllers have handled all events
// so far. To know that, it waits until they release a claim of the same namespace that it deletes
// afterwards.
func (w *world) kept(claims ...*corev1.PersistentVolumeClaim) {
	w.t.Helper()
	w.barriers++
	barrier := w.claim(fmt.Sprintf("barrier-%d", w.barriers))
	w.delete(barrier)
	w.gone(barrier)
	for _, claim := range claims {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(claim), claim); err != nil || claim.DeletionTimestamp == nil {
			w.t.Fatalf("claim %s is not kept: deleted at %v (%v)", claim.Name, claim.DeletionTimestamp, err)
		}
	}
}

// live plays a claim and its volume from creation to deletion under a killer. It restarts the
// controllers after each kill.
func live(t *testing.T, server *rest.Config, name string, k *testkit.Killer) {
	t.Run(name, func(t *testing.T) {
		w := newWorld(t, server, name)
		end := k.Life(w.config, func(c *rest.Config) func() { return w.run(c, nil) })
		claim := w.claim("x")
		vol := w.volume("x", claim, corev1.VolumeBound)
		for o, finalizer := range map[client.Object]string{claim: FinalizerClaim, vol: FinalizerVolume} {
			o.SetFinalizers(nil)
			w.must(w.client.Update(w.ctx, o))
			w.until(func() string {
				w.must(w.client.Get(w.ctx, client.ObjectKeyFromObject(o), o))
				if len(o.GetFinalizers()) != 1 {
					return fmt.Sprintf("%T has finalizers %q, want %s", o, o.GetFinalizers(), finalizer)
				}
				return ""
			})
		}
		pod := w.pod(podWith("p", "x"))
		w.delete(vol, claim)
		w.kept(claim)
		w.kill(pod)
		w.gone(claim)
		w.must(w.client.Get(w.ctx, client.ObjectKeyFromObject(vol), vol))
		w.volumePhase(vol, corev1.VolumeReleased)
		w.gone(vol)
		end()
	})
}
