package layout

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Lock takes a lock file below the run root and holds it until the returned function is called, which removes the file. The
// kernel drops the lock with the process.
func Lock(file string) (unlock func(), err error) {
	if err := os.MkdirAll(runRoot, 0o755); err != nil {
		return nil, fmt.Errorf("making %s: %w", runRoot, err)
	}
	return lock(filepath.Join(runRoot, file))
}

func lock(path string) (unlock func(), err error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("opening the lock: %w", err)
		}
		held, err := locked(f)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		if held {
			return func() {
				os.Remove(path) // ours, as nobody makes another while it is there; a file that stays is only used again
				f.Close()
			}, nil
		}
		f.Close()
	}
}

// locked waits for a lock, and says whether its file is still the one that others find: who held it before has removed it.
func locked(f *os.File) (bool, error) {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EINTR) {
			return false, err
		}
	}
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(f.Name())
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(mine, there), err
}

// LockCluster keeps two commands from changing the same cluster at once.
func (l Layout) LockCluster() (unlock func(), err error) { return Lock("." + l.Name + ".lock") }

// Allot gives the cluster its network and ports, keeping what the earlier state had wherever that is still free, and records
// them in the state file and in the run folder, where other clusters look.
func (l Layout) Allot(earlier State, options Options, networks []netip.Prefix) (State, error) {
	unlock, err := Lock(".allot.lock")
	if err != nil {
		return State{}, err
	}
	defer unlock()
	ports, blocksTaken, err := l.takenByOthers()
	if err != nil {
		return State{}, err
	}
	s := earlier
	s.Name, s.Data, s.Options = l.Name, l.Data, options
	if s.Ports, err = ChoosePorts(earlier.Ports, os.Getpid()*16, ports, free); err != nil {
		return State{}, err
	}
	if options.HasNode() {
		kept := earlier.Ports != nil && earlier.Options.HasNode() && !blocksTaken[earlier.Block] && !overlaps(NetOf(earlier.Block).Block, networks)
		if !kept {
			if s.Block, err = ChooseBlock(blocksTaken, networks); err != nil {
				return State{}, err
			}
		}
	}
	if err := os.MkdirAll(l.Run, 0o755); err != nil {
		return State{}, fmt.Errorf("making %s: %w", l.Run, err)
	}
	if err := os.MkdirAll(l.Data, 0o711); err != nil {
		return State{}, fmt.Errorf("making %s: %w", l.Data, err)
	}
	if err := WriteFile(l.PointerFile(), []byte(l.Data), 0o644); err != nil {
		return State{}, err
	}
	return s, WriteState(l.StateFile(), s)
}

// takenByOthers gathers what the other clusters that have a run folder remember.
func (l Layout) takenByOthers() (ports, blocks map[int]bool, err error) {
	ports, blocks = map[int]bool{}, map[int]bool{}
	others, err := Names()
	if err != nil {
		return nil, nil, err
	}
	for _, name := range others {
		if name == l.Name {
			continue
		}
		other, err := Find(name, "")
		if err != nil {
			return nil, nil, err
		}
		s, err := ReadState(other.StateFile())
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		for _, port := range s.Ports {
			ports[port] = true
		}
		if s.Options.HasNode() {
			blocks[s.Block] = true
		}
	}
	return ports, blocks, nil
}

// Names lists the clusters that have a run folder, running or crashed.
func Names() ([]string, error) {
	found, err := filepath.Glob(filepath.Join(runRoot, "*", "data-dir"))
	if err != nil {
		return nil, fmt.Errorf("listing clusters: %w", err)
	}
	names := make([]string, 0, len(found))
	for _, path := range found {
		names = append(names, filepath.Base(filepath.Dir(path)))
	}
	return names, nil
}

// free says whether nothing on this machine listens on the port, on any address.
func free(port int) bool {
	l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}
