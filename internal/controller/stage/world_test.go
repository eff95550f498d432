package stage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
)

var errKilled = errors.New("killed")

// kubeletHolds keeps a deleted pod until the world's kubelet has stopped it.
const kubeletHolds = "test/kubelet"

// world is an API server, the controller, and stand-ins for the kubelet and the node agent. The
// controller's writes can be made to fail.
type world struct {
	testkit.Writes
	t      *testing.T
	store  client.WithWatch
	r      *Reconciler
	clock  *testclock.FakePassiveClock
	events *events.FakeRecorder

	// behind makes the controller's cache a round old.
	behind bool

	// end returns the phase in which a pod's containers end; they run until it returns one.
	end func(*corev1.Pod) corev1.PodPhase
	// refuse reports whether the API server rejects a pod.
	refuse func(*corev1.Pod) bool
	// during runs in each round, between kubelet and node agent.
	during func()

	// made are the names of the pods that were created.
	made []string
	uids int
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	w := &world{t: t, clock: testclock.NewFakePassiveClock(noon), events: events.NewFakeRecorder(1000)}
	w.end = func(*corev1.Pod) corev1.PodPhase { return corev1.PodSucceeded }
	w.refuse = func(*corev1.Pod) bool { return false }
	w.during = func() {}
	w.store = build(objects...)
	w.Create = w.create
	failing := w.Wrap(w.store)
	steps := &steppod.Steps{Namespaces: steppod.Namespaces{"default", "*"}, Client: failing, Reader: w.store, StateDir: tarnv1.DefaultStateDir}
	w.r = newReconciler(failing, w.store, steps, w.events, w.clock)
	return w
}

// kinds is a scheme of the needed kinds only: the fake client walks all of it at each write.
var kinds = sync.OnceValue(func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(errors.Join(corev1.AddToScheme(s), policyv1.AddToScheme(s), tarnv1.AddToScheme(s), pavv1.AddToScheme(s)))
	return s
})

func build(objects ...client.Object) client.WithWatch {
	b := testkit.Store(objects...).WithScheme(kinds())
	for field, values := range indexes() {
		b = b.WithIndex(&tarnv1.PavStage{}, field, values)
	}
	return b.Build()
}

// create creates an object, a pod as the API server and the kubelet would.
func (w *world) create(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return c.Create(ctx, o, opts...)
	}
	if w.refuse(pod) {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, pod.Name, errors.New("exceeded quota"))
	}
	w.uids++
	pod.UID, pod.CreationTimestamp = types.UID(fmt.Sprintf("uid-of-pod-%d", w.uids)), metav1.Time{Time: w.clock.Now()}
	pod.Finalizers = append(pod.Finalizers, kubeletHolds)
	err := c.Create(ctx, pod, opts...)
	if err == nil {
		w.made = append(w.made, pod.Name)
	}
	return err
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) stage() *tarnv1.PavStage {
	w.t.Helper()
	s := &tarnv1.PavStage{}
	if err := w.store.Get(context.Background(), client.ObjectKey{Name: stageName}, s); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		w.t.Fatal(err)
	}
	return s
}

// pods are the controller's pods.
func (w *world) pods() []corev1.Pod {
	w.t.Helper()
	var pods corev1.PodList
	w.must(w.store.List(context.Background(), &pods, client.HasLabels{tarnv1.LabelStep}))
	return pods.Items
}

// snapshot is a client whose cache shows the present state and is never updated.
func (w *world) snapshot() *testkit.Stale {
	var objects []client.Object
	for _, list := range []client.ObjectList{
		&tarnv1.PavStageList{}, &tarnv1.PavVolumeList{}, &pavv1.PavProvisionerList{},
		&corev1.PodList{}, &corev1.NodeList{}, &corev1.PersistentVolumeList{}, &corev1.PersistentVolumeClaimList{},
	} {
		w.must(w.store.List(context.Background(), list))
		w.must(meta.EachListItem(list, func(o runtime.Object) error {
			objects = append(objects, o.(client.Object))
			return nil
		}))
	}
	return &testkit.Stale{Client: w.r.client, Seen: build(objects...)}
}

// look reconciles once and moves the clock to the time that the controller asks for.
func (w *world) look() {
	w.t.Helper()
	result, err := w.r.Reconcile(context.Background(), reconcile.Request{NamespacedName: client.ObjectKey{Name: stageName}})
	if err != nil && !errors.Is(err, errKilled) {
		w.t.Fatalf("reconcile: %v", err)
	}
	w.clock.SetTime(w.clock.Now().Add(result.RequeueAfter))
}

// live runs the world until the stage and its pods are gone.
func (w *world) live() {
	w.t.Helper()
	failing := w.r.client
	for range 100 {
		if w.behind {
			w.r.client = failing
			w.r.client = w.snapshot()
			at := w.clock.Now()
			w.look() // now the cache is a write behind, at the same time
			w.clock.SetTime(at)
		}
		w.look()
		w.kubelet()
		w.during()
		w.agent()
		if w.stage() == nil && len(w.pods()) == 0 {
			return
		}
	}
	w.t.Fatalf("after 100 rounds the stage is %+v, with pods %v", w.stage(), w.pods())
}

// kubelet starts pods, ends them, and stops deleted ones, one step a round.
func (w *world) kubelet() {
	ctx := context.Background()
	for _, pod := range w.pods() {
		switch {
		case pod.DeletionTimestamp != nil:
			pod.Finalizers = nil
			w.must(client.IgnoreNotFound(w.store.Update(ctx, &pod)))
		case pod.Status.Phase == "":
			pod.Status.Phase = corev1.PodRunning
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
			w.must(w.store.Status().Update(ctx, &pod))
		case pod.Status.Phase == corev1.PodRunning:
			if pod.Status.Phase = w.end(&pod); pod.Status.Phase == corev1.PodFailed {
				pod.Status.Message = "busy"
			}
			w.must(w.store.Status().Update(ctx, &pod))
			if pod.Labels[tarnv1.LabelStep] == string(tarnv1.StepValidation) && pod.Status.Phase != corev1.PodRunning {
				pod.Annotations[tarnv1.AnnotationResult] = "{}" // the node agent's
				w.must(w.store.Update(ctx, &pod))
			}
		}
	}
}

// agent does what the node agent does.
func (w *world) agent() {
	w.t.Helper()
	if stage := w.stage(); stage != nil {
		w.must(client.IgnoreNotFound(agent(context.Background(), w.store, stage)))
	}
}

// agent is the node agent's side of the protocol, one step a call. Its consumer leaves as soon
// as the volume is staged. There is no agent if its node is gone.
func agent(ctx context.Context, c client.Client, stage *tarnv1.PavStage) error {
	if err := c.Get(ctx, client.ObjectKey{Name: stage.Spec.NodeName}, &corev1.Node{}); err != nil {
		return client.IgnoreNotFound(err)
	}
	pod, phase := stage.Status.Pod.Phase, stage.Status.Node.Phase
	deleting := stage.DeletionTimestamp != nil
	switch {
	case !deleting && stage.Awaited() && phase == "":
		stage.Status.Node.Phase = tarnv1.StageWaiting
		return c.Status().Update(ctx, stage)
	case !deleting && (phase == tarnv1.StageStaged || phase == tarnv1.StageFailed):
		return c.Delete(ctx, stage)
	case !deleting && pod == tarnv1.StagePodSucceeded:
		stage.Status.Node.Phase = tarnv1.StageStaged
		return c.Status().Update(ctx, stage)
	case !deleting && pod == tarnv1.StagePodFailed:
		stage.Status.Node.Phase, stage.Status.Node.Message = tarnv1.StageFailed, stage.Status.Pod.Message
		return c.Status().Update(ctx, stage)
	case deleting && pod == tarnv1.StagePodStopped && phase != tarnv1.StageUnmounted:
		stage.Status.Node.Phase = tarnv1.StageUnmounted
		return c.Status().Update(ctx, stage)
	case deleting && pod == tarnv1.StagePodUnstaged:
		stage.Finalizers = slices.DeleteFunc(stage.Finalizers, func(f string) bool { return f == tarnv1.FinalizerStageNode })
		return c.Update(ctx, stage)
	}
	return nil
}

// subjects are the objects that a stage refers to: an accepted provisioner with both sections,
// a bound volume, its claim and its node.
func subjects() []client.Object {
	p := provisioner(metav1.ConditionTrue)
	p.Spec = pavv1.PavProvisionerSpec{
		ProvisioningModes: []pavv1.ProvisioningMode{pavv1.ModeStatic},
		VolumeStaging:     section("staging"),
		VolumeUnstaging:   section("unstaging"),
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "data", UID: "uid-of-claim"}}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "uid-of-pv"}}
	vol.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "slow", VolumeHandle: "handle-7"}
	vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "app", Name: "data", UID: "uid-of-claim"}
	return []client.Object{p, claim, vol, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, consumer("app", "data", "n1"), aStage(tarnv1.PavStagePodStatus{})}
}

// consumer is a pod on a node that uses a claim.
func consumer(namespace, claim, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "uses-" + claim},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "busybox"}}, Volumes: []corev1.Volume{{
			Name:         "data",
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}},
		}}},
	}
}

func section(namespace string) *apiextensionsv1.JSON {
	return &apiextensionsv1.JSON{Raw: []byte(`{"podTemplate": {"metadata": {"namespace": "` + namespace + `"}, "spec": {"containers": [
		{"name": "c", "image": "busybox", "args": ["{{ handle }}", "{{ pvc.metadata.name }}", "{{ node.metadata.name }}"]}]}}}`)}
}
