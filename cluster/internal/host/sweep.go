package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"tarn.dev/tarn/cluster/internal/layout"
)

// sweepLimit is how long the kernel may take to release a cluster's cgroups. Usually it takes a few
// milliseconds.
const sweepLimit = 20 * time.Second

// Sweep removes everything a cluster without processes left on the machine, except its data.
func Sweep(l layout.Layout, loopsBefore []string) error {
	if err := release(l, loopsBefore); err != nil {
		return err
	}
	return RemoveTree(l.Run)
}

// Remove removes everything a cluster without processes left on the machine, and its data. It may
// be killed at any point; `down` or the next `up` then repeats it. The record of where the data is
// therefore outlives the data, and the file that marks the data as ours is deleted last.
func Remove(l layout.Layout, s layout.State) error {
	if err := release(l, s.Loops); err != nil {
		return err
	}
	if err := removeData(l, s); err != nil {
		return err
	}
	return RemoveTree(l.Run)
}

// SweepNode removes what a further node without processes left, except its data. first is the
// network of the first node.
func SweepNode(l layout.Layout, first *os.File) error {
	if err := RemoveFurther(first, l.Node); err != nil {
		return err
	}
	if err := RemoveCgroups(l.CgroupName(), time.Now().Add(sweepLimit)); err != nil {
		return err
	}
	if err := detachLoopsBelow(l.VarTarn()); err != nil {
		return err
	}
	return RemoveTree(l.Run)
}

func removeData(l layout.Layout, s layout.State) error {
	entries, err := os.ReadDir(l.Data)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the data directory: %w", err)
	}
	s.Name, s.Data, s.Doomed = l.Name, l.Data, true
	if err := layout.WriteState(l.StateFile(), s); err != nil {
		return err
	}
	for _, e := range entries {
		if path := filepath.Join(l.Data, e.Name()); path != l.StateFile() {
			if err := RemoveTree(path); err != nil {
				return err
			}
		}
	}
	return RemoveTree(l.Data)
}

// release releases the kernel's resources of a cluster.
func release(l layout.Layout, loopsBefore []string) error {
	if err := RemoveLink(l); err != nil {
		return err
	}
	for _, name := range []string{l.CgroupName(), l.NodesCgroup()} {
		if err := RemoveCgroups(name, time.Now().Add(sweepLimit)); err != nil {
			return err
		}
	}
	if err := detachLoopsBelow(l.Nodes()); err != nil {
		return err
	}
	return DetachLoops(l.Data, loopsBefore)
}

// SweepShared removes what all clusters share once the last of them is removed.
func SweepShared(l layout.Layout) error {
	unlock, err := layout.LockShared("allot")
	if err != nil {
		return err
	}
	defer unlock()
	left, err := layout.Names()
	if err != nil || len(left) > 0 {
		return err
	}
	// Only an empty directory is removed. A directory that the administrator made for our data may
	// be a mount.
	if err := os.Remove(filepath.Dir(l.Data)); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EBUSY) {
		return err
	}
	settings, err := machineSettings()
	if err != nil {
		return err
	}
	if err := settings.restore(); err != nil {
		return err
	}
	return RemoveMountPoints()
}
