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

// nodeSide is the node agent's folder on this machine and the mount table of the
// kubelet. It is only read.
type nodeSide struct {
	// dir is the folder as seen from here, inside as the kubelet sees it.
	dir, inside string
	mountinfo   string
}

// A folder of the node agent belongs to a stage, to a pod that runs to its end, or
// to a driver; the names are those of the folders in its own.
const (
	ofStage  = "stages"
	ofPod    = "results"
	ofDriver = "drivers"
)

// nodeFolder is one folder of the node agent.
type nodeFolder struct {
	path string
	// of is what it belongs to, id the uid of the stage or pod or the driver's name.
	of, id string
	// pod is namespace and name of the pod.
	pod string
}

// nodeMount is one mount of the kubelet's that may be ours.
type nodeMount struct {
	point string
	// stage and pod are the uids it can be told by, volume the PersistentVolume in
	// the kubelet's target path; each may be empty.
	stage, pod, volume string
	// ours says that it lies in the node agent's folder.
	ours bool
}

// inProcess parts the path of a folder in a process' view of the file system.
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

// read gives the folders and mounts there are.
func (n *nodeSide) read() ([]nodeFolder, []nodeMount, error) {
	entries, err := os.ReadDir(n.dir)
	if err != nil {
		return nil, nil, err
	}
	var folders []nodeFolder
	podOf := map[string]string{} // folder in results -> uid
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

// ownerOf reads whose a folder is. What cannot be read belongs to nobody.
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
		// A name too long for a socket's path stands in a file.
		if data, err := os.ReadFile(filepath.Join(folder, "name")); err == nil {
			return strings.TrimSpace(string(data)), ""
		}
	}
	return name, ""
}

// targets are the paths at which the kubelet wants volumes of CSI drivers, files or
// block; what is found is the PersistentVolume's name.
var targets = regexp.MustCompile(`/volumes/kubernetes\.io~csi/([^/]+)/mount$|/volumeDevices/publish/([^/]+)/[^/]+$`)

func (n *nodeSide) mounts(podOf map[string]string) ([]nodeMount, error) {
	table, err := mount.ParseMountInfo(n.mountinfo)
	if err != nil {
		return nil, fmt.Errorf("reading the mount table: %w; see --mountinfo", err)
	}
	// The root of a bind mount is a path in its file system, which ends like ours.
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
