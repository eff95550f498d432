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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

var errKilled = errors.New("killed")

// kubeletHolds keeps a deleted pod until the world's kubelet has stopped it.
const kubeletHolds = "test/kubelet"

// world is an API server, the controller, and stand-ins for the kubelet and the node agent. The
// controller's writes can be made to fail.
type world struct {
	t      *testing.T
	store  client.WithWatch
	r      *Reconciler
	clock  *testclock.FakePassiveClock
	events *events.FakeRecorder

	// fail is called before and after each write of the controller with the number of the
	// write, from 1. An error before the write prevents it.
	fail   func(n int, made bool) error
	writes int
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
	w.store = w.build(objects...)
	failing := w.failing()
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

// deduced tells the owners of fields without the schemas of all Kubernetes kinds, which the
// fake client would read for each world.
var deduced = sync.OnceValue(managedfields.NewDeducedTypeConverter)

func (w *world) build(objects ...client.Object) client.WithWatch {
	b := fake.NewClientBuilder().WithScheme(kinds()).WithTypeConverters(deduced()).WithObjects(objects...).
		WithStatusSubresource(&tarnv1.PavStage{}, &pavv1.PavProvisioner{})
	for field, values := range indexes() {
		b = b.WithIndex(&tarnv1.PavStage{}, field, values)
	}
	b = b.WithIndex(&corev1.PersistentVolume{}, kube.VolumesByHandle, kube.HandleOf)
	b = b.WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} })
	b = b.WithIndex(&tarnv1.PavStage{}, "spec.volumeName", func(o client.Object) []string {
		return []string{o.(*tarnv1.PavStage).Spec.VolumeName}
	})
	return b.Build()
}

func (w *world) failing() client.WithWatch {
	return interceptor.NewClient(w.store, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			pod, ok := o.(*corev1.Pod)
			if !ok {
				return w.write(func() error { return c.Create(ctx, o, opts...) })
			}
			return w.write(func() error { return w.createPod(ctx, pod, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return w.write(func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return w.write(func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return w.write(func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	})
}

func (w *world) write(do func() error) error {
	w.writes++
	n := w.writes
	if w.fail != nil {
		if err := w.fail(n, false); err != nil {
			return err
		}
	}
	if err := do(); err != nil || w.fail == nil {
		return err
	}
	return w.fail(n, true)
}

func (w *world) createPod(ctx context.Context, pod *corev1.Pod, opts ...client.CreateOption) error {
	if w.refuse(pod) {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, pod.Name, errors.New("exceeded quota"))
	}
	w.uids++
	pod.UID, pod.CreationTimestamp = types.UID(fmt.Sprintf("uid-of-pod-%d", w.uids)), metav1.Time{Time: w.clock.Now()}
	pod.Finalizers = append(pod.Finalizers, kubeletHolds)
	err := w.store.Create(ctx, pod, opts...)
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

// snapshot is a cache that shows the present state and is never updated.
func (w *world) snapshot() client.Reader {
	var objects []client.Object
	for _, list := range []client.ObjectList{
		&tarnv1.PavStageList{}, &tarnv1.PavVolumeList{}, &pavv1.PavProvisionerList{},
		&corev1.PodList{}, &corev1.NodeList{}, &corev1.PersistentVolumeList{}, &corev1.PersistentVolumeClaimList{},
	} {
		w.must(w.store.List(context.Background(), list))
		objects = append(objects, items(list)...)
	}
	return w.build(objects...)
}

func items(list client.ObjectList) []client.Object {
	var objects []client.Object
	switch l := list.(type) {
	case *tarnv1.PavStageList:
		objects = pointers[tarnv1.PavStage, *tarnv1.PavStage](l.Items)
	case *tarnv1.PavVolumeList:
		objects = pointers[tarnv1.PavVolume, *tarnv1.PavVolume](l.Items)
	case *pavv1.PavProvisionerList:
		objects = pointers[pavv1.PavProvisioner, *pavv1.PavProvisioner](l.Items)
	case *corev1.PodList:
		objects = pointers[corev1.Pod, *corev1.Pod](l.Items)
	case *corev1.NodeList:
		objects = pointers[corev1.Node, *corev1.Node](l.Items)
	case *corev1.PersistentVolumeList:
		objects = pointers[corev1.PersistentVolume, *corev1.PersistentVolume](l.Items)
	case *corev1.PersistentVolumeClaimList:
		objects = pointers[corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaim](l.Items)
	}
	return objects
}

func pointers[T any, P interface {
	*T
	client.Object
}](list []T) []client.Object {
	var objects []client.Object
	for i := range list {
		objects = append(objects, P(&list[i]))
	}
	return objects
}

// cached reads from a snapshot and writes to the API server.
type cached struct {
	client.Client
	snapshot client.Reader
}

func (c *cached) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	return c.snapshot.Get(ctx, key, into, opts...)
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
			seen := w.snapshot()
			w.r.client = &cached{Client: failing, snapshot: seen}
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
