package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Loops lists the attached loop devices, each with its file. "loop0 254:1 4711" is device 254:1,
// inode 4711.
func Loops() ([]string, error) {
	names, err := attached()
	if err != nil {
		return nil, err
	}
	var loops []string
	for _, name := range names {
		f, info, err := openLoop(name)
		if err != nil {
			return nil, err
		}
		if f != nil {
			f.Close()
			loops = append(loops, loopID(name, info))
		}
	}
	return loops, nil
}

func attached() ([]string, error) {
	found, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, fmt.Errorf("listing loop devices: %w", err)
	}
	names := make([]string, 0, len(found))
	for _, path := range found {
		names = append(names, filepath.Base(filepath.Dir(filepath.Dir(path))))
	}
	return names, nil
}

// openLoop returns no file if the device has been detached meanwhile.
func openLoop(name string) (*os.File, *unix.LoopInfo64, error) {
	f, err := os.OpenFile("/dev/"+name, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("opening /dev/%s: %w", name, err)
	}
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err == nil {
		return f, info, nil
	}
	f.Close()
	if errors.Is(err, unix.ENXIO) {
		return nil, nil, nil
	}
	return nil, nil, fmt.Errorf("querying the backing file of /dev/%s: %w", name, err)
}

func loopDevice(info *unix.LoopInfo64) string {
	return fmt.Sprintf("%d:%d", unix.Major(info.Device), unix.Minor(info.Device))
}

// loopID distinguishes an attachment from a later one of the same device.
func loopID(name string, info *unix.LoopInfo64) string {
	return fmt.Sprintf("%s %s %d", name, loopDevice(info), info.Inode)
}

// DetachLoops detaches the loop devices a dead cluster left. Those are the devices whose file lies
// in its data directory, or on a file system that no living process has mounted (the root of an
// ended container). It never detaches a device in before, which lists those attached when the
// cluster first started.
func DetachLoops(data string, before []string) error {
	names, err := attached()
	if err != nil || len(names) == 0 {
		return err
	}
	// Other processes may attach devices meanwhile, on file systems that the gathered mounts do not
	// include.
	found, err := Loops()
	if err != nil {
		return err
	}
	mounted, err := mountedDevices()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := detachLoop(name, data, before, found, mounted); err != nil {
			return err
		}
	}
	return nil
}

func detachLoop(name, data string, before, found []string, mounted map[string]bool) error {
	f, info, err := openLoop(name)
	if err != nil || f == nil {
		return err
	}
	defer f.Close()
	if id := loopID(name, info); slices.Contains(before, id) || !slices.Contains(found, id) {
		return nil
	}
	backing, err := os.ReadFile("/sys/block/" + name + "/loop/backing_file")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("querying the backing file of /dev/%s: %w", name, err)
	}
	orphan := unix.Major(info.Device) == 0 && !mounted[loopDevice(info)] // major 0: overlay, tmpfs and the like
	if !orphan && !strings.HasPrefix(string(backing), data+"/") {
		return nil
	}
	if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("detaching /dev/%s from %s: %w", name, strings.TrimSpace(string(backing)), err)
	}
	return nil
}

// detachLoopsBelow detaches the loop devices of the files in a directory that only further nodes use,
// when those have ended. It compares inodes, because the kernel knows a file only by its path in the
// container that attached it.
func detachLoopsBelow(dir string) error {
	names, err := attached()
	if err != nil || len(names) == 0 {
		return err
	}
	files := map[string]bool{}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		var s unix.Stat_t
		if err := unix.Lstat(path, &s); err != nil {
			return fmt.Errorf("reading %s: %w", path, err)
		}
		files[fmt.Sprintf("%d:%d %d", unix.Major(s.Dev), unix.Minor(s.Dev), s.Ino)] = true
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("listing the files of loop devices in %s: %w", dir, err)
	}
	for _, name := range names {
		f, info, err := openLoop(name)
		if err != nil {
			return err
		}
		if f == nil {
			continue
		}
		if files[fmt.Sprintf("%s %d", loopDevice(info), info.Inode)] {
			err = unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0)
		}
		f.Close()
		if err != nil && !errors.Is(err, unix.ENXIO) {
			return fmt.Errorf("detaching /dev/%s of a node that has ended: %w", name, err)
		}
	}
	return nil
}

// mountedDevices gathers the devices of every file system any process has mounted.
func mountedDevices() (map[string]bool, error) {
	devices := map[string]bool{}
	seen := map[string]bool{} // mount namespaces
	pids, err := pids()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		ns, err := os.Readlink("/proc/" + pid + "/ns/mnt")
		if err != nil || seen[ns] {
			continue // ended meanwhile, or the same mounts again
		}
		mounts, err := ReadMounts(pid)
		switch {
		case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ESRCH):
			continue // ended meanwhile
		case err != nil:
			return nil, err // a device could look unused that is mounted
		}
		seen[ns] = true
		for _, m := range mounts {
			devices[fmt.Sprintf("%d:%d", m.Major, m.Minor)] = true
		}
	}
	return devices, nil
}
