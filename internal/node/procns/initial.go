package procns

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// InitialProcess is the first process of a container. When it ends, the container ends.
type InitialProcess struct {
	// Pod is the UID of the container's pod.
	Pod types.UID
	// Container is its ID in the container runtime.
	Container string

	file *os.File
}

// InitialProcesses gives the first processes of the pods' containers. It checks every process of
// the machine that /proc shows. The caller must close each. Containers without their own process
// namespace are left out: nothing shows which of their processes is the first. With an error, the
// processes found are still returned.
func InitialProcesses(pods []types.UID) ([]*InitialProcess, error) {
	if len(pods) == 0 {
		return nil, nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []*InitialProcess
	var failed []error
	names := cgroupsOf(pods)
	for _, process := range processes(entries) {
		if pod, container, err := names.containerOf(process); err != nil || pod == "" || container == "" {
			continue
		}
		p, err := names.open(process)
		switch {
		case err == nil:
			found = append(found, p)
		case !vanished(err) && !errors.Is(err, errNotInitial):
			failed = append(failed, fmt.Errorf("open process %s: %w", process, err))
		}
	}
	return found, errors.Join(failed...)
}

var errNotInitial = errors.New("not the first process of a container")

// open opens a process that is the first of a process namespace directly below that of /proc.
func (c cgroups) open(process string) (*InitialProcess, error) {
	number, err := strconv.Atoi(strings.TrimPrefix(process, "/proc/"))
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(number, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	p := &InitialProcess{file: os.NewFile(uintptr(fd), process)}
	var numbers []string
	p.Pod, p.Container, err = c.containerOf(process)
	if err == nil {
		numbers, err = numbersOf(process)
	}
	switch {
	case err != nil:
	case exited(fd): // its number may belong to another process by now
		err = unix.ESRCH
	case p.Container == "" || len(numbers) != 2 || numbers[1] != "1":
		err = errNotInitial
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Wait waits until the process has ended and gives its exit code, in the form of a shell. known
// says whether the kernel reports the code (since Linux 6.15). Wait fails once f is closed.
func (f *InitialProcess) Wait() (code int32, known bool, err error) {
	raw, err := f.file.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	err = raw.Read(func(fd uintptr) (done bool) {
		if !exited(int(fd)) {
			return false
		}
		code, known, done = exitCode(int(fd))
		return done
	})
	return code, known, err
}

// Close ends a Wait.
func (f *InitialProcess) Close() { _ = f.file.Close() }

// exited says whether a process has ended, even if its parent has not collected the exit code yet.
func exited(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return n > 0 && err == nil
}

// pidfdInfo is struct pidfd_info of linux/pidfd.h, as it was in Linux 6.15.
type pidfdInfo struct {
	mask     uint64
	cgroupid uint64
	_        [11]uint32
	exitCode int32
}

const (
	pidfdGetInfo  = 0xc040ff0b // _IOWR(0xff, 11, struct pidfd_info)
	pidfdInfoExit = 1 << 3
)

// exitCode reads the exit code of an ended process. The kernel gives it once the parent has waited
// for the process, which is another event. Until then done is false.
func exitCode(fd int) (code int32, known, done bool) {
	info := pidfdInfo{mask: pidfdInfoExit}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	switch {
	case errno != 0: // not of this kernel, or it keeps no codes
		return 0, false, true
	case info.mask&pidfdInfoExit == 0:
		return 0, false, false
	}
	status := unix.WaitStatus(info.exitCode)
	if status.Signaled() {
		return 128 + int32(status.Signal()), true, true
	}
	return int32(status.ExitStatus()), true, true
}

// numbersOf are the numbers of a process in all its process namespaces, that of /proc first.
func numbersOf(process string) ([]string, error) {
	data, err := os.ReadFile(process + "/status")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		if list, ok := strings.CutPrefix(line, "NSpid:"); ok {
			return strings.Fields(list), nil
		}
	}
	return nil, errNotInitial
}
