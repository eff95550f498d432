package stages

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/nodetest"
)

// agentOf is an agent of node-1, whose API server has the given stages.
func agentOf(t *testing.T, there ...*tarnv1.PavStage) *Stages {
	t.Helper()
	objects := make([]client.Object, len(there))
	for i := range there {
		objects[i] = there[i].DeepCopy()
	}
	server := reading(t, objects...)
	s, err := New(Config{
		Writer: server, Live: server, Cached: server, Mounts: mounts.Kernel{},
		Folder: t.TempDir(), KubeletFolder: t.TempDir(), NodeName: "node-1", Now: time.Now,
	})
	nodetest.Must(t, err)
	t.Cleanup(func() { _ = s.ready.watcher.Close() })
	return s
}

func onNode1(name string) *tarnv1.PavStage {
	return stage(func(s *tarnv1.PavStage) {
		s.Name, s.UID, s.ResourceVersion = name, types.UID("uid-of-"+name), "7"
		s.Spec.NodeName = "node-1"
	})
}

// left says whether the node has a directory of the stage.
func (s *Stages) left(t *testing.T, of *tarnv1.PavStage) bool {
	t.Helper()
	_, err := os.Lstat(s.folder(of.UID))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err == nil
}

// The API server may report an existing stage as missing: its cache may be behind, or it starts and
// does not know the kind yet. An unmount would then hit a volume in use.
func TestOnlyWhatIsGoneAtTheServerIsCollected(t *testing.T) {
	alive, gone := onNode1("alive"), onNode1("gone")
	s := agentOf(t, alive)
	for _, stage := range []*tarnv1.PavStage{alive, gone} {
		nodetest.Must(t, os.MkdirAll(filepath.Join(s.pav(stage.UID), "volume"), 0o755))
		s.noteGone(stage)
		nodetest.Must(t, s.collectOrphans(t.Context(), stage.Name))
	}
	if !s.left(t, alive) {
		t.Error("the folder of a stage that there is was removed")
	}
	if s.left(t, gone) {
		t.Error("the folder of a stage that is gone is still there")
	}
}

func TestWhatCannotBeCollectedNowIsCollectedLater(t *testing.T) {
	s, gone := agentOf(t), onNode1("gone")
	nodetest.Must(t, os.MkdirAll(s.pav(gone.UID), 0o755))
	answers := s.Live
	s.Live = interceptor.NewClient(answers.(client.WithWatch), interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errors.New("no answer")
		},
	})
	for range 2 { // another event comes while it waits
		s.noteGone(gone)
		if err := s.collectOrphans(t.Context(), gone.Name); err == nil || !s.left(t, gone) {
			t.Fatalf("it is collected though the server does not answer (%v)", err)
		}
	}
	if n := len(s.orphans[gone.Name]); n != 1 {
		t.Errorf("it waits %d times, want once", n)
	}
	s.Live = answers
	checkCollected(t, s, gone)
}

func TestWhatIsMadeForAStageThatGoesMeanwhileIsCollected(t *testing.T) {
	t.Run("by the worker", func(t *testing.T) {
		s, gone := agentOf(t), onNode1("gone")
		nodetest.Must(t, s.apply(t.Context(), gone.DeepCopy(), []action{{verb: makeFolder}, {verb: markWaiting}}))
		checkCollected(t, s, gone)
	})
	t.Run("by a call of the kubelet's", func(t *testing.T) {
		s, gone := agentOf(t), onNode1("gone")
		a := &attempt{Stages: s, request: Request{Target: filepath.Join(s.KubeletFolder, "pods", "1"), Pod: PodRef{Namespace: "ns", Name: "app", UID: "1"}}, want: gone}
		if known, err := a.addTarget(t.Context(), gone); err != nil || known != nil {
			t.Fatalf("%v, %v; want neither a stage nor an error", known, err)
		}
		checkCollected(t, s, gone)
	})
}

// checkCollected checks that the stage has left files and that collectOrphans removes them.
func checkCollected(t *testing.T, s *Stages, gone *tarnv1.PavStage) {
	t.Helper()
	if !s.left(t, gone) {
		t.Fatal("nothing was made for the stage")
	}
	nodetest.Must(t, s.collectOrphans(t.Context(), gone.Name))
	if s.left(t, gone) {
		t.Error("the folder of a stage that is gone is still there")
	}
}
