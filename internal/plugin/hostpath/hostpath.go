// Package hostpath is provisioner tarn.dev/host-path. Its volumes are directories on one node,
// below a root that the administrator sets.
//
// It touches three things only: the entries of its root that have the name of a volume, their
// content on the same mount, and the marker that identifies the root. It follows no symbolic link.
// The only API object it knows is the source of a volume.
package hostpath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/scrub"
)

// Provisioner is the name of the plugin in classes.
const Provisioner = "tarn.dev/host-path"

const (
	// rootMode is the mode of a root that New creates: only user root may walk to the volumes. The
	// kubelet bind-mounts each volume into its pods, so pods need no way through the root.
	rootMode = 0o700
	// volumeMode is the mode of an emptyDir, for the same reason: a pod may write to its volume as
	// any user. A pod's fsGroup becomes its group.
	volumeMode = 0o777
	// doomed begins the name of a directory that is being deleted. No volume's name begins with a
	// dot.
	doomed = ".deleting-"
	// doomedLong begins the name if doomed would make it too long. The longest name of a volume,
	// 253 bytes, just fits.
	doomedLong = ".-"
)

// graveOf is the name of a volume's directory while it is being deleted.
func graveOf(name string) string {
	if len(doomed)+len(name) > unix.NAME_MAX {
		return doomedLong + name
	}
	return doomed + name
}

// VolumeOf is the name of the volume to which an entry of a root belongs, and whether that is being
// deleted.
func VolumeOf(entry string) (name string, going bool) {
	if name, going = strings.CutPrefix(entry, doomed); going {
		return name, true
	}
	return strings.CutPrefix(entry, doomedLong)
}

// folders are the volumes below one root.
type folders struct {
	root string
	// was is the root as first found.
	was os.FileInfo
	// id is the ID in its marker at that time.
	id string
	// sync writes the content of a directory to disk, so that it survives a power cut.
	sync func(*os.File) error
}

// New gives the plugin for a root on this machine; node is the machine's name in the API. A missing
// root is created.
func New(root, node string) (plugin.Plugin, error) {
	if !filepath.IsAbs(root) || filepath.Clean(root) == "/" {
		return plugin.Plugin{}, fmt.Errorf("root %q of host-path volumes: give an absolute path below /", root)
	}
	if node == "" {
		return plugin.Plugin{}, fmt.Errorf("root %q of host-path volumes: the name of its node is missing; set --node-name", root)
	}
	f := folders{root: filepath.Clean(root), sync: (*os.File).Sync}
	if err := os.MkdirAll(f.root, rootMode); err != nil {
		return plugin.Plugin{}, fmt.Errorf("creating the root of host-path volumes: %w", err)
	}
	var err error
	if f.was, err = os.Stat(f.root); err != nil {
		return plugin.Plugin{}, fmt.Errorf("reading the root of host-path volumes: %w", err)
	}
	top, err := f.openRoot()
	if err != nil {
		return plugin.Plugin{}, err
	}
	defer top.Close()
	probe, err := scrub.OpenBelow(top, ".")
	if errors.Is(err, unix.ENOSYS) {
		return plugin.Plugin{}, fmt.Errorf("host-path volumes need openat2; use Linux 5.6 or newer: %w", err)
	}
	if err != nil {
		return plugin.Plugin{}, fmt.Errorf("opening the root of host-path volumes %s: %w", f.root, err)
	}
	if err := probe.Close(); err != nil {
		return plugin.Plugin{}, err
	}
	if f.id, err = f.mark(top); err != nil {
		return plugin.Plugin{}, err
	}
	return plugin.Plugin{Name: Provisioner, Node: node, Place: f.place(), Creator: f, Deleter: f, Recycler: f}, nil
}

// open opens the root. A root that is missing, or is not the one found at the start, is an error:
// its volumes still exist, their disk may just not be mounted. The marker is compared too, because
// disks that come and go may have the same device and inode numbers.
func (f folders) open() (*os.File, error) {
	top, err := f.openRoot()
	if err != nil {
		return nil, err
	}
	switch id, err := f.readMarker(top); {
	case errors.Is(err, unix.ENOENT) && f.id == "":
		return top, nil
	case errors.Is(err, unix.ENOENT):
		return nil, errors.Join(fmt.Errorf("%s is gone since this process started: mount what belongs there, or write %s into it", f.path(marker), f.id), top.Close())
	case err != nil:
		return nil, errors.Join(err, top.Close())
	case id != f.id:
		return nil, errors.Join(fmt.Errorf("%s has id %s, and had %s when this process started; mount what belongs there, or restart the process", f.path(marker), id, f.id), top.Close())
	}
	return top, nil
}

// openRoot opens the root if it is still the same directory.
func (f folders) openRoot() (*os.File, error) {
	top, err := os.OpenFile(f.root, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the root of host-path volumes: %w", err)
	}
	is, err := top.Stat()
	if err == nil && !os.SameFile(is, f.was) {
		err = errors.New("it is not the directory it was when this process started; mount what belongs there, or restart the process")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reading the root of host-path volumes %s: %w", f.root, err), top.Close())
	}
	return top, nil
}

// Check implements plugin.Creator.
func (f folders) Check(r plugin.Request) error {
	if err := checkName(r.Name); err != nil {
		return err
	}
	if r.Mode != corev1.PersistentVolumeFilesystem {
		return fmt.Errorf("volumeMode %s: %s creates directories; create the claim again with volumeMode Filesystem", r.Mode, Provisioner)
	}
	for name, value := range r.Parameters {
		return fmt.Errorf("parameter %s=%q: %s has no parameters; create the StorageClass again without it", name, value, Provisioner)
	}
	return nil
}

func checkName(name string) error {
	if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
		return fmt.Errorf("volume name %q: %s", name, strings.Join(wrong, "; "))
	}
	return nil
}

// Create implements plugin.Creator. The capacity is only a label: a directory has no limit of its
// own.
func (f folders) Create(_ context.Context, r plugin.Request) (plugin.Asset, error) {
	if err := f.Check(r); err != nil {
		return plugin.Asset{}, err
	}
	top, err := f.open()
	if err != nil {
		return plugin.Asset{}, err
	}
	defer top.Close()
	if err := f.make(top, r.Name); err != nil {
		return plugin.Asset{}, err
	}
	return plugin.Asset{Source: f.source(r.Name), Bytes: r.Bytes}, nil
}

// source is the source in the PersistentVolume of that name. It is a local volume and not a
// hostPath. The kubelet applies a pod's fsGroup to it, and a missing directory keeps the pod from
// starting. A hostPath would be created again, empty.
func (f folders) source(name string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: f.path(name)}}
}

func (f folders) path(name string) string { return filepath.Join(f.root, name) }

// make creates a volume's directory, or finds it.
func (f folders) make(top *os.File, name string) error {
	err := unix.Mkdirat(int(top.Fd()), name, rootMode)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("creating directory %s: %w", f.path(name), err)
	}
	dir, err := f.find(top, name)
	if err != nil {
		return err
	}
	// The PersistentVolume is written next, and it is permanent. So the directory must be on disk
	// first, even one that was found: its creator may have been killed before this sync.
	return errors.Join(f.permit(dir), f.sync(dir), f.sync(top), dir.Close())
}

// permit sets the mode of a new directory. Mkdir cannot set it, because it applies the process's
// umask.
func (f folders) permit(dir *os.File) error {
	info, err := dir.Stat()
	if err != nil || info.Mode().Perm() != rootMode {
		return err // made before and, maybe, given to an fsGroup meanwhile
	}
	return dir.Chmod(volumeMode)
}

// find opens a volume's directory.
func (f folders) find(top *os.File, name string) (*os.File, error) {
	dir, err := scrub.OpenBelow(top, name)
	switch {
	case errors.Is(err, unix.EXDEV):
		return nil, fmt.Errorf("%w: %s is a mount point; unmount it", plugin.ErrInUse, f.path(name))
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return nil, fmt.Errorf("%s is not the directory that %s created; check what it is, and delete it by hand", f.path(name), Provisioner)
	case err != nil:
		return nil, fmt.Errorf("opening directory %s: %w", f.path(name), err)
	}
	return dir, nil
}

// Delete implements plugin.Deleter. It first renames the directory, so that half a volume is never
// found at its path.
func (f folders) Delete(ctx context.Context, v plugin.Volume) error {
	top, err := f.openFor(v)
	if err != nil {
		return err
	}
	defer top.Close()
	if err := f.clear(ctx, top, v.Name); err != nil {
		return err
	}
	// The PersistentVolume is deleted next, and a power cut must not bring the directory back. Sync
	// even if no directory was found: an earlier call may have been killed between removal and
	// sync. One sync is enough: file systems write the rename before the removals that follow it.
	return f.sync(top)
}

// Misses implements plugin.Creator.
func (f folders) Misses(v plugin.Volume) error {
	id, here := strings.CutPrefix(v.Place, f.root+idAfter)
	if v.Place == "" || v.Place == f.place() || v.Source == nil && !here || v.Source != nil && (v.Source.Local == nil || v.Source.Local.Path != f.path(v.Name)) {
		return nil
	}
	return fmt.Errorf("root %s is not the one that volume %s is in: %s has id %q, and the volume %q; mount what belongs there and restart the controller; "+
		"if that disk is gone for good, write %s into %s and restart the controller", f.root, v.Name, f.path(marker), f.id, id, id, f.path(marker))
}

// Recycle implements plugin.Recycler. A new directory replaces the old one, so owners, modes and
// attributes of the old one are gone too.
func (f folders) Recycle(ctx context.Context, v plugin.Volume) error {
	top, err := f.openFor(v)
	if err != nil {
		return err
	}
	defer top.Close()
	if err := f.clear(ctx, top, v.Name); err != nil {
		return err
	}
	return f.make(top, v.Name)
}

// openFor opens the root after checking that the volume lies in it.
func (f folders) openFor(v plugin.Volume) (*os.File, error) {
	if err := checkName(v.Name); err != nil {
		return nil, err
	}
	if s := v.Source; s != nil && (s.Local == nil || s.Local.Path != f.path(v.Name)) {
		path := "no local path"
		if s.Local != nil {
			path = "local.path " + s.Local.Path
		}
		return nil, fmt.Errorf("volume %s has %s, and %s only touches %s; delete the storage by hand, or start the controller with the root in which the volume was created",
			v.Name, path, Provisioner, f.path(v.Name))
	}
	if err := f.Misses(v); err != nil {
		return nil, err
	}
	return f.open()
}

// clear removes everything of a volume: the rest of an interrupted deletion, and the directory at
// its path.
func (f folders) clear(ctx context.Context, top *os.File, name string) error {
	grave := graveOf(name)
	if err := bury(ctx, top, grave, f.root); err != nil {
		return err
	}
	dir, err := f.find(top, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	err = unix.Renameat2(int(top.Fd()), name, int(top.Fd()), grave, unix.RENAME_NOREPLACE)
	if err := errors.Join(err, dir.Close()); err != nil {
		return fmt.Errorf("moving directory %s aside: %w", f.path(name), err)
	}
	return bury(ctx, top, grave, f.root)
}

// bury removes a directory that was renamed for its deletion.
func bury(ctx context.Context, top *os.File, grave, root string) error {
	err := scrub.RemoveTree(ctx, top, grave, root)
	if errors.Is(err, scrub.ErrMount) {
		return fmt.Errorf("%w: %w", plugin.ErrInUse, err)
	}
	return err
}
