package stages

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/hangguard"
)

// hanging is a stage whose volume cannot be checked: each check hangs until the test ends.
func hanging(t *testing.T, changes ...func(*tarnv1.PavStage)) (*Stages, *tarnv1.PavStage) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, tarnv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	of := stage(append(changes, node(tarnv1.StageStaged), func(s *tarnv1.PavStage) {
		s.Name, s.UID, s.Spec.VolumeName = "stage", "uid-of-stage", "pv-1"
	})...)
	reader := fake.NewClientBuilder().WithScheme(scheme).WithTypeConverters(managedfields.NewDeducedTypeConverter()).WithObjects(of).Build()
	s := &Stages{Config: Config{Folder: t.TempDir(), Now: time.Now, Cached: reader, Live: reader}}
	if err := os.MkdirAll(s.pav(of.UID), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := s.writeRecord(of.UID, &record{}); err != nil {
		t.Fatal(err)
	}
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	look := func() (sight, error) { <-end; return sight{}, os.ErrClosed }
	if _, err := hangguard.Ask(&s.looks, lookAt(of), time.Millisecond, look, func(sight, error) {}); !errors.Is(err, hangguard.ErrNoAnswer) {
		t.Fatal(err)
	}
	return s, of
}

func TestAServerThatHangsKeepsTheWorkerOfNoStage(t *testing.T) {
	s, of := hanging(t)
	if v, err := s.gather(t.Context(), of.Name); !errors.Is(err, hangguard.ErrNoAnswer) || v.Lost != nil {
		t.Errorf("got %v, lost %v, want that there is no answer, which is no loss", err, v.Lost)
	}
	s, of = hanging(t, unused)
	v, err := s.gather(t.Context(), of.Name)
	if err != nil {
		t.Fatalf("a stage that nobody uses: %v", err)
	}
	if steps := plan(v); len(steps) == 0 || steps[len(steps)-1].verb != requestEnd {
		t.Errorf("a stage that nobody uses: %v, want that it ends", steps)
	}
}

func TestWhoWaitsForAStageHearsThatItsServerDoesNotAnswer(t *testing.T) {
	s, of := hanging(t)
	a := attempt{Stages: s, want: of}
	if err := a.late(of, context.DeadlineExceeded); !strings.Contains(err.Error(), "the server of volume pv-1 does not answer") {
		t.Errorf("got %v", err)
	}
}
