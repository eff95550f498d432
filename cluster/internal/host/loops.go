package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Loops lists the loop devices that are attached to a file, as their names in /sys/block.
func Loops() ([]string, error) {
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

// DetachLoops frees the loop devices a dead cluster left attached: those whose file lies in its data folder, and those whose file
// lies on a file system that no living process has mounted any more (the root of a container that is gone). Devices in
// before, attached when the cluster first started, are never touched.
func DetachLoops(data string, before []string) error {
	names, err := Loops()
	if err != nil || len(names) == 0 {
		return err
	}
	mounted, err := mountedDevices()
	if err != nil {
		return err
	}
	for _, name := range names {
		if slices.Contains(before, name) {
			continue
		}
		if err := detachLoop(name, data, mounted); err != nil {
			return err
		}
	}
	return nil
}

func detachLoop(name, data string, mounted map[string]bool) error {
	f, err := os.OpenFile("/dev/"+name, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("opening /dev/%s: %w", name, err)
	}
	defer f.Close()
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if errors.Is(err, unix.ENXIO) {
		return nil // detached meanwhile
	}
	if err != nil {
		return fmt.Errorf("asking what /dev/%s is attached to: %w", name, err)
	}
	backing, err := os.ReadFile("/sys/block/" + name + "/loop/backing_file")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("asking what /dev/%s is attached to: %w", name, err)
	}
	device := fmt.Sprintf("%d:%d", unix.Major(info.Device), unix.Minor(info.Device))
	orphan := unix.Major(info.Device) == 0 && !mounted[device] // major 0: overlay, tmpfs and the like
	if !orphan && !strings.HasPrefix(string(backing), data+"/") {
		return nil
	}
	if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("detaching /dev/%s from %s: %w", name, strings.TrimSpace(string(backing)), err)
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
		if err != nil {
			continue
		}
		seen[ns] = true
		for _, m := range mounts {
			devices[m.Device] = true
		}
	}
	return devices, nil
}
