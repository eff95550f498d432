package stages

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/resultdir"
)

// checked is a volume that this process has found correct, with the signs outside the volume itself
// by which to doubt that.
type checked struct {
	name string // of the stage
	// point is where the mount with the volume is; empty if there is none. device and root are
	// those of the mount.
	point, device, root string
	// server says that a process serves the file system.
	server bool
	// pod is the staging pod whose processes are watched.
	pod types.UID
}

// trust remembers that the volume is the staged one.
func (s *Stages) trust(stage *tarnv1.PavStage, r *record) error {
	w := &checked{name: stage.Name, point: r.Point, device: r.Device, root: r.Root}
	if r.Point != "" {
		table, err := s.Mounts.List()
		if err != nil {
			return err
		}
		for _, m := range mounts.AtPoint(table, r.Point) {
			w.server = strings.HasPrefix(m.Type, "fuse")
		}
	}
	s.learn(stage.UID, func(k *knowledge) { k.checked = w })
	s.watchPod(stage)
	return nil
}

// watchPod requests a search for the processes of a staging pod that must stay. It does so once each
// time the volume is trusted, because the pod may be known only later.
func (s *Stages) watchPod(stage *tarnv1.PavStage) {
	pod := stage.Status.Pod
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.known[stage.UID].checked
	if w == nil || pod.UID == "" || w.pod == pod.UID || pod.Phase == tarnv1.StagePodSucceeded {
		return
	}
	w.pod = pod.UID
	s.processes.want(pod.UID)
}

// doubt makes the worker check the volume again.
func (s *Stages) doubt(uid types.UID, name string) {
	s.mu.Lock()
	if k, known := s.known[uid]; known {
		k.checked = nil
		s.known[uid] = k
	}
	s.mu.Unlock()
	s.queue.add(name)
}

// watching are the correct volumes on mounts.
func (s *Stages) watching() map[types.UID]checked {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := map[types.UID]checked{}
	for uid, k := range s.known {
		if k.checked != nil && k.checked.point != "" {
			list[uid] = *k.checked
		}
	}
	return list
}

// settle is how long mounts may keep changing before they are checked: a pod that starts changes a
// dozen at once.
const settle = 50 * time.Millisecond

// watchMounts watches the mount table. It doubts the volumes whose mount has disappeared or is no
// longer uppermost.
func (s *Stages) watchMounts(ctx context.Context) error {
	// Not os.Open: Go's own poller would poll the file too, and the kernel reports each change
	// once.
	table, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("watch the mount table: %w", err)
	}
	defer func() { _ = unix.Close(table) }()
	ends, end, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("watch the mount table: %w", err)
	}
	defer func() { _ = ends.Close() }()
	go func() {
		<-ctx.Done()
		_ = end.Close()
	}()
	for {
		wait := []unix.PollFd{{Fd: int32(table), Events: unix.POLLPRI}, {Fd: int32(ends.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(wait, -1); err != nil && err != unix.EINTR {
			return fmt.Errorf("watch the mount table: %w", err)
		}
		if ctx.Err() != nil {
			return nil
		}
		s.checkMounts()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settle):
		}
	}
}

func (s *Stages) checkMounts() {
	list := s.watching()
	if len(list) == 0 {
		return
	}
	table, err := s.Mounts.List()
	if err != nil {
		return
	}
	top := map[string]mounts.Mount{}
	for _, m := range table {
		top[m.Point] = m
	}
	for uid, w := range list {
		if m, there := top[w.point]; !there || m.Device != w.device || m.Root != w.root {
			s.doubt(uid, w.name)
		}
	}
}

// serverPause is how often each file system with a server is asked for its size. Its end causes no
// event, and two seconds are allowed to notice it.
const serverPause = time.Second

// watchServers doubts the volumes whose server has ended. A server that hangs gets one query, until
// it answers.
func (s *Stages) watchServers(ctx context.Context) error {
	tick := time.NewTicker(serverPause)
	defer tick.Stop()
	asked := map[types.UID]bool{}
	type answer struct {
		uid  types.UID
		name string
		dead bool
	}
	answers := make(chan answer)
	for {
		select {
		case <-ctx.Done():
			return nil
		case a := <-answers:
			delete(asked, a.uid)
			if a.dead {
				s.doubt(a.uid, a.name)
			}
		case <-tick.C:
			for uid, w := range s.watching() {
				if !w.server || asked[uid] {
					continue
				}
				asked[uid] = true
				go func() {
					var fs unix.Statfs_t
					err := unix.Statfs(w.point, &fs)
					select {
					case answers <- answer{uid, w.name, err == unix.ENOTCONN}:
					case <-ctx.Done():
					}
				}()
			}
		}
	}
}

// readyWatch watches for /pav/ready, by inotify, in the directories of stages that wait.
type readyWatch struct {
	watcher *fsnotify.Watcher
	enqueue func(stage string)

	mu    sync.Mutex
	names map[string]string // pav directory -> stage's name
}

func (w *readyWatch) open(enqueue func(string)) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	w.watcher, w.enqueue, w.names = watcher, enqueue, map[string]string{}
	return nil
}

// add begins to watch a directory. If ready exists already, the stage is enqueued at once.
func (w *readyWatch) add(pav, stage string) error {
	w.mu.Lock()
	_, known := w.names[pav]
	w.names[pav] = stage
	w.mu.Unlock()
	if known {
		return nil
	}
	if err := w.watcher.Add(pav); err != nil {
		w.forget(pav)
		return err
	}
	if resultdir.Ready(pav) {
		w.enqueue(stage)
	}
	return nil
}

func (w *readyWatch) remove(pav string) {
	if w.forget(pav) {
		_ = w.watcher.Remove(pav) // fails only if the directory, and so the watch, was removed
	}
}

func (w *readyWatch) forget(pav string) (known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, known = w.names[pav]
	delete(w.names, pav)
	return known
}

// run passes events on until ctx ends.
func (w *readyWatch) run(ctx context.Context) error {
	defer func() { _ = w.watcher.Close() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, open := <-w.watcher.Events:
			if !open {
				return nil
			}
			// A pod may find an existing file, and touch it.
			if filepath.Base(e.Name) == "ready" && e.Has(fsnotify.Create|fsnotify.Write|fsnotify.Chmod) {
				w.changed(filepath.Dir(e.Name))
			}
		case err, open := <-w.watcher.Errors:
			if !open {
				return nil
			}
			log.FromContext(ctx).Error(err, "inotify lost events; all waiting stages are checked")
			w.changed("")
		}
	}
}

// changed enqueues the stage of a directory; an empty path means all of them.
func (w *readyWatch) changed(pav string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for of, stage := range w.names {
		if of == pav || pav == "" {
			w.enqueue(stage)
		}
	}
}
