package stages

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/mounts"
)

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
			yes := true
			waits := stage(pod(tarnv1.StagePodRunning), func(s *tarnv1.PavStage) {
				s.Name, s.UID, s.Spec.VolumeName, s.Spec.VolumeUID = "stage", "uid-of-stage", "pv", "uid-of-pv"
				s.Status.Pod.Namespace, s.Status.Pod.Name = "ns", "pav-staging"
			})
			s := &Stages{Config: Config{Folder: t.TempDir(), Now: time.Now, Mounts: mounts.Kernel{}}}
			pav := s.pav(waits.UID)
			ready := filepath.Join(pav, "ready")
			if err := errors.Join(s.makeFolder(waits.UID), os.Mkdir(filepath.Join(pav, "volume"), 0o755), os.WriteFile(ready, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			began := &begunAt{start: s.changed(waits.UID, "ready").Add(time.Nanosecond), Reader: reading(t, waits,
				&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "uid-of-pv"}},
				&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
					Namespace: "ns", Name: "pav-staging", OwnerReferences: []metav1.OwnerReference{{Name: waits.Name, UID: waits.UID, Controller: &yes}},
				}})}
			s.Cached, s.Live = began, began
			found := func() bool {
				v, err := s.gather(t.Context(), waits.Name)
				if err != nil || v.Wrong != "" {
					t.Fatalf("%q, %v", v.Wrong, err)
				}
				return v.Found != nil
			}
			woken := make(chan string, 1000)
			if err := errors.Join(s.ready.open(func(name string) { woken <- name }), s.ready.add(pav, waits.Name)); err != nil {
				t.Fatal(err)
			}
			go func() { _ = s.ready.run(t.Context()) }()
			<-woken // it is there
			if found() {
				t.Fatal("the volume is found by the word of a pod before")
			}
			for began.start.After(s.changed(waits.UID, "ready")) { // the clock of files has a few milliseconds
				if err := touch(ready); err != nil {
					t.Fatal(err)
				}
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
