package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/nodetest"
)

// numbered is a staging pod that stays. Its volume is a mount that contains the number of stagings
// before it.
func numbered() func(string) (tarnv1.StagePodPhase, string) {
	var count atomic.Int32
	return func(pav string) (tarnv1.StagePodPhase, string) {
		point := filepath.Join(pav, "volume")
		number := strconv.Itoa(int(count.Add(1)))
		return played(tarnv1.StagePodRunning, os.Mkdir(point, 0o755), unix.Mount("tarn-test", point, "tmpfs", 0, ""), // as scripts do: there must be no directory
			os.WriteFile(filepath.Join(point, "greeting"), []byte(number), 0o644), os.WriteFile(filepath.Join(pav, "ready"), nil, 0o644))
	}
}

// healthy waits until the only stage has condition Healthy with that reason, and returns the
// condition.
func (w *world) healthy(is metav1.ConditionStatus, reason string) (found tarnv1.PavStage) {
	w.Helper()
	w.eventually("the stage is "+reason, func() error {
		all := w.stages()
		if len(all) != 1 {
			return fmt.Errorf("there are %d stages", len(all))
		}
		found = all[0]
		c := meta.FindStatusCondition(found.Status.Node.Conditions, tarnv1.ConditionHealthy)
		if c == nil || c.Status != is || c.Reason != reason {
			return fmt.Errorf("condition %+v", c)
		}
		return nil
	})
	return found
}

func (w *world) unmountVolume(stage tarnv1.PavStage) {
	w.Helper()
	w.eventually("it is unmounted", func() error {
		err := mounts.UnmountTree(mounts.Kernel{}, stage.Status.Node.Path, nil)
		if err != nil && !errors.Is(err, unix.EBUSY) { // busy while the agent looks at it
			w.Fatal(err)
		}
		return err
	})
}

// startNumbered starts an agent, and gives a volume whose greeting counts its stagings.
func (w *world) startNumbered() *corev1.PersistentVolume {
	w.Helper()
	w.start()
	w.player.set(numbered())
	return w.volume(w.provisioner(), "pv-"+w.id)
}

func TestAVolumeThatIsLostIsBoundAnewThoughNobodyAsks(t *testing.T) {
	w := newWorld(t)
	volume := w.startNumbered()
	first, second := w.mustPublish(volume, "pod-1"), w.mustPublishReadOnly(volume, "pod-2")
	for n := 1; n < 3; n++ {
		for _, target := range []string{first, second} {
			w.wantFile(filepath.Join(target, "greeting"), strconv.Itoa(n))
		}
		w.unmountVolume(w.healthy(metav1.ConditionTrue, map[bool]string{true: tarnv1.ReasonStaged, false: tarnv1.ReasonRebound}[n == 1]))
		w.eventually("both targets show what is staged again", func() error {
			for _, target := range []string{first, second} {
				if data, err := os.ReadFile(filepath.Join(target, "greeting")); err != nil || string(data) != strconv.Itoa(n+1) {
					return fmt.Errorf("%s holds %q (%w)", target, data, err)
				}
			}
			return nil
		})
		w.wantReadOnly(second)
		w.eventually("the loss is over", func() error {
			if l := w.stages()[0].Status.Node.Loss; l == nil || l.Number != int32(n) || l.ReboundTime == nil || l.Reason != tarnv1.ReasonMountGone {
				return fmt.Errorf("loss %+v", l)
			}
			return nil
		})
	}
	w.ends(volume, first, second)
}

// The kubelet gives its mounts of subPaths to a container that it restarts.
func TestTheKubeletsSubPathsOfALostVolumeAreBoundAnew(t *testing.T) {
	w := newWorld(t)
	volume := w.startNumbered()
	again := numbered()
	w.player.set(func(pav string) (tarnv1.StagePodPhase, string) {
		phase, message := again(pav)
		in := func(name string) string { return filepath.Join(pav, "volume", name) }
		data, err := os.ReadFile(in("greeting"))
		err = errors.Join(err, os.MkdirAll(in("deep/down"), 0o755), os.WriteFile(in("deep/down/greeting"), data, 0o600), os.Mkdir(in("dropped"), 0o755))
		if string(data) == "1" {
			err = errors.Join(err, os.Mkdir(in("once"), 0o755), os.Mkdir(in("turned"), 0o755), os.WriteFile(in("file"), nil, 0o600))
		} else { // as a writer to the volume may leave it
			err = errors.Join(err, os.Symlink(w.kubelet, in("turned")), os.Mkdir(in("dropped/deleted"), 0o755))
		}
		if err != nil {
			return tarnv1.StagePodFailed, err.Error()
		}
		return phase, message
	})
	target := w.mustPublish(volume, "pod-1")
	binds := filepath.Join(w.kubelet, "pods", "pod-1", "volume-subpaths", volume.Name, "db")
	names := []string{"deep/down", "greeting", ".", "once", "turned", "dropped", "file"}
	bind := func(i int) string { return filepath.Join(binds, strconv.Itoa(i)) }
	w.must(os.MkdirAll(binds, 0o755))
	for i, name := range names {
		source, err := os.OpenFile(filepath.Join(target, name), unix.O_PATH, 0)
		w.must(err)
		err = errors.Join(mounts.EnsureBind(mounts.Kernel{}, source, bind(i), i == 0), source.Close())
		w.must(err)
	}
	w.must(os.Remove(filepath.Join(target, "dropped")))
	w.unmountVolume(w.healthy(metav1.ConditionTrue, tarnv1.ReasonStaged))
	stage := w.healthy(metav1.ConditionTrue, tarnv1.ReasonRebound)
	w.wantFile(filepath.Join(bind(0), "greeting"), "2")
	if err := os.WriteFile(filepath.Join(bind(0), "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing to a subPath of a read-only mount: %v, want a read-only file system", err)
	}
	w.wantFile(bind(1), "2")
	w.wantFile(filepath.Join(bind(2), "greeting"), "2")
	for i := 3; i < 6; i++ { // the kubelet must find that it is not the container's mount
		if found, err := os.ReadDir(bind(i)); err != nil || len(found) > 0 {
			t.Errorf("in place of %s is %v (%v), want nothing", names[i], found, err)
		}
		if err := os.WriteFile(filepath.Join(bind(i), "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing in place of %s: %v, want a read-only file system", names[i], err)
		}
	}
	if left := stage.Status.Node.Loss.Left; !slices.ContainsFunc(left, func(l tarnv1.StageLeft) bool {
		return l.PodUID == "pod-1" && l.Container == "db" && strings.Contains(l.Message, "has no subPath file")
	}) || len(left) != 2 { // of the pod no process is seen
		t.Errorf("left is %+v, want the file", left)
	}
	w.must(mounts.UnmountTree(mounts.Kernel{}, binds, nil))
	w.ends(volume, target)
}

// held checks that the agent has a pidfd of a process, besides that of os.Process.
func held(pid int) error {
	files, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		return err
	}
	n := 0
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), fmt.Sprintf("\nPid:\t%d\n", pid)) {
			n++
		}
	}
	if n < 2 {
		return fmt.Errorf("process %d is held %d times", pid, n)
	}
	return nil
}

// In this test neither a container runtime nor the stage controller reports the end.
func TestTheEndOfAStagingPodsFirstProcessIsALoss(t *testing.T) {
	if !nodetest.LinuxSince(t, 6, 15) {
		t.Skip("this kernel does not keep the codes that processes end with: Linux 6.15 does")
	}
	w := newWorld(t)
	volume := w.startNumbered()
	var running []*exec.Cmd
	w.player.runs = func(pod *corev1.Pod) {
		cgroup := nodetest.Cgroup(t, fmt.Sprintf("kubepods/besteffort/pod%s/0abc%d", pod.UID, len(running)))
		running = append(running, nodetest.StartIn(t, cgroup, unix.CLONE_NEWPID, "sleep 1000"))
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", ContainerID: "containerd://" + filepath.Base(cgroup)}}
	}
	target := w.mustPublish(volume, "pod-1")
	for n := 1; n < 3; n++ {
		w.healthy(metav1.ConditionTrue, map[bool]string{true: tarnv1.ReasonStaged, false: tarnv1.ReasonRebound}[n == 1])
		w.eventually("the process is held", func() error { return held(running[n-1].Process.Pid) })
		w.must(running[n-1].Process.Kill())
		_ = running[n-1].Wait()
		w.eventually("the loss is over", func() error {
			if l := w.stages()[0].Status.Node.Loss; l == nil || l.Number != int32(n) || l.ReboundTime == nil || l.Reason != tarnv1.ReasonPodEnded || !strings.Contains(l.Message, "container c exited with 137") {
				return fmt.Errorf("loss %+v", l)
			}
			return nil
		})
		w.wantFile(filepath.Join(target, "greeting"), strconv.Itoa(n+1))
	}
	w.ends(volume, target)
}

func TestAVolumeThatCannotBeStagedAgainIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	volume := w.startNumbered()
	target := w.mustPublish(volume, "pod-1")
	again := numbered()
	tries := 0
	w.player.set(func(pav string) (tarnv1.StagePodPhase, string) {
		if tries++; tries < 3 {
			_ = os.WriteFile(filepath.Join(pav, "error"), []byte("no server"), 0o644)
			return tarnv1.StagePodFailed, "exit code 1"
		}
		return again(pav)
	})
	w.unmountVolume(w.healthy(metav1.ConditionTrue, tarnv1.ReasonStaged))
	stage := w.healthy(metav1.ConditionTrue, tarnv1.ReasonRebound)
	if l := stage.Status.Node.Loss; l.Attempt != 1 || l.Failed != 3 || stage.Status.Pod.Attempt != 4 {
		t.Errorf("loss %+v, attempt %d", l, stage.Status.Pod.Attempt)
	}
	w.wantFile(filepath.Join(target, "greeting"), "1")
	w.ends(volume, target)
}

func TestALossThatIsOnlyToldIsStagedAnewForTheNextPod(t *testing.T) {
	w := newWorld(t)
	w.player.recovery = tarnv1.RecoveryNone
	volume := w.startNumbered()
	target := w.mustPublish(volume, "pod-1")
	before := w.healthy(metav1.ConditionTrue, tarnv1.ReasonStaged)
	w.unmountVolume(before)
	w.healthy(metav1.ConditionFalse, tarnv1.ReasonMountGone)
	w.wantFile(filepath.Join(target, "greeting"), "1") // a copy of the mount lives on
	next := w.mustPublish(volume, "pod-2")
	w.wantFile(filepath.Join(next, "greeting"), "2")
	if after := w.stages(); len(after) != 1 || after[0].UID == before.UID {
		t.Error("the next pod has the stage whose volume is lost")
	}
	w.mustUnpublish(volume, target)
	w.mustUnpublish(volume, next)
	if _, err := os.Stat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target of the first pod is left: %v", err)
	}
	w.nothingIsLeft()
}

// The mount is gone when the volume would be marked Staged: the directory under it is not the
// volume.
func TestAVolumeLostBeforeItWasCalledStagedIsNotHandedOut(t *testing.T) {
	t.Run("by an agent that was killed after it kept the record, or hears late what it has said", func(t *testing.T) {
		lostBeforeStaged(t, func(string) error { return nil })
	})
	t.Run("on a machine that was started anew before anybody found it", func(t *testing.T) {
		lostBeforeStaged(t, func(folder string) error {
			return errors.Join(os.Remove(filepath.Join(folder, "record.json")), os.WriteFile(filepath.Join(folder, "boot"), []byte("another"), 0o600))
		})
	})
}

func lostBeforeStaged(t *testing.T, meanwhile func(folder string) error) {
	w := newWorld(t)
	volume := w.startNumbered()
	target := w.mustPublish(volume, "pod-1")
	stage := w.healthy(metav1.ConditionTrue, tarnv1.ReasonStaged)
	w.stop()
	for _, path := range []string{target, stage.Status.Node.Path} {
		w.must(mounts.UnmountTree(mounts.Kernel{}, path, nil))
	}
	before := stage.DeepCopy() // the player may still be writing its part
	stage.Status.Node.Phase, stage.Status.Node.Path, stage.Status.Node.Conditions = tarnv1.StageWaiting, "", nil
	w.must(w.client.Status().Patch(w.ctx, &stage, client.MergeFrom(before)))
	w.must(meanwhile(filepath.Join(w.state, "stages", string(stage.UID))))
	w.start()
	w.eventually("that stage is given up", func() error {
		if all := w.stages(); len(all) > 0 && all[0].UID == stage.UID {
			return fmt.Errorf("it is %s: %s", all[0].Status.Node.Phase, all[0].Status.Node.Message)
		}
		return nil
	})
	w.wantFile(filepath.Join(w.mustPublish(volume, "pod-1"), "greeting"), "2")
	w.ends(volume, target)
}

func TestAVolumeWhoseRecordIsDamagedIsStagedAgain(t *testing.T) {
	w := newWorld(t)
	volume := w.startNumbered()
	target := w.mustPublish(volume, "pod-1")
	stage := w.healthy(metav1.ConditionTrue, tarnv1.ReasonStaged)
	w.stop()
	// A power cut may leave an empty record, because it was not synced to disk.
	w.must(os.Truncate(filepath.Join(w.state, "stages", string(stage.UID), "record.json"), 0))
	w.start()
	if again := w.mustPublish(volume, "pod-1"); again != target {
		t.Errorf("published at %s, want %s", again, target)
	}
	w.wantFile(filepath.Join(target, "greeting"), "2")
	if l := w.healthy(metav1.ConditionTrue, tarnv1.ReasonRebound).Status.Node.Loss; l.Reason != tarnv1.ReasonMountGone {
		t.Errorf("loss %+v", l)
	}
	w.ends(volume, target)
}

func TestAStageThatIsRemovedByForceLeavesNothingOnTheNode(t *testing.T) {
	w := newWorld(t)
	volume := w.startNumbered()
	target := w.mustPublish(volume, "pod-1")
	stage := w.healthy(metav1.ConditionTrue, tarnv1.ReasonStaged)
	body := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	w.must(errors.Join(w.client.Patch(w.ctx, &stage, body), w.client.Delete(w.ctx, &stage)))
	w.eventually("the stage's folder goes", func() error {
		if left, err := os.ReadDir(filepath.Join(w.state, "stages")); err != nil || len(left) > 0 {
			return fmt.Errorf("left are %v (%w)", left, err)
		}
		return nil
	})
	w.wantFile(filepath.Join(target, "greeting"), "1") // the pod that runs keeps what it has
	w.ends(volume, target)
}

// overtaken rejects the first status write that says that a volume is mounted again, as if another
// write had come before it.
type overtaken struct {
	client.Client
	refused *atomic.Bool
}

// The manager's client writes a status by SubResource("status").
func (o overtaken) SubResource(name string) client.SubResourceClient {
	return overtakenStatus{o.Client.SubResource(name), o.refused}
}

type overtakenStatus struct {
	client.SubResourceClient
	refused *atomic.Bool
}

func (o overtakenStatus) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
	if stage, ok := object.(*tarnv1.PavStage); ok {
		c := meta.FindStatusCondition(stage.Status.Node.Conditions, tarnv1.ConditionHealthy)
		if c != nil && c.Reason == tarnv1.ReasonRebound && o.refused.CompareAndSwap(false, true) {
			return apierrors.NewConflict(schema.GroupResource{Group: "tarn.dev", Resource: "pavstages"}, stage.Name, errors.New("another write came before"))
		}
	}
	return o.SubResourceClient.Patch(ctx, object, patch, options...)
}

// The pods of this test have no processes, so each of them keeps what it has.
func TestWhatBindingAnewLeavesIsToldThoughTheFirstWriteIsRefused(t *testing.T) {
	w := newWorld(t)
	refused := &atomic.Bool{}
	w.wrap = func(c client.Client) client.Client { return overtaken{c, refused} }
	volume := w.startNumbered()
	first, second := w.mustPublish(volume, "pod-1"), w.mustPublish(volume, "pod-2")
	w.unmountVolume(w.healthy(metav1.ConditionTrue, tarnv1.ReasonStaged))
	left := w.healthy(metav1.ConditionTrue, tarnv1.ReasonRebound).Status.Node.Loss.Left
	if len(left) != 2 || left[0].PodUID == left[1].PodUID || !refused.Load() {
		t.Errorf("left is %+v, want both pods; a write was refused: %v", left, refused.Load())
	}
	w.ends(volume, first, second)
}
