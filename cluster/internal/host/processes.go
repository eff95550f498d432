package host

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"tarn.dev/tarn/cluster/internal/layout"
)

// Handle is a kernel reference to a process. Unlike a number, it never comes to mean another
// process.
type Handle struct {
	PID int
	fd  *os.File
}

// Supervisor finds the living supervisor of a cluster, nil if there is none. The pid file gives the
// number, and the environment marker confirms the process. Without a file, as after a crash at the
// wrong moment, it checks every process.
func Supervisor(l layout.Layout) (*Handle, error) {
	if raw, err := os.ReadFile(l.PIDFile()); err == nil {
		if pid, err := strconv.Atoi(strings.TrimSpace(string(raw))); err == nil {
			if h, err := open(pid, l); h != nil || err != nil {
				return h, err
			}
		}
	}
	all, err := pids()
	if err != nil {
		return nil, err
	}
	for _, name := range all {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if h, err := open(pid, l); h != nil || err != nil {
			return h, err
		}
	}
	return nil, nil
}

// open returns a handle on the process if it is the cluster's supervisor. The supervisor carries
// the cluster's marker and is the first of its process namespace.
func open(pid int, l layout.Layout) (*Handle, error) {
	if !marked(pid, l) || !first(pid) {
		return nil, nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening process %d: %w", pid, err)
	}
	h := &Handle{PID: pid, fd: os.NewFile(uintptr(fd), "pidfd")}
	if !marked(pid, l) { // it may have ended, and its number been used again, between the two
		h.fd.Close()
		return nil, nil
	}
	return h, nil
}

func marked(pid int, l layout.Layout) bool {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	return strings.Contains("\x00"+string(environ), "\x00"+l.Marker()+"\x00")
}

// first reports whether a process is number 1 in a process namespace below ours.
func first(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if numbers, found := strings.CutPrefix(line, "NSpid:"); found {
			fields := strings.Fields(numbers)
			return len(fields) > 1 && fields[len(fields)-1] == "1"
		}
	}
	return false
}

// Signal sends a signal. A process that has ended already is no error.
func (h *Handle) Signal(s unix.Signal) error {
	if err := unix.PidfdSendSignal(int(h.fd.Fd()), s, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("sending %v to process %d: %w", s, h.PID, err)
	}
	return nil
}

// Wait waits until the process has ended. For a supervisor, every process of its cluster has ended
// then too: the kernel reaps the first process of a namespace last.
func (h *Handle) Wait(limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("process %d has not ended within %s: look for processes in uninterruptible sleep (ps -eo pid,stat,cmd | grep ' D')", h.PID, limit)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(h.fd.Fd()), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("waiting for process %d: %w", h.PID, err)
		}
		if n > 0 {
			return nil
		}
	}
}

// Close releases the handle.
func (h *Handle) Close() { h.fd.Close() }

func pids() ([]string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var found []string
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			found = append(found, e.Name())
		}
	}
	return found, nil
}

// HostPIDs translates process numbers for a program that has its own process namespace. It keeps
// the host's /proc open from before the program replaced it.
type HostPIDs struct{ proc *os.File }

// OpenHostPIDs must be called before Isolate.
func OpenHostPIDs() (*HostPIDs, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("opening the host's /proc: %w", err)
	}
	return &HostPIDs{proc}, nil
}

// Self is the host's number of the calling process.
func (h *HostPIDs) Self() (int, error) {
	buffer := make([]byte, 32)
	n, err := unix.Readlinkat(int(h.proc.Fd()), "self", buffer)
	if err != nil {
		return 0, fmt.Errorf("reading the host's PID of this process: %w", err)
	}
	return strconv.Atoi(string(buffer[:n]))
}

// Of is the host's number of the process behind a pidfd of the caller; 0 if it has ended.
func (h *HostPIDs) Of(pidfd *os.File) int {
	fd, err := unix.Openat(int(h.proc.Fd()), fmt.Sprintf("self/fdinfo/%d", pidfd.Fd()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	f := os.NewFile(uintptr(fd), "fdinfo")
	defer f.Close()
	text := make([]byte, 4096)
	n, err := f.Read(text)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text[:n])) {
		if number, found := strings.CutPrefix(line, "Pid:"); found {
			pid, err := strconv.Atoi(strings.TrimSpace(number))
			if err != nil || pid < 0 {
				return 0
			}
			return pid
		}
	}
	return 0
}
