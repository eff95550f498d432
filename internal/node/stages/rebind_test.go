package stages

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/nodetest"
)

// table is a mount table that records the calls.
type table struct {
	mounts.Mounter
	mounts              []mounts.Mount
	replaced, unmounted []string
}

func (f *table) List() ([]mounts.Mount, error) { return f.mounts, nil }

func (f *table) Replace(_ *os.File, target string, _ bool) error {
	f.replaced = append(f.replaced, target)
	return nil
}

func (f *table) Unmount(point string) error {
	f.unmounted = append(f.unmounted, point)
	f.mounts = slices.DeleteFunc(f.mounts, func(m mounts.Mount) bool { return m.Point == point })
	return nil
}

// A publish call may mount the volume right before its loss, and holds its target until it returns.
func TestATargetThatACallHasMountedIsBoundAnewBeforeTheCallReturns(t *testing.T) {
	dir := t.TempDir()
	target := mounts.Real(filepath.Join(dir, "target"))
	nodetest.Must(t, os.Mkdir(target, 0o755))
	volume, err := os.OpenFile(dir, unix.O_PATH, 0)
	nodetest.Must(t, err)
	defer func() { _ = volume.Close() }()
	for what, c := range map[string]struct {
		mounts []mounts.Mount
		want   []string
	}{
		"mounted":     {[]mounts.Mount{{Point: target}}, []string{target}},
		"not mounted": {nil, nil},
	} {
		t.Run(what, func(t *testing.T) {
			f := &table{mounts: c.mounts}
			s := &Stages{Config: Config{Mounts: f, KubeletFolder: dir}}
			defer s.targets.Lock(target)()
			restarted := stage(func(s *tarnv1.PavStage) { s.Status.Pod.Recovery = tarnv1.RecoveryRestartConsumers })
			nodetest.Must(t, s.rebindTarget(restarted, target, volume, &record{Rebinding: &rebinding{}}))
			if !slices.Equal(f.replaced, c.want) {
				t.Errorf("bound anew at %q, want %q", f.replaced, c.want)
			}
		})
	}
}

func TestNothingOutsideOfTheKubeletsFolderIsUnmountedWhateverAStatusSays(t *testing.T) {
	dir := mounts.Real(t.TempDir())
	kubelet, other := filepath.Join(dir, "kubelet"), filepath.Join(dir, "other")
	for _, folder := range []string{kubelet, other} {
		nodetest.Must(t, os.Mkdir(folder, 0o755))
	}
	inside := filepath.Join(kubelet, "mount")
	f := &table{mounts: []mounts.Mount{{Point: other}, {Point: inside}}}
	s := &Stages{Config: Config{Mounts: f, KubeletFolder: kubelet, Folder: filepath.Join(kubelet, "stages")}}
	told := stage(func(s *tarnv1.PavStage) {
		s.Status.Node.Targets = []string{kubelet + "/../other", other, inside}
	})
	nodetest.Must(t, s.unmountAll(t.Context(), told, false))
	if want := []string{inside}; !slices.Equal(f.unmounted, want) {
		t.Errorf("unmounted %q, want %q", f.unmounted, want)
	}
}

func TestNothingIsRememberedOfAStageThatIsGone(t *testing.T) {
	s, err := New(Config{})
	nodetest.Must(t, err)
	defer func() { _ = s.ready.watcher.Close() }()
	gone := stage(func(s *tarnv1.PavStage) { s.UID, s.Status.Pod.UID = "gone", "third" })
	for _, end := range []struct{ stage, pod types.UID }{{"gone", "first"}, {"gone", "third"}, {"other", "second"}} {
		s.learnEnd(end.stage, end.pod, func(e *podEnd) { e.failure = "killed" })
	}
	s.learn("gone", func(k *knowledge) { k.checked = &checked{} })
	s.forget(gone)
	if k := s.recall("gone"); len(k.pods) != 0 || k.checked != nil || len(s.known) != 1 {
		t.Errorf("left are %+v", s.known)
	}
}

// The path to a mount inside another one leads through that one's server, which may hang.
func TestWhoTrustsAVolumeFindsItsMountInTheTableAlone(t *testing.T) {
	dir := t.TempDir()
	nodetest.Must(t, errors.Join(os.Mkdir(filepath.Join(dir, "other"), 0o755), os.Symlink("other", filepath.Join(dir, "served"))))
	point := filepath.Join(dir, "served", "volume") // where the way on disk would be another one
	s, err := New(Config{Mounts: &table{mounts: []mounts.Mount{{Point: point, Type: "fuse.test"}}}})
	nodetest.Must(t, err)
	of := stage(node(tarnv1.StageStaged))
	nodetest.Must(t, s.trust(of, &record{Point: point}))
	if w := s.watching()[of.UID]; !w.server {
		t.Errorf("watched is %+v, want that it has a server", w)
	}
}
