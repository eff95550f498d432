package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/nodetest"
	"tarn.dev/tarn/internal/testkit"
)

func TestMain(m *testing.M) {
	log.SetLogger(funcr.New(logs.add, funcr.Options{LogTimestamp: true}))
	nodetest.Main(func() int {
		testkit.Main(m) // ends the process
		return 0
	})
}

// logs keeps what the agents log, and shows it when a test fails.
var logs logKeeper

type logKeeper struct {
	mu    sync.Mutex
	lines []string
}

func (k *logKeeper) add(prefix, args string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lines = append(k.lines, prefix+" "+args)
}

func (k *logKeeper) show(t *testing.T) {
	k.mu.Lock()
	defer k.mu.Unlock()
	begun := len(k.lines)
	t.Cleanup(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if t.Failed() {
			t.Log("the agents' log:\n" + strings.Join(k.lines[begun:], "\n"))
		}
	})
}

// world is one node with its agent, against a real API server. The test's calls replace the
// kubelet; the player replaces the stage controller and the pods.
type world struct {
	*testing.T
	ctx     context.Context
	config  *rest.Config
	client  client.WithWatch
	id      string
	node    string
	kubelet string
	state   string
	player  *player
	options Options
	wrap    func(client.Client) client.Client

	agent   *Agent
	stop    func()
	mourned bool // a death of the agent was noticed, see surviveDeath
}

var worlds atomic.Int32

// newWorld makes a world for a test that runs beside others: most of its time is waiting.
func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return newWorldAlone(t)
}

// newWorldAlone makes a world for a test that counts what others would change: the drivers that are
// served, or what the process does.
func newWorldAlone(t *testing.T) *world {
	t.Helper()
	logs.show(t)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	config := testkit.APIServer(t)
	id := fmt.Sprintf("w%d", worlds.Add(1))
	kubelet := filepath.Join(nodetest.Tmpfs(t), "kubelet")
	w := &world{
		T: t, ctx: ctx, config: config, client: testkit.Client(t, config),
		id: id, node: "node-" + id, kubelet: kubelet, state: filepath.Join(kubelet, "plugins", tarnv1.ResultsDriver),
	}
	w.options = Options{NodeName: w.node, KubeletDir: kubelet, StateDir: w.state, Version: "test"}
	w.player = &player{w: w, stage: greet}
	t.Cleanup(w.player.run())
	t.Cleanup(w.end)
	return w
}

// serving is a world whose agent runs, with a volume.
func serving(t *testing.T) (*world, *corev1.PersistentVolume) {
	t.Helper()
	w := newWorld(t)
	w.start()
	return w, w.volume(w.provisioner(), "pv-"+w.id)
}

// start starts an agent, with the rights that it has in a cluster.
func (w *world) start() {
	w.Helper()
	config := rest.CopyConfig(w.config)
	err := w.client.Get(w.ctx, client.ObjectKey{Name: "tarn-node"}, &rbacv1.ClusterRole{})
	if err == nil {
		config.Impersonate.UserName = "system:serviceaccount:tarn-system:tarn-node"
		config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {w.node}}
	} else {
		w.Logf("the agent has all rights, for ClusterRole tarn-node was not generated yet: %v", err)
	}
	w.startWith(config)
}

func (w *world) startWith(restConfig *rest.Config) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.ctx)
	m, err := kube.NewManager(restConfig, ctrl.Options{
		Scheme:     kube.Scheme(),
		Cache:      CacheOptions(w.node),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
		NewClient: func(c *rest.Config, o client.Options) (client.Client, error) {
			made, err := client.New(c, o)
			if err == nil && w.wrap != nil {
				made = w.wrap(made)
			}
			return made, err
		},
	})
	w.must(err)
	if w.agent, err = Register(m, w.options); err != nil {
		w.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- m.Start(ctx) }()
	var once sync.Once
	w.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				w.Errorf("the agent ended with: %v", err)
			}
		})
	}
	w.eventually("the agent is ready", func() error { return w.agent.Ready(nil) })
}

// end stops the agent, if it runs.
func (w *world) end() {
	if w.stop != nil {
		w.stop()
	}
}

// must ends the test if a step of it fails.
func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// eventually repeats a check until it returns nil. It is for states that no call waits for.
func (w *world) eventually(what string, look func() error) {
	w.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for {
		err := look()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("%s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// until is eventually for what is true or not.
func (w *world) until(what string, is func() bool) {
	w.Helper()
	w.eventually(what, func() error {
		if !is() {
			return errors.New("not yet")
		}
		return nil
	})
}

func (w *world) create(object client.Object) {
	w.Helper()
	if err := w.client.Create(w.ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
		w.Fatalf("create %T %s: %v", object, object.GetName(), err)
	}
}

// provisioner creates an accepted provisioner and waits until the agent serves it.
func (w *world) provisioner() string {
	w.Helper()
	p := testkit.Provisioner(w.id + "-prov")
	status := p.Status
	w.create(p)
	w.Cleanup(func() { // the next test's agent would serve it
		if err := client.IgnoreNotFound(w.client.Delete(w.ctx, p)); err != nil {
			w.Error(err)
		}
	})
	w.accept(p, status.Conditions)
	w.eventually("the driver is served", func() error { return w.served(p.Name) })
	return p.Name
}

func (w *world) accept(p *pavv1.PavProvisioner, conditions []metav1.Condition) {
	w.Helper()
	for i := range conditions {
		conditions[i].LastTransitionTime = metav1.Now()
		conditions[i].Reason = "Test"
	}
	p.Status.Conditions = conditions
	w.must(w.client.Status().Update(w.ctx, p))
	w.eventually("the agent sees the condition", func() error {
		seen := &pavv1.PavProvisioner{}
		if err := w.agent.cached.Get(w.ctx, client.ObjectKey{Name: p.Name}, seen); err != nil {
			return err
		}
		if len(seen.Status.Conditions) != len(conditions) || seen.Status.Conditions[0].Status != conditions[0].Status {
			return errors.New("not yet")
		}
		return nil
	})
}

func (w *world) served(name string) error {
	if !w.agent.drivers.Serving(name) {
		return fmt.Errorf("driver %s is not served", name)
	}
	return nil
}

// volume creates a PersistentVolume of the provisioner, 1Mi large.
func (w *world) volume(provisioner, name string, changes ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	w.Helper()
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: provisioner, VolumeHandle: "handle-of-" + name,
			}},
		},
	}
	for _, change := range changes {
		change(volume)
	}
	w.create(volume)
	return volume
}

// target is the kubelet's target of the volume for a pod; it creates the target's directory.
func (w *world) target(volume *corev1.PersistentVolume, pod string) string {
	w.Helper()
	folder := filepath.Join(w.kubelet, "pods", pod, "volumes", "kubernetes.io~csi", volume.Name)
	w.must(os.MkdirAll(folder, 0o755))
	return filepath.Join(folder, "mount")
}

func (w *world) csi(driver string) csi.NodeClient {
	w.Helper()
	return csi.NewNodeClient(w.dial(filepath.Join(w.state, "drivers", driver, "csi.sock")))
}

func (w *world) dial(socket string) *grpc.ClientConn {
	w.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.must(err)
	w.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (w *world) publish(volume *corev1.PersistentVolume, pod string, changes ...func(*csi.NodePublishVolumeRequest)) (target string, err error) {
	w.Helper()
	target = w.target(volume, pod)
	request := &csi.NodePublishVolumeRequest{
		VolumeId:   volume.Spec.CSI.VolumeHandle,
		TargetPath: target,
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	}
	for _, change := range changes {
		change(request)
	}
	ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
	defer cancel()
	_, err = w.csi(volume.Spec.CSI.Driver).NodePublishVolume(ctx, request)
	return target, err
}

func (w *world) mustPublish(volume *corev1.PersistentVolume, pod string) (target string) {
	w.Helper()
	target, err := w.publish(volume, pod)
	if err != nil {
		w.Fatalf("publish: %v", err)
	}
	return target
}

func (w *world) unpublish(volume *corev1.PersistentVolume, target string) error {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
	defer cancel()
	_, err := w.csi(volume.Spec.CSI.Driver).NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{
		VolumeId: volume.Spec.CSI.VolumeHandle, TargetPath: target,
	})
	return err
}

func (w *world) mustUnpublish(volume *corev1.PersistentVolume, target string) {
	w.Helper()
	if err := w.unpublish(volume, target); err != nil {
		w.Fatalf("unpublish: %v", err)
	}
}

func (w *world) stages() []tarnv1.PavStage {
	w.Helper()
	list := &tarnv1.PavStageList{}
	w.must(w.client.List(w.ctx, list, client.MatchingFields{"spec.nodeName": w.node}))
	return list.Items
}

// ends unpublishes the volume from its last targets, and checks that nothing is left.
func (w *world) ends(volume *corev1.PersistentVolume, targets ...string) {
	w.Helper()
	for _, target := range targets {
		w.mustUnpublish(volume, target)
	}
	w.nothingIsLeft()
}

// stageEnds waits until the node has no stage.
func (w *world) stageEnds() {
	w.Helper()
	w.eventually("the stage ends", func() error {
		if left := w.stages(); len(left) > 0 {
			return fmt.Errorf("PavStage %s: %+v", left[0].Name, left[0].Status)
		}
		return nil
	})
}

// nothingIsLeft checks that no stage, directory, target or mount is left.
func (w *world) nothingIsLeft() {
	w.Helper()
	for _, s := range w.stages() {
		w.Errorf("PavStage %s is left: %+v", s.Name, s.Status)
	}
	for _, folder := range []string{"stages", "results"} {
		entries, err := os.ReadDir(filepath.Join(w.state, folder))
		if err != nil {
			w.Error(err)
		}
		for _, e := range entries {
			w.Errorf("folder %s/%s is left", folder, e.Name())
		}
	}
	table, err := mounts.Kernel{}.List()
	w.must(err)
	for _, m := range mounts.Under(table, w.kubelet) {
		w.Errorf("mount %s is left", m.Point)
	}
	targets, err := filepath.Glob(filepath.Join(w.kubelet, "pods/*/volumes/*/*/mount"))
	if err != nil || len(targets) > 0 {
		w.Errorf("targets are left: %v %v", targets, err)
	}
}

func (w *world) wantFile(path, want string) {
	w.Helper()
	data, err := os.ReadFile(path)
	if err != nil || strings.TrimSpace(string(data)) != want {
		w.Errorf("%s holds %q (%v), want %q", path, data, err, want)
	}
}
