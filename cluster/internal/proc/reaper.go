// Package proc starts processes and learns when they end, in a program that is process 1 of its own
// process namespace. There, every orphan of the cluster (such as a container's shim) becomes our
// child, so one place must wait for all children. os/exec waits for one child each, and would lose
// its child to that place. Nothing else in the program may wait.
//
// It must not know which process is which, nor decide about restarts.
package proc

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Spec is a process to start.
type Spec struct {
	Path  string
	Args  []string // without the program's name
	Env   []string
	Out   *os.File // standard output and error; standard input is empty
	NetNS *os.File // the network namespace to start in; nil means the caller's
	// Mounts is the mount namespace to start in, together with NetNS; nil means the caller's.
	Mounts *os.File
	// New are the namespaces to make for the process, as clone(2) flags.
	New uintptr
}

// Process is a running or ended child.
type Process struct {
	PID    int      // as this program sees it
	Handle *os.File // the kernel's handle on the process, which never means another one
	done   chan struct{}
	status syscall.WaitStatus
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit describes how the process ended. Call it after Done.
func (p *Process) Exit() string {
	switch {
	case p.status.Signaled():
		return "killed by " + p.status.Signal().String()
	default:
		return fmt.Sprintf("exit status %d", p.status.ExitStatus())
	}
}

// Succeeded reports whether the process ended with status 0. Call it after Done.
func (p *Process) Succeeded() bool { return p.status.Exited() && p.status.ExitStatus() == 0 }

// Signal sends a signal to the process. It is no error if the process has ended.
func (p *Process) Signal(s syscall.Signal) error {
	err := unix.PidfdSendSignal(int(p.Handle.Fd()), s, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sending %v to process %d: %w", s, p.PID, err)
	}
	return nil
}

// Reaper waits for all children of this program.
type Reaper struct {
	mu       sync.Mutex
	children map[int]*Process
}

// NewReaper starts waiting. A program may have only one.
func NewReaper() *Reaper {
	r := &Reaper{children: map[int]*Process{}}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		for range ended {
			r.reap()
		}
	}()
	return r
}

// Start starts a process. It holds the reaper's lock, so that a child that ends at once is not
// reaped before it is recorded.
func (r *Reaper) Start(s Spec) (*Process, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", s.Path, err)
	}
	defer null.Close()
	pidfd := -1
	attr := &syscall.ProcAttr{
		Env:   s.Env,
		Files: []uintptr{null.Fd(), s.Out.Fd(), s.Out.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd, Cloneflags: s.New},
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	pid := 0
	start := func() (err error) {
		pid, err = syscall.ForkExec(s.Path, append([]string{s.Path}, s.Args...), attr)
		return err
	}
	switch {
	case s.Mounts != nil:
		err = inNamespaces(s.Mounts, s.NetNS, start)
	case s.NetNS != nil:
		err = InNetNS(s.NetNS, start)
	default:
		err = start()
	}
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", s.Path, err)
	}
	p := &Process{PID: pid, Handle: os.NewFile(uintptr(pidfd), "pidfd"), done: make(chan struct{})}
	r.children[pid] = p
	return p, nil
}

// reap collects every child that has ended. One signal may stand for several children.
func (r *Reaper) reap() {
	for {
		var status syscall.WaitStatus
		r.mu.Lock()
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			r.mu.Unlock()
			continue
		}
		if err != nil || pid <= 0 {
			r.mu.Unlock()
			return
		}
		p := r.children[pid]
		delete(r.children, pid)
		r.mu.Unlock()
		if p != nil {
			p.status = status
			close(p.done)
		}
	}
}

// InNetNS runs do with the calling thread in another network namespace. A process that do starts,
// or a socket it opens, belongs to that namespace. If the thread cannot be switched back, it ends
// with its goroutine.
func InNetNS(ns *os.File, do func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			result <- fmt.Errorf("finding the way back to the host's network: %w", err)
			return
		}
		defer home.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("entering the node's network: %w", err)
			return
		}
		err = do()
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back == nil {
			runtime.UnlockOSThread() // else the thread ends with this goroutine
		}
		result <- err
	}()
	return <-result
}

// inNamespaces runs do on a thread in other mount and network namespaces. The thread ends
// afterwards, so there is no way back to fail.
func inNamespaces(mounts, network *os.File, do func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Unshare(unix.CLONE_FS) // else the kernel moves no single thread
		}
		if err == nil {
			err = unix.Setns(int(mounts.Fd()), unix.CLONE_NEWNS)
		}
		if err != nil {
			result <- fmt.Errorf("entering the namespaces of a node: %w", err)
			return
		}
		result <- do()
	}()
	return <-result
}
