package results

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// record says whose a folder is; it lies beside the pav folder, out of the pod's reach.
type record struct {
	VolumeID  string    `json:"volumeID"`
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	UID       types.UID `json:"uid"`
	Target    string    `json:"target"`
	// Shape is what of the pod's spec decides when it has ended.
	Shape shape `json:"shape"`
}

// shape is what of a pod's spec decides when it has ended.
type shape struct {
	RestartPolicy corev1.RestartPolicy `json:"restartPolicy"`
	// Containers and InitContainers are the names.
	Containers     []string `json:"containers"`
	InitContainers []string `json:"initContainers,omitempty"`
	// Unusual says that the pod has something (a sidecar, restart rules of one
	// container) that leaves its end to the kubelet's judgement.
	Unusual bool `json:"unusual,omitempty"`
	// DeadlineSeconds is the pod's activeDeadlineSeconds, 0 if it has none.
	DeadlineSeconds int64 `json:"deadlineSeconds,omitempty"`
}

func shapeOf(pod *corev1.Pod) shape {
	s := shape{RestartPolicy: pod.Spec.RestartPolicy}
	if pod.Spec.ActiveDeadlineSeconds != nil {
		s.DeadlineSeconds = *pod.Spec.ActiveDeadlineSeconds
	}
	names := func(containers []corev1.Container) []string {
		var list []string
		for i := range containers {
			list = append(list, containers[i].Name)
			if containers[i].RestartPolicy != nil || len(containers[i].RestartPolicyRules) > 0 {
				s.Unusual = true
			}
		}
		return list
	}
	s.Containers = names(pod.Spec.Containers)
	s.InitContainers = names(pod.Spec.InitContainers)
	return s
}

const recordFile = "record.json"

// key is the name of the volume's folder. Volume ids are the kubelet's and long.
func key(volumeID string) string {
	sum := sha256.Sum256([]byte(volumeID))
	return hex.EncodeToString(sum[:16])
}

func (r *Results) folder(key string) string { return filepath.Join(r.Folder, key) }

func (r *Results) pav(key string) string { return filepath.Join(r.Folder, key, "pav") }

// keep makes the volume's folder and record. The pod may run as any user, so anyone
// may write in pav; the folder around it lets nobody but root in.
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
