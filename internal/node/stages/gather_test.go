package stages

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/mounts"
)

// reading is a client of an API server that contains the given objects.
func reading(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, tarnv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithTypeConverters(managedfields.NewDeducedTypeConverter()).WithObjects(objects...).
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
			if err := os.MkdirAll(s.pav(failed.UID), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.errorFile(failed.UID), []byte("no bucket"), 0o600); err != nil {
				t.Fatal(err)
			}
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

// A staging pod that is being deleted or has ended leaves /pav/ready beside the empty directory of
// its mount. A pod that finds ready there makes its volume again.
func TestAReadyVolumeIsThatOfAPodThatStays(t *testing.T) {
	const earlier, later = -time.Hour, time.Hour
	yes := true
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
			s := &Stages{Config: Config{Folder: t.TempDir(), Now: time.Now, Mounts: mounts.Kernel{}}}
			volume := filepath.Join(s.Folder, "uid-of-stage", "pav", "volume")
			waits := stage(pod(cmp.Or(test.phase, tarnv1.StagePodRunning)), func(s *tarnv1.PavStage) {
				s.Name, s.UID, s.Spec.VolumeName, s.Spec.VolumeUID = "stage", "uid-of-stage", "pv", "uid-of-pv"
				s.Status.Pod.Namespace, s.Status.Pod.Name = "ns", "pav-staging"
			})
			if err := errors.Join(s.makeFolder(waits.UID), os.Mkdir(volume, 0o755), os.WriteFile(filepath.Join(s.pav(waits.UID), "ready"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			staging := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "pav-staging", OwnerReferences: []metav1.OwnerReference{{Name: waits.Name, UID: waits.UID, Controller: &yes}},
			}}
			staging.Status.StartTime = &metav1.Time{Time: s.changed(waits.UID, "ready").Add(earlier)}
			if test.change != nil {
				test.change(staging)
			}
			objects := []client.Object{waits, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "uid-of-pv"}}}
			if !test.gone {
				objects = append(objects, staging)
			}
			reader := reading(t, objects...)
			s.Cached, s.Live = reader, reader
			v, err := s.gather(t.Context(), waits.Name)
			if found := v.Found != nil; err != nil || v.Wrong != "" || found != test.want {
				t.Errorf("the volume is found: %t (%q, %v), want %t", found, v.Wrong, err, test.want)
			}
			if err := os.Remove(volume); err != nil {
				t.Fatal(err)
			}
			v, err = s.gather(t.Context(), waits.Name)
			if wrong := v.Wrong != ""; err != nil || v.Found != nil || wrong != test.want {
				t.Errorf("without it the stage fails: %t (%q, %v), want %t", wrong, v.Wrong, err, test.want)
			}
		})
	}
}

func TestAVolumeIsInUseWhereverTheKubeletsFolderLies(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	behind := filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "kubelet"), 0o755), os.Symlink("kubelet", behind)); err != nil {
		t.Fatal(err)
	}
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

func TestABusyMountIsWaitedForFromTheFirstTry(t *testing.T) {
	clock := now
	target := filepath.Join(t.TempDir(), "target")
	s, err := New(Config{Mounts: &busyTable{table: table{mounts: []mounts.Mount{{Point: target}}}}, KubeletFolder: filepath.Dir(target), Now: func() time.Time { return clock }})
	if err != nil {
		t.Fatal(err)
	}
	of := stage(pod(tarnv1.StagePodStopped), ending(time.Hour), func(s *tarnv1.PavStage) {
		s.Status.Node.Targets = []string{target}
		s.Status.Node.Message = "cannot unmount yet: " + unix.EBUSY.Error()
	})
	if since := s.busy(of.UID); !since.IsZero() {
		t.Errorf("busy since %s, and nothing was tried", since)
	}
	for range 2 {
		if err := s.unmountAll(t.Context(), of, false); !errors.Is(err, unix.EBUSY) {
			t.Fatalf("unmounting a busy mount: %v", err)
		}
		if since := s.busy(of.UID); !since.Equal(now) {
			t.Errorf("busy since %s, want the first try at %s", since, now)
		}
		clock = clock.Add(time.Minute)
	}
	s.forget(of)
	if since := s.busy(of.UID); !since.IsZero() {
		t.Errorf("a stage that has gone is still known as busy since %s", since)
	}
}

// Mounts of the unstaging pod may be busy for a moment, long after busy mounts of the staging pod.
func TestAMountThatIsBusyAnewIsWaitedForAnew(t *testing.T) {
	clock := now
	target := filepath.Join(t.TempDir(), "target")
	held := &busyTable{table: table{mounts: []mounts.Mount{{Point: target}}}}
	s, err := New(Config{Mounts: held, KubeletFolder: filepath.Dir(target), Now: func() time.Time { return clock }})
	if err != nil {
		t.Fatal(err)
	}
	of := stage(pod(tarnv1.StagePodStopped), ending(time.Hour), func(s *tarnv1.PavStage) {
		s.Status.Node.Targets = []string{target}
		s.Status.Node.Message = "cannot unmount yet: " + unix.EBUSY.Error()
	})
	if err := s.unmountAll(t.Context(), of, false); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("unmounting a busy mount: %v", err)
	}
	held.free = true
	if err := s.unmountAll(t.Context(), of, false); err != nil {
		t.Fatal(err)
	}
	if since := s.busy(of.UID); !since.IsZero() {
		t.Errorf("busy since %s, and all is unmounted", since)
	}
	clock = clock.Add(detachAfter)
	held.free, held.mounts = false, []mounts.Mount{{Point: target}}
	if err := s.unmountAll(t.Context(), of, false); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("unmounting a mount that is busy anew: %v", err)
	}
	if since := s.busy(of.UID); !since.Equal(clock) {
		t.Errorf("busy since %s, want since the try at %s", since, clock)
	}
}
