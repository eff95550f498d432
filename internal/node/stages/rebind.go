package stages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/hangguard"
	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/procns"
)

// rebind mounts the volume in place of the lost one. It does so at each target, at the kubelet's
// mounts of its subPaths, and with recovery Rebind in each running container of its pods. It
// returns the mounts that are left. A container uses a block device through a device node, not a
// mount, so a different device cannot be exchanged there.
func (s *Stages) rebind(ctx context.Context, stage *tarnv1.PavStage, volume *os.File, again *record) ([]tarnv1.StageLeft, error) {
	unlock := s.folders.Lock(string(stage.UID))
	defer unlock()
	for _, target := range stage.Status.Node.Targets {
		if !s.recorded(target) {
			continue
		}
		if err := s.rebindTarget(stage, target, volume, again); err != nil {
			return nil, fmt.Errorf("mount volume %s again at %s: %w", stage.Spec.VolumeName, target, err)
		}
	}
	left := slices.Clone(again.Rebinding.Left)
	for _, l := range left {
		log.FromContext(ctx).Info("a mount still shows the lost volume", "pod", l.PodUID, "path", l.Path, "subPath of container", l.Container, "because", l.Message)
	}
	if !again.Rebinding.Exchanged {
		return left, nil
	}
	for _, pod := range podsOf(stage.Status.Node.Targets) {
		left = append(left, tarnv1.StageLeft{PodUID: pod, Message: "the volume is a different block device now, and a running container keeps the one it started with"})
	}
	return left, nil
}

// rebindTarget exchanges the mount at one target. A target that does not exist was released. A
// target that is correct was exchanged earlier, and the record says what that left.
//
// During a call for the target, a missing mount is left to the call. An existing mount is
// exchanged: a publish call that has mounted the lost volume may not have returned yet.
func (s *Stages) rebindTarget(stage *tarnv1.PavStage, target string, volume *os.File, again *record) error {
	unlock, idle := s.targets.TryLock(target)
	if idle {
		defer unlock()
	}
	if !mounts.Exists(target) {
		return nil
	}
	kept, err := s.readUse(stage.UID, target)
	if err != nil {
		return fmt.Errorf("read how it is used: %w", err)
	}
	readOnly := kept.ReadOnly || stage.Spec.ReadOnly
	table, err := s.Mounts.List()
	if err != nil {
		return err
	}
	layers := mounts.At(table, target)
	if len(layers) == 0 && !idle {
		return nil
	}
	if len(layers) == 0 {
		return mounts.EnsureBind(s.Mounts, volume, target, readOnly)
	}
	old := layers[len(layers)-1]
	right, err := mounts.Shows(s.Mounts, target, volume, readOnly)
	if err != nil || right {
		return err
	}
	// Keep it open: the old file system then stays, and no other gets its number meanwhile.
	pin, err := os.OpenFile(target, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err == nil {
		// Close it in the background: the kernel may end the old file system, and wait for its
		// server.
		defer func() { go func() { _ = pin.Close() }() }()
	}
	e := exchange{asker: &s.asker, old: old, below: mounts.Under(table, target), target: mounts.Real(target), volume: volume}
	if pin == nil {
		return s.Mounts.Replace(volume, target, readOnly)
	}
	// Exchange copies before the target, so that after a crash the target still shows the lost
	// volume. Exchange them again afterwards, for a container that was started in between.
	if err := s.exchangeCopies(stage, e, target, again); err != nil {
		return err
	}
	if err := s.Mounts.Replace(volume, target, readOnly); err != nil {
		return err
	}
	return s.exchangeCopies(stage, e, target, again)
}

// exchangeCopies exchanges the copies of a target's mount that the kubelet and the pod's containers
// have, and records the ones left.
func (s *Stages) exchangeCopies(stage *tarnv1.PavStage, e exchange, target string, again *record) error {
	pods := podsOf([]string{target})
	if len(pods) == 0 {
		return nil
	}
	left, err := s.exchangeSubPaths(stage, e, pods[0])
	if err != nil {
		return err
	}
	if recoveryOf(stage) == tarnv1.RecoveryRebind {
		running, err := e.containers(pods[0])
		if err != nil {
			return err
		}
		left = append(left, running...)
	}
	others := slices.DeleteFunc(slices.Clone(again.Rebinding.Left), func(l tarnv1.StageLeft) bool { return slices.Contains(pods, l.PodUID) })
	if len(left) == 0 && len(others) == len(again.Rebinding.Left) {
		return nil
	}
	again.Rebinding.Left = append(others, left...)
	return s.writeRecord(stage.UID, again)
}

// exchangeSubPaths exchanges the kubelet's mounts of subPaths of the volume, one for each container
// and mount of the pod. It returns the mounts that are left. Each stays read-only if it was: a
// stage may serve pods that write and pods that do not.
//
// The kubelet gives these mounts to a container that it restarts, and cannot check one whose server
// has ended. A subPath that cannot be opened is replaced by an empty read-only directory. The
// kubelet takes that for wrong, and mounts the subPath again when it starts the container.
func (s *Stages) exchangeSubPaths(stage *tarnv1.PavStage, e exchange, pod types.UID) ([]tarnv1.StageLeft, error) {
	table, err := s.Mounts.List()
	if err != nil {
		return nil, err
	}
	// From pods/UID/volumes/kubernetes.io~csi/NAME/mount to
	// pods/UID/volume-subpaths/NAME/CONTAINER/INDEX.
	folder := filepath.Join(e.target, "../../../../volume-subpaths", filepath.Base(filepath.Dir(e.target)))
	var left []tarnv1.StageLeft
	for _, m := range table {
		container := filepath.Dir(m.Point)
		if filepath.Dir(container) != folder || !e.lost(m) || !uppermost(table, m) {
			continue
		}
		err := e.with(m, func(part *os.File) error { return s.Mounts.Replace(part, m.Point, m.ReadOnly) })
		if err != nil && s.replaceByEmpty(stage.UID, m.Point) != nil {
			left = append(left, tarnv1.StageLeft{PodUID: pod, Container: filepath.Base(container), Message: err.Error()})
		}
	}
	return left, nil
}

// replaceByEmpty mounts an empty directory, read-only, in the place of a mount.
func (s *Stages) replaceByEmpty(stage types.UID, point string) error {
	path := filepath.Join(s.folder(stage), "empty")
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	empty, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = empty.Close() }()
	return s.Mounts.Replace(empty, point, true)
}

// exchange replaces a lost volume with another.
type exchange struct {
	// asker limits queries to the servers on the paths to the mounts.
	asker *hangguard.Asker
	// old is the lost volume's mount at the target, under any mounts there.
	old    mounts.Mount
	below  []mounts.Mount
	target string
	volume *os.File
}

// lost says whether a mount shows the lost volume or a part of it.
func (e exchange) lost(m mounts.Mount) bool {
	return m.Device == e.old.Device && mounts.Inside(m.Root, e.old.Root)
}

// containers exchanges the mounts in the containers of the target's pod, and returns the mounts
// that are left.
func (e exchange) containers(pod types.UID) ([]tarnv1.StageLeft, error) {
	found, err := procns.Find([]types.UID{pod})
	if err != nil {
		return nil, err
	}
	var left []tarnv1.StageLeft
	if len(found) == 0 {
		// Every pod has at least the process of its sandbox.
		left = append(left, tarnv1.StageLeft{PodUID: pod, Message: "no process of the pod can be seen; the node agent needs hostPID to look into its containers"})
	}
	for _, c := range found {
		for _, m := range c.Table {
			if !e.lost(m) || !uppermost(c.Table, m) {
				continue
			}
			if err := e.one(c, m); err != nil {
				left = append(left, tarnv1.StageLeft{PodUID: c.Pod, Path: m.Point, Message: err.Error()})
			}
		}
	}
	return left, nil
}

func (e exchange) one(c procns.Container, m mounts.Mount) error {
	for _, other := range c.Table {
		if other.Point != m.Point && mounts.Inside(other.Point, m.Point) && !e.has(m, other) {
			return fmt.Errorf("%s is mounted below it and would be lost with it", other.Point)
		}
	}
	return e.with(m, func(part *os.File) error { return c.Replace(e.asker, ServerAnswer, m, part) })
}

// with opens the part of the volume that replaces a mount of the lost one.
func (e exchange) with(m mounts.Mount, do func(part *os.File) error) error {
	if m.Root == e.old.Root {
		return do(e.volume)
	}
	part, err := e.subPath(strings.TrimPrefix(strings.TrimPrefix(m.Root, e.old.Root), "/"))
	if err != nil {
		return err
	}
	defer func() { _ = part.Close() }()
	return do(part)
}

// has says whether a mount below the container's mount is one of the lost volume's own.
func (e exchange) has(m, other mounts.Mount) bool {
	path := filepath.Join(e.target, strings.TrimPrefix(other.Point, m.Point))
	return slices.ContainsFunc(e.below, func(b mounts.Mount) bool { return b.Point == path && b.Device == other.Device })
}

// uppermost says whether a mount of a table is the visible one at its point.
func uppermost(table []mounts.Mount, m mounts.Mount) bool {
	layers := mounts.AtPoint(table, m.Point)
	return layers[len(layers)-1].ID == m.ID
}

// subPath opens a path in the volume, without following a symbolic link.
func (e exchange) subPath(path string) (*os.File, error) {
	if path, deleted := strings.CutSuffix(path, "//deleted"); deleted { // the kernel's word, and no path
		return nil, fmt.Errorf("subPath %s was deleted from the lost volume", path)
	}
	raw, err := e.volume.SyscallConn() // keeps it open while a question hangs, though it is closed
	if err != nil {
		return nil, err
	}
	ask := func() (sub *os.File, answer error) {
		err := raw.Control(func(volume uintptr) {
			var fd int
			fd, answer = unix.Openat2(int(volume), path, &unix.OpenHow{
				Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
				Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
			})
			if answer == nil {
				sub = os.NewFile(uintptr(fd), path)
			}
		})
		return sub, errors.Join(err, answer)
	}
	key := "subPath " + e.target + " " + path
	sub, err := hangguard.Ask(e.asker, key, ServerAnswer, ask, func(late *os.File, err error) {
		if err == nil {
			_ = late.Close()
		}
	})
	if errors.Is(err, hangguard.ErrNoAnswer) {
		e.asker.Forget(key) // its duration does not matter
		return nil, fmt.Errorf("the server of the volume staged again does not answer for its subPath %s: %w", path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("the volume staged again has no subPath %s: %w", path, err)
	}
	return sub, nil
}
