package inside

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"tarn.dev/tarn/internal/node/mounts"
)

// ErrUserNamespace says that a container has users of its own, to whom the files of
// its mounts are mapped as it is started.
var ErrUserNamespace = errors.New("the container has a user namespace of its own, whose mounts cannot be exchanged")

// Replace mounts what source is in the container, in the place of old, one of the
// mounts of its table, read-only as that one is. What was mounted below it goes with
// it. A container that has ended is no error; one that has moved the folders above the
// mount since the table was read is, and nothing is done to it.
func (c Container) Replace(old mounts.Mount, source *os.File) error {
	same, err := sameUsers(c.Process)
	if err != nil {
		return ended(err)
	}
	if !same {
		return ErrUserNamespace
	}
	space, err := os.Open(c.Process + "/ns/mnt")
	if err != nil {
		return ended(err)
	}
	defer func() { _ = space.Close() }()
	var stat unix.Stat_t
	if err := unix.Fstat(int(space.Fd()), &stat); err != nil {
		return fmt.Errorf("look at the container's mounts: %w", err)
	}
	if stat.Ino != c.Namespace {
		return nil // the process has ended, and another one has its number
	}
	tree, err := mounts.Clone(source, old.ReadOnly, old.Receives)
	if err != nil {
		return err
	}
	defer func() { _ = tree.Close() }()
	// Opened here: /proc in the container is the container's.
	files, err := os.Open(mounts.OwnFiles)
	if err != nil {
		return err
	}
	defer func() { _ = files.Close() }()
	if err := within(space, func() error { return put(tree, old, files) }); err != nil {
		return fmt.Errorf("in the container: %w", err)
	}
	return nil
}

// put puts a tree in the place of one mount of the container's and of no other, wherever
// the container's paths lead meanwhile. files is mounts.OwnFiles.
func put(tree *os.File, old mounts.Mount, files *os.File) error {
	place, err := old.Open()
	if err != nil {
		return err
	}
	defer func() { _ = place.Close() }()
	if err := unix.Fchdir(int(files.Fd())); err != nil { // the thread's own, and ends with it
		return fmt.Errorf("go to %s: %w", files.Name(), err)
	}
	return mounts.Put(tree, place, ".")
}

func ended(err error) error {
	if vanished(err) {
		return nil
	}
	return err
}

func sameUsers(process string) (bool, error) {
	var own, other unix.Stat_t
	if err := unix.Stat("/proc/self/ns/user", &own); err != nil {
		return false, err
	}
	if err := unix.Stat(process+"/ns/user", &other); err != nil {
		return false, err
	}
	return own.Ino == other.Ino, nil
}

// within calls do on a thread of its own that has entered the mount namespace and
// ends afterwards. The process's first thread never enters: /proc/self shows the
// mounts of that one.
func within(space *os.File, do func() error) error {
	done := make(chan error, 1)
	var enter func()
	enter = func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			inner := make(chan struct{})
			go func() { defer close(inner); enter() }()
			<-inner // held until then, so that the other one gets another thread
			runtime.UnlockOSThread()
			return
		}
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("unshare: %w", err)
			}
			if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("setns: %w", err)
			}
			return do()
		}()
	}
	go enter()
	return <-done
}
