package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func TestAVolumeIsStagedMountedAndUnstaged(t *testing.T) {
	w, volume := serving(t)
	begun := time.Now()
	target := w.mustPublish(volume, "pod-1")
	t.Logf("published after %s", time.Since(begun))
	w.wantFile(filepath.Join(target, "greeting"), "hello")
	stages := w.stages()
	if len(stages) != 1 || stages[0].Status.Node.Phase != tarnv1.StageStaged || stages[0].Labels[tarnv1.LabelVolume] != volume.Name {
		t.Errorf("stages: %+v", stages)
	}
	if w.mustPublish(volume, "pod-1"); len(w.stages()[0].Status.Node.Targets) != 1 {
		t.Errorf("publishing again has added a target")
	}
	begun = time.Now()
	w.mustUnpublish(volume, target)
	t.Logf("unpublished after %s", time.Since(begun))
	w.nothingIsLeft()
	w.mustUnpublish(volume, target) // again is the same
	if w.player.staged != 1 || w.player.unstaged != 1 {
		t.Errorf("%d staging and %d unstaging pods, want one each", w.player.staged, w.player.unstaged)
	}
}

func TestAStageBegunAheadIsTakenByTheKubeletsCall(t *testing.T) {
	t.Run("its name is", func(t *testing.T) { takeAStage(t, tarnv1.StageName) })
	t.Run("its name is that of a release before", func(t *testing.T) { takeAStage(t, tarnv1.HashedStageName) })
}

func takeAStage(t *testing.T, name func(types.UID, string, bool) string) {
	w, volume := serving(t)
	p := &pavv1.PavProvisioner{}
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: volume.Spec.CSI.Driver}, p))
	stage := tarnv1.NewStage(tarnv1.ProvisionerReference{Name: p.Name, UID: p.UID}, volume.Name, volume.UID, w.node, false)
	stage.Name = name(volume.UID, w.node, false)
	stage.Spec.AheadFor = &tarnv1.StageConsumer{Namespace: "default", Name: "web", UID: "uid-of-web"}
	w.create(stage)
	w.eventually("it is staged before anybody asks", func() error {
		if s := w.stages(); len(s) != 1 || s[0].Status.Node.Phase != tarnv1.StageStaged {
			return fmt.Errorf("stages: %+v", s)
		}
		return nil
	})
	target := w.mustPublish(volume, "pod-1")
	w.wantFile(filepath.Join(target, "greeting"), "hello")
	if s := w.stages(); len(s) != 1 || s[0].UID != stage.UID || !s[0].Status.Node.Taken || len(s[0].Status.Node.Targets) != 1 {
		t.Errorf("the call has not taken the stage: %+v", s)
	}
	w.ends(volume, target)
	if w.player.staged != 1 || w.player.unstaged != 1 {
		t.Errorf("%d staging and %d unstaging pods, want one each", w.player.staged, w.player.unstaged)
	}
}

func TestPodsOfANodeShareAStageThatEndsWithTheLast(t *testing.T) {
	w, volume := serving(t)
	targets := make([]string, 8)
	errs := make(chan error, len(targets))
	for i := range targets {
		go func() {
			var err error
			targets[i], err = w.publish(volume, "pod-"+string(rune('a'+i)))
			errs <- err
		}()
	}
	for range targets {
		w.must(<-errs)
	}
	if n := len(w.stages()); n != 1 || w.player.staged != 1 {
		t.Errorf("%d stages, %d staging pods, want one", n, w.player.staged)
	}
	for _, target := range targets[1:] {
		w.mustUnpublish(volume, target)
		w.wantFile(filepath.Join(targets[0], "greeting"), "hello")
	}
	w.ends(volume, targets[0])
	if w.player.unstaged != 1 {
		t.Errorf("unstaged %d times", w.player.unstaged)
	}
}

// mustPublishReadOnly publishes a volume for a pod that only reads it, and checks that it cannot
// write.
func (w *world) mustPublishReadOnly(volume *corev1.PersistentVolume, pod string) (target string) {
	w.Helper()
	target, err := w.publish(volume, pod, func(r *csi.NodePublishVolumeRequest) { r.Readonly = true })
	if err != nil {
		w.Fatalf("publish: %v", err)
	}
	w.wantReadOnly(target)
	return target
}

func (w *world) wantReadOnly(target string) {
	w.Helper()
	if err := os.WriteFile(filepath.Join(target, "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		w.Errorf("writing to %s: %v, want %v", target, err, unix.EROFS)
	}
}

// wantStages expects these numbers of targets in the writable and the read-only stage of the only
// volume.
func (w *world) wantStages(writable, readOnly int) {
	w.Helper()
	got := map[bool]int{}
	for _, s := range w.stages() {
		got[s.Spec.ReadOnly] = len(s.Status.Node.Targets)
	}
	if got[false] != writable || got[true] != readOnly {
		w.Errorf("targets by whether the stage is read-only: %v, want %d and %d", got, writable, readOnly)
	}
}

func TestPodsThatOnlyReadShareTheStageOfTheOthers(t *testing.T) {
	w, volume := serving(t)
	reads, writes := w.mustPublishReadOnly(volume, "pod-1"), w.mustPublish(volume, "pod-2")
	w.must(os.WriteFile(filepath.Join(writes, "note"), []byte("both"), 0o600))
	w.wantFile(filepath.Join(reads, "note"), "both")
	w.wantStages(2, 0)
	w.mustUnpublish(volume, writes)
	w.wantFile(filepath.Join(reads, "note"), "both")
	w.mustPublishReadOnly(volume, "pod-1") // as the kubelet asks again
	w.ends(volume, reads)
	if w.player.staged != 1 || w.player.unstaged != 1 {
		t.Errorf("%d staging and %d unstaging pods, want one each", w.player.staged, w.player.unstaged)
	}
}

// A stage stays as it was made, however the provisioner changes.
func TestStagesThatWereMadeOtherwiseServeOn(t *testing.T) {
	t.Run("shared, and apart from now on", func(t *testing.T) {
		w := newWorld(t)
		w.start()
		provisioner := w.provisioner()
		volume := w.volume(provisioner, "pv-"+w.id)
		early, writes := w.mustPublishReadOnly(volume, "early"), w.mustPublish(volume, "writes")
		w.readsReadOnly(provisioner, true)
		w.mustPublishReadOnly(volume, "early")
		w.wantStages(2, 0)
		late := w.mustPublishReadOnly(volume, "late")
		w.wantStages(2, 1)
		w.ends(volume, early, writes, late)
	})
	t.Run("apart, as in a release before, and shared from now on", func(t *testing.T) {
		w := newWorld(t)
		w.start()
		provisioner := w.provisioner()
		w.readsReadOnly(provisioner, true)
		volume := w.volume(provisioner, "pv-"+w.id)
		early := w.mustPublishReadOnly(volume, "early")
		w.readsReadOnly(provisioner, false)
		joins := w.mustPublishReadOnly(volume, "joins")
		w.wantStages(0, 2)
		writes := w.mustPublish(volume, "writes")
		w.wantStages(1, 2)
		late := w.mustPublishReadOnly(volume, "late")
		w.wantStages(2, 2)
		w.ends(volume, early, joins, writes, late)
	})
}

func TestTheTextOfPavErrorReachesTheUserAndTheNextAttemptIsNew(t *testing.T) {
	w, volume := serving(t)
	w.player.set(func(pav string) (tarnv1.StagePodPhase, string) {
		_ = os.WriteFile(filepath.Join(pav, "error"), []byte("  the bucket is on fire\n"), 0o644)
		return tarnv1.StagePodFailed, "exit code 3"
	})
	_, err := w.publish(volume, "pod-1")
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "Staging pod failed: the bucket is on fire (exit code 3)") {
		t.Fatalf("publish: %v", err)
	}
	w.stageEnds()
	w.nothingIsLeft()
	w.player.set(greet)
	target := w.mustPublish(volume, "pod-1")
	w.wantFile(filepath.Join(target, "greeting"), "hello")
	w.ends(volume, target)
}

func TestAStagingPodThatStaysSaysReadyByAFile(t *testing.T) {
	w, volume := serving(t)
	w.player.set(func(pav string) (tarnv1.StagePodPhase, string) {
		go func() { // a long-running pod, which mounts something and then says so
			time.Sleep(200 * time.Millisecond)
			point := filepath.Join(pav, "volume")
			_ = os.Mkdir(point, 0o755)
			if err := unix.Mount("tarn-test", point, "tmpfs", 0, ""); err != nil {
				t.Error(err)
			}
			_ = os.WriteFile(filepath.Join(point, "greeting"), []byte("mounted"), 0o644)
			_ = os.WriteFile(filepath.Join(pav, "ready"), nil, 0o644)
		}()
		return tarnv1.StagePodRunning, ""
	})
	target := w.mustPublish(volume, "pod-1")
	w.wantFile(filepath.Join(target, "greeting"), "mounted")
	w.mustUnpublish(volume, target) // the player checks that all is unmounted before unstaging
	w.nothingIsLeft()
}

func TestAWrongVolumeIsRefusedWithWhatIsWrong(t *testing.T) {
	for want, make := range map[string]func(pav string) error{
		"does not exist":           func(string) error { return nil },
		"leads to nothing below":   func(pav string) error { return os.Symlink("/etc", filepath.Join(pav, "volume")) },
		"neither a directory nor":  func(pav string) error { return os.WriteFile(filepath.Join(pav, "volume"), nil, 0o644) },
		"volumeMode is Filesystem": func(pav string) error { return unix.Mknod(filepath.Join(pav, "volume"), unix.S_IFBLK|0o600, 1<<8) },
	} {
		t.Run(want, func(t *testing.T) {
			w, volume := serving(t)
			w.player.set(func(pav string) (tarnv1.StagePodPhase, string) {
				if err := make(pav); err != nil {
					t.Error(err)
				}
				return tarnv1.StagePodSucceeded, ""
			})
			_, err := w.publish(volume, "pod-1")
			if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), want) {
				t.Errorf("publish: %v, want %q", err, want)
			}
		})
	}
}
