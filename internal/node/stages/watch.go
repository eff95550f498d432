package stages

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/mounts"
)

// watched are the signs, outside the volume itself, that it may be lost.
type watched struct {
	name string // of the stage
	// point is where the mount with the volume is; empty if there is none. device and root are
	// those of the mount.
	point, device, root string
	// server says that a process serves the file system.
	server bool
	// pod is the staging pod whose processes are watched, see hold.
	pod types.UID
}

// trust remembers that the volume is the staged one.
func (s *Stages) trust(stage *tarnv1.PavStage, r *record) error {
	w := watched{name: stage.Name, point: r.Point, device: r.Device, root: r.Root}
	if r.Point != "" {
		table, err := s.Mounts.List()
		if err != nil {
			return err
		}
		for _, m := range mountsAt(table, r.Point) {
			w.server = strings.HasPrefix(m.Type, "fuse")
		}
	}
	s.mu.Lock()
	s.trusted[stage.UID] = w
	s.mu.Unlock()
	s.hold(stage)
	return nil
}

// hold requests a search for the processes of a staging pod that must stay. It does so once each
// time the volume is trusted, because the pod may be known only later.
func (s *Stages) hold(stage *tarnv1.PavStage) {
	pod := stage.Status.Pod
	s.mu.Lock()
	defer s.mu.Unlock()
	w, trusted := s.trusted[stage.UID]
	if !trusted || pod.UID == "" || w.pod == pod.UID || pod.Phase == tarnv1.StagePodSucceeded {
		return
	}
	w.pod = pod.UID
	s.trusted[stage.UID] = w
	s.firsts.want(pod.UID)
}

func (s *Stages) trusts(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, trusted := s.trusted[uid]
	return trusted
}

// doubt makes the worker check the volume again.
func (s *Stages) doubt(stage *tarnv1.PavStage) { s.doubtNamed(stage.UID, stage.Name) }

func (s *Stages) doubtNamed(uid types.UID, name string) {
	s.mu.Lock()
	delete(s.trusted, uid)
	s.mu.Unlock()
	s.wakeUp(name)
}

func (s *Stages) watching() map[types.UID]watched {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make(map[types.UID]watched, len(s.trusted))
	for uid, w := range s.trusted {
		if w.point != "" {
			list[uid] = w
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
			s.doubtNamed(uid, w.name)
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
				s.doubtNamed(a.uid, a.name)
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
