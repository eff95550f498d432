package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/testkit"
)

func TestADriverIsServedAsLongAsItsProvisionerExists(t *testing.T) {
	w := newWorldAlone(t)
	dead := filepath.Join(w.state, "drivers", "of-an-earlier-run")
	for path, text := range map[string]string{
		filepath.Join(dead, "name"):                                    "of-an-earlier-run",
		filepath.Join(w.kubelet, "plugins_registry", "other-reg.sock"): "not ours",
	} {
		w.must(os.MkdirAll(filepath.Dir(path), 0o755))
		w.must(os.WriteFile(path, []byte(text), 0o644))
	}
	for _, socket := range []string{filepath.Join(dead, "csi.sock"), filepath.Join(w.kubelet, "plugins_registry", "of-an-earlier-run-reg.sock")} {
		w.deadSocket(socket)
	}
	w.start()
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an earlier run's driver folder is left: %v", err)
	}
	names, err := filepath.Glob(filepath.Join(w.kubelet, "plugins_registry", "*"))
	if err != nil || len(names) != 2 {
		t.Errorf("in the registry: %v (%v), want Tarn's own socket and what is not ours", names, err)
	}

	long := "p" + strings.Repeat("o", 61-len(w.id)) + w.id // 62 characters
	p := testkit.Provisioner(long)
	w.create(p)
	w.eventually("the driver is served", func() error { return w.served(long) })
	sockets := w.agent.drivers
	socket := w.newSocket(names)
	w.checkRegistration(socket, long)
	w.must(w.client.Delete(w.ctx, p))
	w.eventually("the driver ends", func() error {
		if sockets.Serving(long) {
			return errors.New("still served")
		}
		_, err := os.Lstat(socket)
		if !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("registration socket: %w", err)
		}
		return nil
	})
}

// newSocket is the socket in the registry that was not there before.
func (w *world) newSocket(before []string) (path string) {
	w.Helper()
	after, err := filepath.Glob(filepath.Join(w.kubelet, "plugins_registry", "*"))
	if err != nil || len(after) != len(before)+1 {
		w.Fatalf("in the registry: %v (%v), before: %v", after, err, before)
	}
	for _, path := range after {
		if !slices.Contains(before, path) {
			return path
		}
	}
	return ""
}

// deadSocket creates a socket that no process serves, as a killed process leaves it.
func (w *world) deadSocket(path string) {
	w.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	w.must(err)
	w.must(unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	_ = unix.Close(fd)
}

// checkRegistration asks as the kubelet does, and then asks the endpoint in the answer.
func (w *world) checkRegistration(socket, name string) {
	w.Helper()
	client := registration.NewRegistrationClient(w.dial(socket))
	info, err := client.GetInfo(w.ctx, &registration.InfoRequest{})
	w.must(err)
	if info.GetType() != registration.CSIPlugin || info.GetName() != name || len(info.GetSupportedVersions()) == 0 {
		w.Errorf("registration of %s: %v", name, info)
	}
	conn := w.dial(info.GetEndpoint())
	plugin, err := csi.NewIdentityClient(conn).GetPluginInfo(w.ctx, &csi.GetPluginInfoRequest{})
	if err != nil || plugin.GetName() != name {
		w.Errorf("plugin info: %v %v", plugin, err)
	}
	node, err := csi.NewNodeClient(conn).NodeGetInfo(w.ctx, &csi.NodeGetInfoRequest{})
	if err != nil || node.GetNodeId() != w.node {
		w.Errorf("node info: %v %v", node, err)
	}
	if _, err := client.NotifyRegistrationStatus(w.ctx, &registration.RegistrationStatus{PluginRegistered: true}); err != nil {
		w.Error(err)
	}
}

func TestAProvisionerThatMayNotBeUsedStagesNothingNewButUnstages(t *testing.T) {
	w := newWorld(t)
	w.start()
	name := w.provisioner()
	volume := w.volume(name, "pv-"+w.id)
	target := w.mustPublish(volume, "pod-1")

	p := &pavv1.PavProvisioner{}
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: name}, p))
	w.accept(p, []metav1.Condition{testkit.Accepted(metav1.ConditionFalse, "Test", "volumeStaging: line 3: no such filter")})
	_, err := w.publish(volume, "pod-2")
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "no such filter") {
		t.Errorf("publish of a provisioner that is not accepted: %v", err)
	}

	p.Finalizers = []string{tarnv1.FinalizerProvisioner}
	w.must(w.client.Update(w.ctx, p))
	w.must(w.client.Delete(w.ctx, p))
	w.eventually("publish tells of the deletion", func() error {
		_, err := w.publish(volume, "pod-2")
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "under deletion") {
			return fmt.Errorf("publish: %w", err)
		}
		return nil
	})
	// The kubelet was restarted and asks again for a pod that runs.
	if _, err := w.publish(volume, "pod-1"); err != nil {
		t.Errorf("publish again of a target that is in use: %v", err)
	}
	w.wantFile(filepath.Join(target, "greeting"), "hello")
	w.ends(volume, target)
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: name}, p))
	p.Finalizers = nil
	w.must(w.client.Update(w.ctx, p))
}

func TestAVolumeWhoseProvisionerWasRemovedByForceIsGivenBack(t *testing.T) {
	w := newWorld(t)
	w.start()
	name := w.provisioner()
	volume := w.volume(name, "pv-"+w.id)
	target := w.mustPublish(volume, "pod-1")
	p := &pavv1.PavProvisioner{}
	p.Name = name
	w.must(w.client.Delete(w.ctx, p))
	w.stop()
	w.start()
	w.ends(volume, target)
	w.until("the driver ends with its last stage", func() bool { return w.served(name) != nil })
}

func TestAnUnpublishThatCannotWaitLongerFindsItsStageAgain(t *testing.T) {
	w, volume := serving(t)
	target := w.mustPublish(volume, "pod-1")
	w.player.hold(true)
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second) // all but the last two are for the work
	defer cancel()
	_, err := w.csi(volume.Spec.CSI.Driver).NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{
		VolumeId: volume.Spec.CSI.VolumeHandle, TargetPath: target,
	})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "PavStage") {
		t.Errorf("unpublish while unstaging goes on: %v, want Unavailable that names the stage", err)
	}
	if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target is still there: %v", err)
	}
	done := make(chan error, 2)
	go func() { done <- w.unpublish(volume, target) }()
	published := make(chan error, 1)
	go func() { // meanwhile the next pod wants it
		_, err := w.publish(volume, "pod-2")
		published <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("unpublish did not wait: %v", err)
	case err := <-published:
		t.Fatalf("publish did not wait: %v", err)
	case <-ctx.Done():
	}
	w.player.hold(false)
	if err := <-done; err != nil {
		t.Errorf("unpublish: %v", err)
	}
	if err := <-published; err != nil {
		t.Errorf("publish: %v", err)
	}
	w.ends(volume, w.target(volume, "pod-2"))
}

func TestAfterARestartNothingEmptyIsHandedOut(t *testing.T) {
	w, volume := serving(t)
	mounted := func(pav string) (tarnv1.StagePodPhase, string) {
		point := filepath.Join(pav, "volume")
		return played(tarnv1.StagePodSucceeded, os.MkdirAll(point, 0o755), unix.Mount("tarn-test", point, "tmpfs", 0, ""),
			os.WriteFile(filepath.Join(point, "greeting"), []byte("mounted"), 0o644))
	}
	w.player.set(mounted)
	target := w.mustPublish(volume, "pod-1")
	before := w.stages()[0]

	w.stop()
	w.start()
	if _, err := w.publish(volume, "pod-1"); err != nil {
		t.Fatal(err)
	}
	if after := w.stages()[0]; after.UID != before.UID {
		t.Error("a restart alone has ended a stage that is right")
	}

	w.stop() // the record says Staged, the mounts are gone
	for _, point := range []string{target, before.Status.Node.Path} {
		w.must(mounts.UnmountTree(mounts.Kernel{}, point, nil))
	}
	w.start()
	if _, err := w.publish(volume, "pod-1"); err != nil {
		t.Fatal(err)
	}
	w.wantFile(filepath.Join(target, "greeting"), "mounted")
	if after := w.stages()[0]; after.Status.Node.Loss == nil || after.Status.Node.Loss.Reason != tarnv1.ReasonMountGone || w.player.staged != 2 {
		t.Errorf("the volume whose mount is gone was staged %d times; the stage says %+v", w.player.staged, after.Status.Node)
	}
	w.ends(volume, target)
}

func TestATargetTheKubeletHasForgottenIsReleasedWhenItsPodStaysGone(t *testing.T) {
	w, volume := serving(t)
	pod := w.pod("client")
	target, err := w.publish(volume, string(pod.UID), of(pod))
	w.must(err)
	now := time.Now()
	if w.agent.stages.ReleaseAbandoned(w.ctx, now) || w.agent.stages.ReleaseAbandoned(w.ctx, now.Add(time.Hour)) {
		t.Error("a pod that exists is taken for gone")
	}
	w.must(w.client.Delete(w.ctx, pod, client.GracePeriodSeconds(0)))
	if !w.agent.stages.ReleaseAbandoned(w.ctx, now) || !w.agent.stages.ReleaseAbandoned(w.ctx, now.Add(4*time.Minute)) {
		t.Error("a pod that is gone is not noticed")
	}
	w.wantFile(filepath.Join(target, "greeting"), "hello") // its containers may still run
	if w.agent.stages.ReleaseAbandoned(w.ctx, now.Add(6*time.Minute)) {
		t.Error("the target was not released")
	}
	w.stageEnds()
	w.nothingIsLeft()
}

func TestFoldersOfStagesAndPodsThatAreGoneAreRemovedAtStart(t *testing.T) {
	w := newWorld(t)
	stage := filepath.Join(w.state, "stages", "11111111-2222", "pav", "volume")
	result := filepath.Join(w.state, "results", "abcdef", "pav")
	for _, dir := range []string{stage, result} {
		w.must(os.MkdirAll(dir, 0o755))
		w.must(os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	}
	w.must(unix.Mount("tarn-test", stage, "tmpfs", 0, ""))
	w.start()
	w.nothingIsLeft()
}

// TestAnAgentThatDiesAfterAnyWriteLeavesWhatTheNextOneCanFinish kills the agent at each of its
// writes in turn, as far as the API server and the kubelet can see. That write and all later ones
// fail, and a new agent is started.
func TestAnAgentThatDiesAfterAnyWriteLeavesWhatTheNextOneCanFinish(t *testing.T) {
	for _, applied := range []bool{false, true} {
		for n := int32(1); n <= writesOfALife; n++ {
			t.Run(fmt.Sprintf("write %d, applied %t", n, applied), func(t *testing.T) {
				w := newWorld(t)
				died := make(chan struct{})
				w.wrap = dieAt(n, applied, died)
				w.start()
				w.wrap = nil // the next one lives
				volume := w.volume(w.provisioner(), "pv-"+w.id)
				target := w.surviveDeath(died, func() (string, error) { return w.publish(volume, "pod-1") })
				w.wantFile(filepath.Join(target, "greeting"), "hello")
				w.surviveDeath(died, func() (string, error) { return "", w.unpublish(volume, target) })
				w.stageEnds()
				w.nothingIsLeft()
				select {
				case <-died:
				default:
					t.Errorf("the agent made fewer than %d writes and never died", n)
				}
			})
		}
	}
}

// writesOfALife are the writes of one volume's publish and unpublish: stage created, target
// recorded, Staged; deleted, Unmounted, finalizer removed.
const writesOfALife = 6

// surviveDeath repeats a call as the kubelet does, and starts a new agent when the
// first has died.
func (w *world) surviveDeath(died chan struct{}, call func() (string, error)) (answer string) {
	w.Helper()
	w.eventually("the call succeeds", func() error {
		result := make(chan error, 1)
		go func() {
			var err error
			answer, err = call()
			result <- err
		}()
		select {
		case err := <-result:
			if err == nil {
				return nil
			}
			return err
		case <-w.death(died):
			w.stop()
			<-result //nolint:errcheck // that of a dead agent
		}
		w.mourned = true
		w.stop()
		w.start()
		return errors.New("restarted")
	})
	return answer
}

// death is the channel until the death was seen, then nil.
func (w *world) death(died chan struct{}) chan struct{} {
	if w.mourned {
		return nil
	}
	return died
}

// dieAt lets the writes before the nth pass. The nth and all later ones fail; applied says whether
// the nth takes effect.
func dieAt(n int32, applied bool, died chan struct{}) func(client.Client) client.Client {
	var count atomic.Int32
	dead := errors.New("the agent is dead")
	write := func(do func() error) error {
		switch i := count.Add(1); {
		case i < n:
			return do()
		case i == n:
			defer close(died)
			if applied {
				_ = do() // a conflict is as good a moment to die as any
			}
		}
		return dead
	}
	return func(c client.Client) client.Client {
		return interceptor.NewClient(withoutWatch{c}, interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				return write(func() error { return c.Create(ctx, o, opts...) })
			},
			Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
				return write(func() error { return c.Delete(ctx, o, opts...) })
			},
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				return write(func() error { return c.Patch(ctx, o, p, opts...) })
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				patch := func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) }
				if len((&client.SubResourcePatchOptions{}).ApplyOptions(opts).DryRun) > 0 { // see ownPods
					return patch()
				}
				return write(patch)
			},
		})
	}
}

// withoutWatch is a client for code that never watches with it.
type withoutWatch struct{ client.Client }

func (withoutWatch) Watch(context.Context, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
	return nil, errors.New("not used")
}
