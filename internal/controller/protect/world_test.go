//go:build integration

package protect

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

// world is an API server, the controllers on it with the account they have in a cluster, and a
// namespace for one case. The test acts as scheduler, kubelet and binder.
type world struct {
	testkit.World
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
	w := &world{World: testkit.NewWorld(t, config), lists: map[string]int{}, patches: map[string]int{}}
	w.namespace = w.Namespace(name)
	return w
}

// run starts the controllers with a configuration and returns the function that stops them. see
// wraps the cache of all pods; nil leaves it as it is.
func (w *world) run(restConfig *rest.Config, see func(cache.Cache) cache.Cache) (stop func()) {
	w.T.Helper()
	restConfig = rest.CopyConfig(restConfig)
	restConfig.Wrap(w.watchLists)
	restConfig.Wrap(w.watchPatches)
	return w.Run(restConfig, func(mgr ctrl.Manager) error {
		pods, err := kube.AllPods(mgr)
		if err != nil {
			return err
		}
		if see != nil {
			pods = see(pods)
		}
		w.known = mgr.GetClient()
		return Register(mgr, Options{Pods: pods, MaxConcurrent: 4, Clock: w.clock})
	})
}

// start runs the controllers until the case ends.
func (w *world) start() { w.T.Cleanup(w.run(w.Config, nil)) }

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
	w.T.Helper()
	claim := testkit.Claim(w.namespace, name, "", "none")
	claim.Annotations = nil
	for _, change := range changes {
		change(claim)
	}
	w.Create(claim)
	return claim
}

// pod creates a pod, with a node unless it is meant to be unscheduled.
func (w *world) pod(pod corev1.Pod) *corev1.Pod {
	w.T.Helper()
	pod.UID, pod.Namespace, pod.Status = "", w.namespace, corev1.PodStatus{}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "busybox:1.36"}}
	for i := range pod.Spec.Volumes {
		if e := pod.Spec.Volumes[i].Ephemeral; e != nil {
			e.VolumeClaimTemplate = &corev1.PersistentVolumeClaimTemplate{Spec: testkit.Claim("", "", "", "none").Spec}
		}
	}
	w.Create(&pod)
	return &pod
}

// kill deletes a pod as the kubelet does when all its containers are gone.
func (w *world) kill(pod *corev1.Pod) {
	w.T.Helper()
	w.Must(w.Client.Delete(w.Ctx, pod, client.GracePeriodSeconds(0)))
}

func (w *world) phase(pod *corev1.Pod, phase corev1.PodPhase) {
	w.T.Helper()
	base := pod.DeepCopy()
	pod.Status.Phase = phase
	w.Must(w.Client.Status().Patch(w.Ctx, pod, client.MergeFrom(base)))
}

func (w *world) delete(objects ...client.Object) {
	w.T.Helper()
	for _, o := range objects {
		w.Must(w.Client.Delete(w.Ctx, o))
	}
}

// volume creates a volume that points at a claim, or at none if that is nil.
func (w *world) volume(name string, claim *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumePhase, sources ...corev1.PersistentVolumeSource) *corev1.PersistentVolume {
	w.T.Helper()
	vol := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace + "-" + name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:         corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			StorageClassName: "none", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}},
		},
	}
	for _, source := range sources {
		vol.Spec.PersistentVolumeSource = source
	}
	if claim != nil {
		vol.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	}
	w.Create(vol)
	w.volumePhase(vol, phase)
	return vol
}

// boundTo creates a volume from a source and binds a claim to it.
func (w *world) boundTo(claim *corev1.PersistentVolumeClaim, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
	w.T.Helper()
	vol := w.volume(claim.Name, claim, corev1.VolumeBound, source)
	claim.Spec.VolumeName = vol.Name
	w.Must(w.Client.Update(w.Ctx, claim))
	return vol
}

// staged creates the stage through which a pod has a volume mounted.
func (w *world) staged(vol *corev1.PersistentVolume, driver string, pod *corev1.Pod) *tarnv1.PavStage {
	w.T.Helper()
	stage := &tarnv1.PavStage{ObjectMeta: metav1.ObjectMeta{Name: vol.Name}, Spec: tarnv1.PavStageSpec{
		Provisioner: tarnv1.ProvisionerReference{Name: driver, UID: "p"}, VolumeName: vol.Name, VolumeUID: vol.UID, NodeName: pod.Spec.NodeName,
	}}
	stage.Status.Node.Targets = []string{"/var/lib/kubelet/pods/" + string(pod.UID) + "/volumes/kubernetes.io~csi/" + vol.Name + "/mount"}
	w.CreateWithStatus(stage)
	return stage
}

func (w *world) volumePhase(vol *corev1.PersistentVolume, phase corev1.PersistentVolumePhase) {
	w.T.Helper()
	base := vol.DeepCopy()
	vol.Status.Phase = phase
	w.Must(w.Client.Status().Patch(w.Ctx, vol, client.MergeFrom(base)))
}

// gone waits until an object is gone.
func (w *world) gone(o client.Object) {
	w.T.Helper()
	w.Eventually("deletion", func() string { return w.Gone(o) })
}

// kept checks that claims being deleted still exist after the controllers have handled all events
// so far. To know that, it waits until they release a claim of the same namespace that it deletes
// afterwards.
func (w *world) kept(claims ...*corev1.PersistentVolumeClaim) {
	w.T.Helper()
	w.barriers++
	barrier := w.claim(fmt.Sprintf("barrier-%d", w.barriers))
	w.delete(barrier)
	w.gone(barrier)
	for _, claim := range claims {
		if err := w.Client.Get(w.Ctx, client.ObjectKeyFromObject(claim), claim); err != nil || claim.DeletionTimestamp == nil {
			w.T.Fatalf("claim %s is not kept: deleted at %v (%v)", claim.Name, claim.DeletionTimestamp, err)
		}
	}
}

// live plays a claim and its volume from creation to deletion under a killer. It restarts the
// controllers after each kill.
func live(t *testing.T, server *rest.Config, name string, k *testkit.Killer) {
	t.Run(name, func(t *testing.T) {
		w := newWorld(t, server, name)
		end := k.Life(w.Config, func(c *rest.Config) func() { return w.run(c, nil) })
		claim := w.claim("x")
		vol := w.volume("x", claim, corev1.VolumeBound)
		for o, finalizer := range map[client.Object]string{claim: FinalizerClaim, vol: FinalizerVolume} {
			w.takenAndPutBack(o, finalizer)
		}
		pod := w.pod(podWith("p", "x"))
		w.delete(vol, claim)
		w.kept(claim)
		w.kill(pod)
		w.gone(claim)
		w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(vol), vol))
		w.volumePhase(vol, corev1.VolumeReleased)
		w.gone(vol)
		end()
	})
}
