package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	mount "k8s.io/mount-utils"
)

// nodeSide is the node agent's directory on this machine and the kubelet's mount table. The audit
// only reads them.
type nodeSide struct {
	// dir is the directory as this process sees it, inside as the kubelet sees it.
	dir, inside string
	mountinfo   string
}

// A directory of the node agent belongs to a stage, to a pod that runs to its end, or to a driver.
// Each constant is the name of the parent directory for that kind of owner.
const (
	ofStage  = "stages"
	ofPod    = "results"
	ofDriver = "drivers"
)

// nodeFolder is one directory of the node agent.
type nodeFolder struct {
	path string
	// of is the kind of its owner. id is the uid of the stage or pod, or the driver's name.
	of, id string
	// pod is the namespace and name of the pod.
	pod string
}

// nodeMount is one of the kubelet's mounts that may be Tarn's.
type nodeMount struct {
	point string
	// stage and pod are the uids of its possible owners. volume is the PersistentVolume named in
	// the kubelet's target path. Each may be empty.
	stage, pod, volume string
	// ours says that the mount lies in the node agent's directory.
	ours bool
}

// inProcess splits the path of a directory that is seen through another process, /proc/PID/root/...
var inProcess = regexp.MustCompile(`^(/proc/\d+)/root(/.*)$`)

func newNodeSide(dir, mountinfo string) (*nodeSide, error) {
	dir = filepath.Clean(dir)
	n := &nodeSide{dir: dir, inside: dir, mountinfo: mountinfo}
	process := "/proc/self"
	if m := inProcess.FindStringSubmatch(dir); m != nil {
		process, n.inside = m[1], m[2]
	}
	if n.mountinfo == "" {
		n.mountinfo = process + "/mountinfo"
	}
	if _, err := os.ReadDir(dir); err != nil {
		return nil, err
	}
	return n, nil
}

// read returns the node agent's directories and the mounts that may be Tarn's.
func (n *nodeSide) read() ([]nodeFolder, []nodeMount, error) {
	entries, err := os.ReadDir(n.dir)
	if err != nil {
		return nil, nil, err
	}
	var folders []nodeFolder
	podOf := map[string]string{} // directory in results -> uid
	for _, e := range entries {
		of := e.Name()
		if of != ofStage && of != ofPod && of != ofDriver {
			folders = append(folders, nodeFolder{path: filepath.Join(n.inside, of)})
			continue
		}
		inner, err := os.ReadDir(filepath.Join(n.dir, of))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		for _, f := range inner {
			folder := nodeFolder{path: filepath.Join(n.inside, of, f.Name()), of: of}
			folder.id, folder.pod = n.ownerOf(of, f.Name())
			if of == ofPod {
				podOf[f.Name()] = folder.id
			}
			folders = append(folders, folder)
		}
	}
	mounts, err := n.mounts(podOf)
	return folders, mounts, err
}

// ownerOf finds the owner of a directory, by its name or by the record in it. Both results are
// empty where the record cannot be read.
func (n *nodeSide) ownerOf(of, name string) (id, pod string) {
	folder := filepath.Join(n.dir, of, name)
	switch of {
	case ofPod:
		var record struct {
			Namespace string `json:"namespace"`
			Pod       string `json:"pod"`
			UID       string `json:"uid"`
		}
		data, err := os.ReadFile(filepath.Join(folder, "record.json"))
		if err != nil || json.Unmarshal(data, &record) != nil {
			return "", ""
		}
		return record.UID, record.Namespace + "/" + record.Pod
	case ofDriver:
		// A name too long for a socket's path is stored in a file.
		if data, err := os.ReadFile(filepath.Join(folder, "name")); err == nil {
			return strings.TrimSpace(string(data)), ""
		}
	}
	return name, ""
}

// targets matches the paths at which the kubelet wants the volumes of CSI drivers, as file systems
// or block devices. The match holds the name of the PersistentVolume.
var targets = regexp.MustCompile(`/volumes/kubernetes\.io~csi/([^/]+)/mount$|/volumeDevices/publish/([^/]+)/[^/]+$`)

func (n *nodeSide) mounts(podOf map[string]string) ([]nodeMount, error) {
	table, err := mount.ParseMountInfo(n.mountinfo)
	if err != nil {
		return nil, fmt.Errorf("reading the mount table: %w; see --mountinfo", err)
	}
	// The root of a bind mount is a path in its file system. That path ends like the node agent's.
	name := regexp.QuoteMeta(filepath.Base(n.inside))
	source := regexp.MustCompile(`/` + name + `/(stages|results)/([^/]+)(/|$)`)
	var found []nodeMount
	for _, line := range table {
		m := nodeMount{point: line.MountPoint, ours: strings.HasPrefix(line.MountPoint, n.inside+"/")}
		for _, path := range []string{line.Root, line.MountPoint} {
			from := source.FindStringSubmatch(path)
			switch {
			case from == nil:
			case from[1] == ofStage:
				m.stage = from[2]
			default:
				m.pod = podOf[from[2]]
				m.ours = true
			}
		}
		if t := targets.FindStringSubmatch(m.point); t != nil {
			m.volume = t[1] + t[2]
		}
		if m.ours || m.stage != "" || m.volume != "" {
			found = append(found, m)
		}
	}
	return found, nil
}
