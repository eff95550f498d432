package node

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/nodetest"
)

// servers are staging pods whose volumes each have a server that ends with its pod.
type servers struct {
	mu    sync.Mutex
	byPav map[string]*nodetest.Server
}

func serve(w *world) *servers {
	s := &servers{byPav: map[string]*nodetest.Server{}}
	w.player.set(s.stage)
	w.player.stop = s.end
	w.Cleanup(func() {
		for pav := range s.byPav {
			s.end(pav)
		}
	})
	return s
}

func (s *servers) stage(pav string) (tarnv1.StagePodPhase, string) {
	point := filepath.Join(pav, "volume")
	if err := os.Mkdir(point, 0o755); err != nil {
		return tarnv1.StagePodFailed, err.Error()
	}
	server, err := nodetest.Serve(point)
	if err != nil {
		return tarnv1.StagePodFailed, err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byPav[pav] = server
	return played(tarnv1.StagePodRunning, os.WriteFile(filepath.Join(pav, "ready"), nil, 0o644))
}

func (s *servers) end(pav string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if server := s.byPav[pav]; server != nil {
		server.End()
		delete(s.byPav, pav)
	}
}

func (s *servers) each(do func(*nodetest.Server)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, server := range s.byPav {
		do(server)
	}
}

// looks counts the running checks of volumes.
func looks() int {
	stacks := make([]byte, 4<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "resultdir.OpenVolume(")
}

func TestAVolumeWhoseServerHangsIsRefusedAndCanBeGivenBack(t *testing.T) {
	w := newWorldAlone(t)
	w.start()
	volume := w.volume(w.provisioner(), "pv-"+w.id)
	s := serve(w)
	first := w.mustPublish(volume, "pod-1")
	s.each((*nodetest.Server).Hang)
	for _, pod := range []string{"pod-2", "pod-3", "pod-2"} {
		_, err := w.publish(volume, pod)
		if status.Code(err) != codes.Unavailable || !strings.Contains(status.Convert(err).Message(), "the server of volume "+volume.Name+" does not answer") {
			t.Fatalf("%s gets %v, want that the server does not answer", pod, err)
		}
	}
	if n := looks(); n != 1 {
		t.Errorf("%d looks at the volume hang, want one", n)
	}
	w.mustUnpublish(volume, w.target(volume, "pod-3"))
	s.each((*nodetest.Server).GoOn)
	var second string
	w.eventually("the server's answer is heard", func() (err error) {
		second, err = w.publish(volume, "pod-2")
		return err
	})
	s.each((*nodetest.Server).Hang)
	w.ends(volume, second, first)
}

func TestServersThatHangKeepNoOtherVolumeFromAnAgentStartedAnew(t *testing.T) {
	const hung = 20 // more than the agent has workers
	w := newWorld(t)
	w.start()
	provisioner := w.provisioner()
	s := serve(w)
	var volumes []*corev1.PersistentVolume
	var targets []string
	for i := range hung {
		volumes = append(volumes, w.volume(provisioner, fmt.Sprintf("pv-%s-%d", w.id, i)))
		targets = append(targets, w.mustPublish(volumes[i], fmt.Sprint("pod-", i)))
	}
	s.each((*nodetest.Server).Hang)
	w.stop()
	w.start()
	w.eventually("the driver is served again", func() error { return w.served(provisioner) })
	w.player.set(greet)
	other := w.volume(provisioner, "pv-"+w.id)
	w.mustUnpublish(other, w.mustPublish(other, "other"))

	var all sync.WaitGroup
	for i := range hung {
		all.Go(func() {
			if err := w.unpublish(volumes[i], targets[i]); err != nil {
				t.Errorf("unpublish %s: %v", volumes[i].Name, err)
			}
		})
	}
	all.Wait()
	w.nothingIsLeft()
}
