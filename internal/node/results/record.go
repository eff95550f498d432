package results

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"tarn.dev/tarn/internal/node/podend"
)

// record says which pod a directory belongs to. It lies beside the pav directory, where the pod
// cannot reach it.
type record struct {
	VolumeID  string    `json:"volumeID"`
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	UID       types.UID `json:"uid"`
	Target    string    `json:"target"`
	// Shape is what of the pod's spec decides when it has ended.
	Shape podend.Shape `json:"shape"`
}

const recordFile = "record.json"

// key is the name of the volume's directory. Volume IDs come from the kubelet and are long.
func key(volumeID string) string {
	sum := sha256.Sum256([]byte(volumeID))
	return hex.EncodeToString(sum[:16])
}

func (r *Results) folder(key string) string { return filepath.Join(r.Folder, key) }

func (r *Results) pav(key string) string { return filepath.Join(r.Folder, key, "pav") }

// keep creates the volume's directory and record. The pod may run as any user, so any user may
// write in pav. Only user root may enter the directory around it.
func (r *Results) keep(k string, rec *record) error {
	if err := os.MkdirAll(r.folder(k), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(r.pav(k), 0o777); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := os.Chmod(r.pav(k), 0o777); err != nil { // the umask has taken bits
		return err
	}
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	path := filepath.Join(r.folder(k), recordFile)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// recall reads a record; nil if there is none.
func (r *Results) recall(k string) (*record, error) {
	data, err := os.ReadFile(filepath.Join(r.folder(k), recordFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	rec := &record{}
	if err := json.Unmarshal(data, rec); err != nil {
		return nil, fmt.Errorf("read %s of %s: %w", recordFile, r.folder(k), err)
	}
	return rec, nil
}
