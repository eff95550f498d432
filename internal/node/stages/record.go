package stages

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/hangguard"
	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/resultdir"
)

// record describes a staged volume and is kept beside its pav directory. It makes sure that the
// agent later gives out this volume, even after a restart of the agent or the machine, and not the
// empty directory under its mount.
type record struct {
	// Boot is the kernel's boot_id: a pod's work does not outlive a boot.
	Boot string `json:"boot"`
	// Path is where /pav/volume leads.
	Path string `json:"path"`
	// Device is "major:minor" of the file system, Rdev of the block device, if any.
	Device string `json:"device"`
	Rdev   string `json:"rdev,omitempty"`
	// Point is the path below the pav directory of the mount that contains the volume, if there is
	// one. Root is the part of its file system that the mount shows.
	Point string `json:"point,omitempty"`
	Root  string `json:"root,omitempty"`
	// Block and Capacity (bytes) are required of the volume.
	Block    bool  `json:"block,omitempty"`
	Capacity int64 `json:"capacity"`
	// Rebinding is the progress of mounting again after a loss.
	Rebinding *rebinding `json:"mending,omitempty"` // the field's name in records of earlier releases
}

// rebinding is what cannot be found out again once record and mounts are exchanged. A crash, or a
// rejected write of the status, makes the agent repeat the work.
type rebinding struct {
	// Loss is the number of the loss being repaired.
	Loss int32 `json:"loss"`
	// Exchanged says that the block device is another than the lost one.
	Exchanged bool `json:"exchanged,omitempty"`
	// Left are the mounts that could not be exchanged.
	Left []tarnv1.StageLeft `json:"left,omitempty"`
}

const recordFile = "record.json"

// errDamaged says that a record cannot be parsed. Records are not synced to disk, so a power cut
// may leave half of one.
var errDamaged = errors.New("it is damaged")

// noRecord says whether there is no usable record.
func noRecord(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, errDamaged) }

// inspection is what was seen as /pav/volume.
type inspection struct {
	volume *resultdir.Volume
	found  *record
}

// inspect opens and describes what the staging pod has left as /pav/volume. A
// *resultdir.WrongVolumeError says that it is not what the volume needs. The error is
// hangguard.ErrNoAnswer if its server does not answer; the stage is reconciled again when it does.
func (s *Stages) inspect(stage *tarnv1.PavStage, block bool, capacity int64) (*resultdir.Volume, *record, error) {
	key, name := question(theVolume, stage), stage.Name
	limit := ServerAnswer
	if s.asker.Slow(key) {
		limit = slowAnswer
	}
	seen, err := hangguard.Ask(&s.asker, key, limit,
		func() (inspection, error) { return s.look(stage.UID, block, capacity) },
		func(late inspection, err error) {
			if err == nil {
				_ = late.volume.File.Close()
			}
			s.queue.add(name)
		})
	if errors.Is(err, hangguard.ErrNoAnswer) {
		err = fmt.Errorf("%s: %w", noAnswer(stage), err)
	}
	return seen.volume, seen.found, err
}

// What the server of a volume is asked: what the volume is, and its size, which shows whether the
// server has ended.
const (
	theVolume = "volume"
	theSize   = "size"
)

// question is the key of a query. One that hangs says nothing about the volume of the next staging
// pod.
func question(kind string, stage *tarnv1.PavStage) string {
	return fmt.Sprintf("%s %s %d", kind, stage.UID, attemptOf(stage))
}

func (s *Stages) look(uid types.UID, block bool, capacity int64) (inspection, error) {
	volume, err := resultdir.OpenVolume(s.folder(uid), block, capacity)
	if err != nil {
		return inspection{}, err
	}
	found, err := s.describeVolume(uid, volume)
	if err != nil {
		_ = volume.File.Close()
		return inspection{}, err
	}
	found.Block, found.Capacity = block, capacity
	return inspection{volume, found}, nil
}

func (s *Stages) describeVolume(uid types.UID, volume *resultdir.Volume) (*record, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	found := &record{
		Boot:   boot,
		Path:   volume.Path,
		Device: volume.Device,
		Rdev:   volume.Rdev,
	}
	table, err := s.Mounts.List()
	if err != nil {
		return nil, err
	}
	pav, err := filepath.EvalSymlinks(s.pav(uid))
	if err != nil {
		return nil, err
	}
	if m, ok := mounts.ByID(table, volume.MountID); ok && mounts.Inside(m.Point, pav) {
		found.Point, found.Root = m.Point, m.Root
	}
	return found, nil
}

// bootID identifies the present boot of the kernel.
func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

func (s *Stages) readRecord(uid types.UID) (*record, error) {
	data, err := os.ReadFile(filepath.Join(s.folder(uid), recordFile))
	if err != nil {
		return nil, err
	}
	kept := &record{}
	if err := json.Unmarshal(data, kept); err != nil {
		return nil, fmt.Errorf("read %s of stage %s: %w: %w", recordFile, uid, errDamaged, err)
	}
	return kept, nil
}

// writeRecord replaces the record atomically.
func (s *Stages) writeRecord(uid types.UID, r *record) error {
	return writeJSON(filepath.Join(s.folder(uid), recordFile), r)
}

// writeJSON replaces a file atomically.
func writeJSON(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// bootFile, beside a pav directory, has the kernel's boot_id of the time when that was made.
const bootFile = "boot"

// makeFolder creates the staging pod's /pav. The pod's volume is of type Directory, so the pod
// waits until the directory exists. It appears with the volume's Secret in it. The caller has the
// lock of the directory.
func (s *Stages) makeFolder(uid types.UID) error {
	if err := os.MkdirAll(s.folder(uid), 0o700); err != nil {
		return fmt.Errorf("create the stage's directory: %w", err)
	}
	pav := s.pav(uid)
	made := pav
	if _, err := os.Lstat(pav); errors.Is(err, os.ErrNotExist) {
		if err := s.noteBoot(uid); err != nil {
			return fmt.Errorf("record the boot ID for the stage's pav directory: %w", err)
		}
		made = pav + ".new"
	}
	if err := os.Mkdir(made, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("create the stage's pav directory: %w", err)
	}
	if err := os.Chmod(made, 0o755); err != nil { // the umask may have taken bits
		return err
	}
	if err := s.showSecrets(uid, made); err != nil {
		return fmt.Errorf("show the volume's Secret to the staging pod: %w", err)
	}
	if made == pav {
		return nil
	}
	return os.Rename(made, pav)
}

func (s *Stages) noteBoot(uid types.UID) error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.folder(uid), bootFile), []byte(boot), 0o600)
}

// ofThisBoot says whether the stage's pav directory was made since the machine was started. A pod's
// mounts do not outlive a boot, but its end and /pav/ready do. A directory without a note, from an
// earlier release, counts as of this boot.
func (s *Stages) ofThisBoot(uid types.UID) (bool, error) {
	made, err := os.ReadFile(filepath.Join(s.folder(uid), bootFile))
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	boot, err := bootID()
	return err == nil && string(made) == boot, err
}

// blockOf and capacityOf are the kind and size required by the PersistentVolume.
func blockOf(volume *corev1.PersistentVolume) bool {
	return volume.Spec.VolumeMode != nil && *volume.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

func capacityOf(volume *corev1.PersistentVolume) int64 {
	capacity := volume.Spec.Capacity[corev1.ResourceStorage]
	return capacity.Value()
}
