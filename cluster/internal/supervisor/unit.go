package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/control"
	"tarn.dev/tarn/cluster/internal/layout"
	"tarn.dev/tarn/cluster/internal/proc"
)

const (
	firstBackoff = 250 * time.Millisecond
	lastBackoff  = 30 * time.Second
	// steadyAfter is how long a component must run before its next end counts as the first again.
	steadyAfter = time.Minute
	// logLimit is the size from which a log is rotated, once, when its component starts.
	logLimit = 64 << 20
)

// backoff is the pause before the given restart, counted from 0.
func backoff(failures int) time.Duration {
	pause := firstBackoff
	for range failures {
		if pause *= 2; pause >= lastBackoff {
			return lastBackoff
		}
	}
	return pause
}

// unit keeps one component running.
type unit struct {
	component component.Component
	start     func(component.Component) (*proc.Process, error)
	hostPID   func(*os.File) int
	// failed is called when the component ends by itself, with the number of times in a row.
	failed   func(name string, times int, exit string)
	stopping chan struct{} // closed when it shall not be started again
	stopOnce sync.Once
	ended    chan struct{} // closed when it has ended for good
	hurry    chan struct{} // ends a pause

	mu        sync.Mutex
	process   *proc.Process // nil between two runs
	started   time.Time
	restarts  int
	lastExit  string
	requested bool // the process at hand is ended by restart
}

// run starts the component repeatedly until stop is called.
func (u *unit) run() {
	defer close(u.ended)
	failures := 0
	for {
		began := time.Now()
		p, err := u.start(u.component)
		exit := ""
		if err != nil {
			exit = err.Error()
		} else {
			u.note(p, "")
			select {
			case <-p.Done():
			case <-u.stopping:
				<-p.Done()
			}
			exit = p.Exit()
		}
		u.note(nil, exit)
		if time.Since(began) > steadyAfter {
			failures = 0
		}
		pause := backoff(failures)
		failures++
		if u.wasRequested() {
			pause, failures = 0, 0
		} else {
			u.failed(u.component.Name, failures, exit)
		}
		select {
		case <-u.stopping:
			return
		case <-u.hurry:
		case <-time.After(pause):
		}
		u.mu.Lock()
		u.restarts++
		u.mu.Unlock()
	}
}

// wasRequested reports, once, whether restart ended the last run. Such an end is no failure, and
// the next start need not wait.
func (u *unit) wasRequested() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	was := u.requested
	u.requested = false
	return was
}

func (u *unit) note(p *proc.Process, exit string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.process = p
	if p != nil {
		u.started = time.Now()
	}
	if exit != "" {
		u.lastExit = exit
	}
}

func (u *unit) signal(s syscall.Signal) error {
	u.mu.Lock()
	p := u.process
	u.mu.Unlock()
	if p == nil {
		return nil
	}
	return p.Signal(s)
}

// restart ends the process or, where none runs, the pause before the next start.
func (u *unit) restart(s syscall.Signal) error {
	u.mu.Lock()
	running := u.process != nil
	u.requested = u.requested || running
	u.mu.Unlock()
	if running {
		return u.signal(s)
	}
	select {
	case u.hurry <- struct{}{}:
	default:
	}
	return nil
}

// stop ends the component for good: by SIGTERM, and by SIGKILL when the grace is over.
func (u *unit) stop(grace time.Duration) error {
	u.stopOnce.Do(func() { close(u.stopping) })
	err := u.signal(syscall.SIGTERM)
	select {
	case <-u.ended:
		return err
	case <-time.After(grace):
	}
	err = errors.Join(err, u.signal(syscall.SIGKILL))
	<-u.ended
	return err
}

func (u *unit) status() control.Component {
	u.mu.Lock()
	defer u.mu.Unlock()
	c := control.Component{Name: u.component.Name, State: control.Waiting, Restarts: u.restarts, LastExit: u.lastExit, Metrics: u.component.Metrics}
	if u.process != nil {
		c.State, c.Started, c.PID = control.Running, u.started, u.hostPID(u.process.Handle)
	}
	return c
}

// launcher starts components as processes.
type launcher struct {
	layout layout.Layout
	reaper *proc.Reaper
	netns  *os.File // of the node; nil without one
	env    []string
	starts sync.RWMutex // locked while the node is frozen, and read-locked by each start
}

// launch starts a component once and appends its output to its log. On a frozen node it waits for
// the thaw.
func (l *launcher) launch(c component.Component) (*proc.Process, error) {
	l.starts.RLock()
	defer l.starts.RUnlock()
	out, err := openLog(l.layout.Log(c.Name))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	spec := proc.Spec{Path: c.Program, Args: c.Args, Env: slices.Concat(l.env, c.Env), Out: out}
	if c.OnNode {
		spec.NetNS = l.netns
	}
	return l.reaper.Start(spec)
}

func openLog(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("creating the log directory: %w", err)
	}
	if info, err := os.Stat(path); err == nil && info.Size() > logLimit {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("rotating the old log: %w", err)
		}
	}
	out, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, fmt.Errorf("opening a log: %w", err)
	}
	return out, nil
}
