package layout

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

// LockCluster keeps two commands from changing the same cluster at once, until the caller calls
// unlock.
func (l Layout) LockCluster() (unlock func(), err error) { return lockNamed(l.Name) }

// LockShared keeps two commands from changing at once what all clusters share. No cluster's name
// begins with an underscore, so the names of the locks never clash.
func LockShared(what string) (unlock func(), err error) { return lockNamed("_" + what) }

func lockNamed(name string) (unlock func(), err error) {
	if err := os.MkdirAll(runRoot, 0o755); err != nil {
		return nil, fmt.Errorf("creating %s: %w", runRoot, err)
	}
	return lock(filepath.Join(runRoot, "."+name+".lock"))
}

// lock takes a lock file and holds it until the returned function is called, which removes the
// file. The kernel releases the lock with the process; a leftover file is used again.
func lock(path string) (unlock func(), err error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("opening the lock: %w", err)
		}
		if err := flock(f); err != nil {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		if isThere(f) {
			return sync.OnceFunc(func() {
				if isThere(f) {
					os.Remove(path)
				}
				f.Close()
			}), nil
		}
		f.Close() // the previous holder has removed it
	}
}

func flock(f *os.File) error {
	for {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// isThere reports whether a file is still the one at its path.
func isThere(f *os.File) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(f.Name())
	return err == nil && os.SameFile(mine, there)
}

// Allot gives the cluster its network and ports, and keeps those of the earlier state that are
// still free. It records them in the state file, and in the run directory, where other clusters
// read them.
func (l Layout) Allot(earlier State, options Options, networks []netip.Prefix) (State, error) {
	unlock, err := LockShared("allot")
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
		return State{}, fmt.Errorf("creating %s: %w", l.Run, err)
	}
	if err := os.MkdirAll(l.Data, 0o711); err != nil {
		return State{}, fmt.Errorf("creating %s: %w", l.Data, err)
	}
	if err := WriteFile(l.PointerFile(), []byte(l.Data), 0o644); err != nil {
		return State{}, err
	}
	return s, WriteState(l.StateFile(), s)
}

// takenByOthers gathers the ports and blocks recorded by the other clusters that have a run
// directory.
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

// Names lists the clusters that have a run directory, running or crashed.
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

// free reports whether nothing on this machine listens on the port, on any address.
func free(port int) bool {
	l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}
