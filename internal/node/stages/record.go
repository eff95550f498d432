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
	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/pavdir"
)

// record is what a staged volume was found to be, kept beside its pav folder, so that
// what is handed out later, perhaps after a restart of the agent or of the machine, is
// still that and not the empty folder below it.
type record struct {
	// Boot is the kernel's boot_id: what a pod has set up does not outlive a boot.
	Boot string `json:"boot"`
	// Path is where /pav/volume led.
	Path string `json:"path"`
	// Device is "major:minor" of the file system, Rdev of the block device, if any.
	Device string `json:"device"`
	Rdev   string `json:"rdev,omitempty"`
	// Point is where below the pav folder the mount lies that holds it, if one does;
	// Root is which part of its file system that mount shows.
	Point string `json:"point,omitempty"`
	Root  string `json:"root,omitempty"`
	// Block and Capacity (bytes) are what the volume must be.
	Block    bool  `json:"block,omitempty"`
	Capacity int64 `json:"capacity"`
}

const recordFile = "record.json"

// inspect opens what the staging pod has left as /pav/volume and describes it. A
// *pavdir.WrongVolumeError says that it is not what the volume needs.
func (s *Stages) inspect(uid types.UID, block bool, capacity int64) (*pavdir.Volume, *record, error) {
	volume, err := pavdir.OpenVolume(s.folder(uid), block, capacity)
	if err != nil {
		return nil, nil, err
	}
	found, err := s.describeVolume(uid, volume)
	if err != nil {
		_ = volume.File.Close()
		return nil, nil, err
	}
	found.Block, found.Capacity = block, capacity
	return volume, found, nil
}

func (s *Stages) describeVolume(uid types.UID, volume *pavdir.Volume) (*record, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, err
	}
	found := &record{
		Boot:   strings.TrimSpace(string(boot)),
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

// open opens the volume of a staged stage if it still is what was recorded; else it
// says why it is lost.
func (s *Stages) open(stage *tarnv1.PavStage) (volume *pavdir.Volume, lost string, err error) {
	kept, err := s.readRecord(stage.UID)
	if errors.Is(err, os.ErrNotExist) {
		return nil, "its folder or record on the node is gone", nil
	}
	if err != nil {
		return nil, "", err
	}
	volume, found, err := s.inspect(stage.UID, kept.Block, kept.Capacity)
	var wrong *pavdir.WrongVolumeError
	switch {
	case errors.As(err, &wrong):
		return nil, wrong.Problem, nil
	case errors.Is(err, os.ErrNotExist):
		return nil, "its folder on the node is gone", nil
	case err != nil:
		return nil, "", err
	}
	switch {
	case found.Boot != kept.Boot:
		lost = "the node was started anew since it was staged"
	case found.Point != kept.Point || found.Root != kept.Root || found.Device != kept.Device:
		lost = "what was mounted for it is not mounted any more"
	case found.Path != kept.Path || found.Rdev != kept.Rdev:
		lost = "/pav/volume is not what it was"
	}
	if lost != "" {
		_ = volume.File.Close()
		return nil, lost, nil
	}
	return volume, "", nil
}

func (s *Stages) readRecord(uid types.UID) (*record, error) {
	data, err := os.ReadFile(filepath.Join(s.folder(uid), recordFile))
	if err != nil {
		return nil, err
	}
	kept := &record{}
	if err := json.Unmarshal(data, kept); err != nil {
		return nil, fmt.Errorf("read %s of stage %s: %w", recordFile, uid, err)
	}
	return kept, nil
}

// writeRecord replaces the record in one step.
func (s *Stages) writeRecord(uid types.UID, r *record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := filepath.Join(s.folder(uid), recordFile)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// makeFolder makes the folder the staging pod gets as /pav. The pod's volume is of
// type Directory: it waits until the folder is there.
func (s *Stages) makeFolder(uid types.UID) error {
	if err := os.MkdirAll(s.folder(uid), 0o700); err != nil {
		return fmt.Errorf("make the stage's folder: %w", err)
	}
	pav := s.pav(uid)
	if err := os.Mkdir(pav, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make the stage's pav folder: %w", err)
	}
	return os.Chmod(pav, 0o755) // the umask may have taken bits
}

// blockOf and capacityOf are what the volume must be, by its PersistentVolume.
func blockOf(volume *corev1.PersistentVolume) bool {
	return volume.Spec.VolumeMode != nil && *volume.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

func capacityOf(volume *corev1.PersistentVolume) int64 {
	capacity := volume.Spec.Capacity[corev1.ResourceStorage]
	return capacity.Value()
}
