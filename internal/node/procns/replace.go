package procns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"tarn.dev/tarn/internal/node/hangguard"
	"tarn.dev/tarn/internal/node/mounts"
)

// ErrUserNamespace says that a container has its own user namespace. The files of its mounts are
// mapped to its users only when it starts.
var ErrUserNamespace = errors.New("the container has its own user namespace, whose mounts cannot be replaced")

// errEnded says that a container's process has ended. Another process may have its number.
var errEnded = errors.New("the container has ended")

// Replace mounts source in the container in place of old, a mount of its table, and read-only if
// old is. Mounts below old are removed with it. A container that has ended is no error.
//
// It is an error if the container has moved the directories above the mount since the table was
// read. It is hangguard.ErrNoAnswer if a server on the path to the mount does not answer within
// limit, as a volume may be mounted below another. Nothing is changed in both cases.
func (c Container) Replace(asks *hangguard.Asker, limit time.Duration, old mounts.Mount, source *os.File) error {
	same, err := sameUsers(c.Process)
	if err != nil && vanished(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !same {
		return ErrUserNamespace
	}
	tree, err := mounts.Clone(source, old.ReadOnly, old.Receives)
	if err != nil {
		return err
	}
	defer func() { _ = tree.Close() }()
	// Open this outside: in the container, /proc is the container's.
	files, err := os.Open(mounts.OwnFiles)
	if err != nil {
		return err
	}
	defer func() { _ = files.Close() }()
	place, err := hangguard.Ask(asks, c.wayTo(old), limit, func() (*os.File, error) { return c.open(old) }, func(late *os.File, err error) {
		if err == nil {
			_ = late.Close()
		}
	})
	if err == nil {
		defer func() { _ = place.Close() }()
		err = c.within(func() error { return put(tree, place, files) })
	}
	switch {
	case errors.Is(err, errEnded):
		return nil
	case errors.Is(err, hangguard.ErrNoAnswer):
		asks.Forget(c.wayTo(old)) // its duration does not matter
		return fmt.Errorf("the server of a file system on the path to %s does not answer: %w", old.Point, err)
	}
	return err
}

// wayTo is the key of questions about the path to a mount of the container.
func (c Container) wayTo(m mounts.Mount) string { return fmt.Sprint(c.Namespace, " ", m.ID) }

// open opens this mount of the container and no other, even if the container's paths change
// meanwhile. The servers of the file systems above it are asked for the names on the path.
func (c Container) open(old mounts.Mount) (place *os.File, err error) {
	err = c.within(func() error {
		place, err = old.Open()
		return err
	})
	return place, err
}

// put puts a tree in place of an open mount, without resolving a path. files is mounts.OwnFiles.
func put(tree, place, files *os.File) error {
	if err := unix.Fchdir(int(files.Fd())); err != nil { // the thread's own, and ends with it
		return fmt.Errorf("change directory to %s: %w", files.Name(), err)
	}
	return mounts.Put(tree, place, ".")
}

// within calls do in the container's mount namespace, on its own thread. The error is errEnded if
// the namespace no longer exists.
func (c Container) within(do func() error) error {
	space, err := os.Open(c.Process + "/ns/mnt")
	if err != nil && vanished(err) {
		return errEnded
	}
	if err != nil {
		return err
	}
	defer func() { _ = space.Close() }()
	var stat unix.Stat_t
	if err := unix.Fstat(int(space.Fd()), &stat); err != nil {
		return fmt.Errorf("read the container's mounts: %w", err)
	}
	if stat.Ino != c.Namespace {
		return errEnded
	}
	if err := within(space, do); err != nil {
		return fmt.Errorf("in the container: %w", err)
	}
	return nil
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

// within calls do on a new thread that enters the mount namespace and then ends. The process's
// first thread never enters, because /proc/self shows that thread's mounts.
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
