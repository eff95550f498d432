package host

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"tarn.dev/tarn/cluster/internal/layout"
)

// sweepLimit is how long the kernel is given to bury a cluster's cgroups; the usual time is a few milliseconds.
const sweepLimit = 20 * time.Second

// Sweep removes everything a cluster without processes left on the machine, except its data.
func Sweep(l layout.Layout, loopsBefore []string) error {
	if err := RemoveLink(l); err != nil {
		return err
	}
	if err := RemoveCgroups(l.CgroupName(), time.Now().Add(sweepLimit)); err != nil {
		return err
	}
	if err := DetachLoops(l.Data, loopsBefore); err != nil {
		return err
	}
	return RemoveTree(l.Run)
}

// SweepShared removes what all clusters share once the last of them has gone.
func SweepShared(l layout.Layout) error {
	unlock, err := layout.Lock(".allot.lock")
	if err != nil {
		return err
	}
	defer unlock()
	left, err := layout.Names()
	if err != nil || len(left) > 0 {
		return err
	}
	// Only an empty folder goes; one that the administrator made for our data may be a mount.
	if err := os.Remove(filepath.Dir(l.Data)); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EBUSY) {
		return err
	}
	if err := restoreInotify(); err != nil {
		return err
	}
	return RemoveMountPoints()
}
