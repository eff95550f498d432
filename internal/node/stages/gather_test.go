package stages

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/node/hangguard"
	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/nodetest"
)

// reading is a client of an API server that contains the given objects.
func reading(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	return fake.NewClientBuilder().WithScheme(kube.Scheme()).WithTypeConverters(managedfields.NewDeducedTypeConverter()).WithObjects(objects...).
		WithIndex(&tarnv1.PavStage{}, NodeField, func(o client.Object) []string { return []string{o.(*tarnv1.PavStage).Spec.NodeName} }).Build()
}

func TestTheWordOfAStagingPodIsNotThatOfOneBefore(t *testing.T) {
	const earlier, later = -time.Hour, time.Hour
	for name, test := range map[string]struct {
		// noted and begun are starts of the pod, in time after the writing of /pav/error. noted is
		// the controller's, begun the kubelet's; 0 means never.
		noted, begun time.Duration
		// gone says that the pod does not exist, theirs that it belongs to something else.
		gone, theirs bool
		want         string
	}{
		"its own":                          {noted: earlier, begun: earlier, want: "no bucket"},
		"its own, by the node's clock":     {noted: later, begun: earlier, want: "no bucket"},
		"an earlier one's":                 {noted: later, begun: later},
		"an earlier one's, by that too":    {noted: earlier, begun: later},
		"not of one that has not begun":    {noted: earlier},
		"of one that is gone":              {noted: earlier, gone: true, want: "no bucket"},
		"of one before one that is gone":   {noted: later, gone: true},
		"of one of which nothing is known": {gone: true, want: "no bucket"},
		"though another has its name":      {noted: earlier, begun: later, theirs: true, want: "no bucket"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Stages{Config: Config{Folder: t.TempDir(), Now: time.Now}}
			failed := stage(pod(tarnv1.StagePodFailed), func(s *tarnv1.PavStage) {
				s.Name, s.UID = "stage", "uid-of-stage"
				s.Status.Pod.Namespace, s.Status.Pod.Name, s.Status.Pod.Message = "ns", "pav-staging", "container main exited with 1"
			})
			nodetest.Must(t, os.MkdirAll(s.pav(failed.UID), 0o755))
			nodetest.Must(t, os.WriteFile(s.errorFile(failed.UID), []byte("no bucket"), 0o600))
			at := func(d time.Duration) *metav1.Time {
				if d == 0 {
					return nil
				}
				return &metav1.Time{Time: s.changed(failed.UID, "error").Add(d)}
			}
			failed.Status.Pod.StartTime = at(test.noted)
			objects := []client.Object{failed}
			if !test.gone {
				staging := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pav-staging"}}
				staging.Status.StartTime = at(test.begun)
				if !test.theirs {
					yes := true
					staging.OwnerReferences = []metav1.OwnerReference{{Name: failed.Name, UID: failed.UID, Controller: &yes}}
				}
				objects = append(objects, staging)
			}
			reader := reading(t, objects...)
			s.Cached, s.Live = reader, reader
			v, err := s.gather(t.Context(), failed.Name)
			if err != nil || v.PodError != test.want {
				t.Errorf("it has said %q (%v), want %q", v.PodError, err, test.want)
			}
		})
	}
}

// ready is an agent with a stage whose staging pod, which runs, has made /pav/volume and /pav/ready.
func ready(t *testing.T) (s *Stages, of *tarnv1.PavStage, volume *corev1.PersistentVolume, staging *corev1.Pod) {
	t.Helper()
	yes := true
	s = &Stages{Config: Config{Folder: t.TempDir(), Now: time.Now, Mounts: mounts.Kernel{}}}
	of = stage(pod(tarnv1.StagePodRunning), func(s *tarnv1.PavStage) {
		s.Name, s.UID, s.Spec.VolumeName, s.Spec.VolumeUID = "stage", "uid-of-stage", "pv", "uid-of-pv"
		s.Status.Pod.Namespace, s.Status.Pod.Name = "ns", "pav-staging"
	})
	nodetest.Must(t, errors.Join(s.makeFolder(of.UID), os.Mkdir(filepath.Join(s.pav(of.UID), "volume"), 0o755), os.WriteFile(filepath.Join(s.pav(of.UID), "ready"), nil, 0o600)))
	volume = &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "uid-of-pv"}}
	staging = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "pav-staging", OwnerReferences: []metav1.OwnerReference{{Name: of.Name, UID: of.UID, Controller: &yes}},
	}}
	return s, of, volume, staging
}

// A staging pod that is being deleted or has ended leaves /pav/ready beside the empty directory of
// its mount. A pod that finds ready there makes its volume again.
func TestAReadyVolumeIsThatOfAPodThatStays(t *testing.T) {
	const earlier, later = -time.Hour, time.Hour
	for name, test := range map[string]struct {
		phase  tarnv1.StagePodPhase
		change func(*corev1.Pod)
		gone   bool
		want   bool
	}{
		"it runs": {want: true},
		"it is being deleted": {change: func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: now}, []string{"tarn.dev/test"}
		}},
		"it is gone":                           {gone: true},
		"it has ended well, and is gone":       {phase: tarnv1.StagePodSucceeded, gone: true, want: true},
		"it was evicted":                       {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }},
		"it ended, however, and that is news":  {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }},
		"the kubelet has not begun it":         {change: func(p *corev1.Pod) { p.Status.StartTime = nil }},
		"another was ready, whose /pav it has": {change: func(p *corev1.Pod) { p.Status.StartTime = &metav1.Time{Time: p.Status.StartTime.Add(later - earlier)} }},
		"it is somebody else's":                {change: func(p *corev1.Pod) { p.OwnerReferences[0].UID = "another" }},
	} {
		t.Run(name, func(t *testing.T) {
			s, waits, pv, staging := ready(t)
			waits.Status.Pod.Phase = cmp.Or(test.phase, waits.Status.Pod.Phase)
			staging.Status.StartTime = &metav1.Time{Time: s.changed(waits.UID, "ready").Add(earlier)}
			if test.change != nil {
				test.change(staging)
			}
			objects := []client.Object{waits, pv}
			if !test.gone {
				objects = append(objects, staging)
			}
			reader := reading(t, objects...)
			s.Cached, s.Live = reader, reader
			v, err := s.gather(t.Context(), waits.Name)
			if found := v.Found != nil; err != nil || v.Wrong != "" || found != test.want {
				t.Errorf("the volume is found: %t (%q, %v), want %t", found, v.Wrong, err, test.want)
			}
			nodetest.Must(t, os.Remove(filepath.Join(s.pav(waits.UID), "volume")))
			v, err = s.gather(t.Context(), waits.Name)
			if wrong := v.Wrong != ""; err != nil || v.Found != nil || wrong != test.want {
				t.Errorf("without it the stage fails: %t (%q, %v), want %t", wrong, v.Wrong, err, test.want)
			}
		})
	}
}

func TestAVolumeIsInUseWhereverTheKubeletsFolderLies(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	nodetest.Must(t, err)
	behind := filepath.Join(dir, "link")
	nodetest.Must(t, errors.Join(os.Mkdir(filepath.Join(dir, "kubelet"), 0o755), os.Symlink("kubelet", behind)))
	of := stage(node(tarnv1.StageStaged), pod(tarnv1.StagePodRunning), ending(0), func(s *tarnv1.PavStage) {
		s.Status.Node.Targets = []string{filepath.Join(behind, "target")}
	})
	for what, c := range map[string]struct {
		point string
		want  bool
	}{
		"mounted":                {filepath.Join(dir, "kubelet", "target"), true},
		"something else mounted": {filepath.Join(dir, "kubelet", "target-2"), false},
	} {
		s := &Stages{Config: Config{Mounts: &table{mounts: []mounts.Mount{{Point: c.point}}}}}
		if used, err := s.inUse(of); err != nil || used == nil || *used != c.want {
			t.Errorf("%s: in use is %v (%v), want %t", what, used, err, c.want)
		}
	}
}

// busyTable has a mount that stays busy until the test releases it.
type busyTable struct {
	table
	free bool
}

func (f *busyTable) Unmount(point string) error {
	if !f.free {
		return unix.EBUSY
	}
	return f.table.Unmount(point)
}

// busy is an ending stage whose mount is busy, seen by an agent whose clock is set by the test.
func busy(t *testing.T, clock *time.Time) (*Stages, *busyTable, *tarnv1.PavStage) {
	t.Helper()
	target := filepath.Join(t.TempDir(), "target")
	held := &busyTable{table: table{mounts: []mounts.Mount{{Point: target}}}}
	of := stage(pod(tarnv1.StagePodStopped), ending(time.Hour), func(s *tarnv1.PavStage) {
		s.Status.Node.Targets = []string{target}
		s.Status.Node.Message = "cannot unmount yet: " + unix.EBUSY.Error()
	})
	return &Stages{Config: Config{Mounts: held, KubeletFolder: filepath.Dir(target), Now: func() time.Time { return *clock }}}, held, of
}

func TestABusyMountIsWaitedForFromTheFirstTry(t *testing.T) {
	clock := now
	s, _, of := busy(t, &clock)
	if since := s.recall(of.UID).busySince; !since.IsZero() {
		t.Errorf("busy since %s, and nothing was tried", since)
	}
	for range 2 {
		if err := s.unmountAll(t.Context(), of, false); !errors.Is(err, unix.EBUSY) {
			t.Fatalf("unmounting a busy mount: %v", err)
		}
		if since := s.recall(of.UID).busySince; !since.Equal(now) {
			t.Errorf("busy since %s, want the first try at %s", since, now)
		}
		clock = clock.Add(time.Minute)
	}
	s.forget(of)
	if since := s.recall(of.UID).busySince; !since.IsZero() {
		t.Errorf("a stage that has gone is still known as busy since %s", since)
	}
}

// Mounts of the unstaging pod may be busy for a moment, long after busy mounts of the staging pod.
func TestAMountThatIsBusyAnewIsWaitedForAnew(t *testing.T) {
	clock := now
	s, held, of := busy(t, &clock)
	if err := s.unmountAll(t.Context(), of, false); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("unmounting a busy mount: %v", err)
	}
	held.free = true
	nodetest.Must(t, s.unmountAll(t.Context(), of, false))
	if since := s.recall(of.UID).busySince; !since.IsZero() {
		t.Errorf("busy since %s, and all is unmounted", since)
	}
	clock = clock.Add(detachAfter)
	held.free, held.mounts = false, []mounts.Mount{{Point: of.Status.Node.Targets[0]}}
	if err := s.unmountAll(t.Context(), of, false); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("unmounting a mount that is busy anew: %v", err)
	}
	if since := s.recall(of.UID).busySince; !since.Equal(clock) {
		t.Errorf("busy since %s, want since the try at %s", since, clock)
	}
}

// begunAt gives pods a start in nanoseconds, which the API does not have.
type begunAt struct {
	client.Reader
	start time.Time
}

func (b *begunAt) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	err := b.Reader.Get(ctx, key, into, opts...)
	if p, ok := into.(*corev1.Pod); ok {
		p.Status.StartTime = &metav1.Time{Time: b.start}
	}
	return err
}

// A pod that finds the file of an earlier pod does not create one.
func TestAReadyThatIsOlderThanItsPodIsHeardOfWhenThePodTouchesIt(t *testing.T) {
	for how, touch := range map[string]func(path string) error{
		"by its times": func(path string) error { return os.Chtimes(path, time.Now(), time.Now()) },
		"by writing":   func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) },
	} {
		t.Run(how, func(t *testing.T) {
			s, waits, pv, staging := ready(t)
			pav := s.pav(waits.UID)
			file := filepath.Join(pav, "ready")
			began := &begunAt{start: s.changed(waits.UID, "ready").Add(time.Nanosecond), Reader: reading(t, waits, pv, staging)}
			s.Cached, s.Live = began, began
			found := func() bool {
				v, err := s.gather(t.Context(), waits.Name)
				if err != nil || v.Wrong != "" {
					t.Fatalf("%q, %v", v.Wrong, err)
				}
				return v.Found != nil
			}
			woken := make(chan string, 1000)
			nodetest.Must(t, errors.Join(s.ready.open(func(name string) { woken <- name }), s.ready.add(pav, waits.Name)))
			go func() { _ = s.ready.run(t.Context()) }()
			<-woken // it is there
			if found() {
				t.Fatal("the volume is found by the word of a pod before")
			}
			for began.start.After(s.changed(waits.UID, "ready")) { // the clock of files has a few milliseconds
				nodetest.Must(t, touch(file))
			}
			select {
			case <-woken:
			case <-time.After(10 * time.Second):
				t.Fatal("nobody is told that it was touched")
			}
			if !found() {
				t.Error("the volume is not found")
			}
		})
	}
}

// hanging is a stage whose volume cannot be checked: each check hangs until the test ends.
func hanging(t *testing.T, changes ...func(*tarnv1.PavStage)) (*Stages, *tarnv1.PavStage) {
	t.Helper()
	of := stage(append(changes, node(tarnv1.StageStaged), func(s *tarnv1.PavStage) {
		s.Name, s.UID, s.Spec.VolumeName = "stage", "uid-of-stage", "pv-1"
	})...)
	reader := reading(t, of)
	s := &Stages{Config: Config{Folder: t.TempDir(), Now: time.Now, Cached: reader, Live: reader}}
	nodetest.Must(t, os.MkdirAll(s.pav(of.UID), 0o755))
	nodetest.Must(t, s.writeRecord(of.UID, &record{}))
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	look := func() (inspection, error) { <-end; return inspection{}, os.ErrClosed }
	if _, err := hangguard.Ask(&s.asker, question(theVolume, of), time.Millisecond, look, func(inspection, error) {}); !errors.Is(err, hangguard.ErrNoAnswer) {
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
