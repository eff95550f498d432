package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	mount "k8s.io/mount-utils"

	"tarn.dev/tarn/internal/plugin/hostpath"
	"tarn.dev/tarn/internal/volume"
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

// hostPathView is the root directory of tarn.dev/host-path on this machine; nil where it is not
// read.
type hostPathView struct {
	root    string
	folders []string // names of entries
	// claims are the uids of all claims: a directory may belong to a volume that is still being
	// created.
	claims map[types.UID]bool
}

// gatherHostPath reads the directories before the API. So the owner of each must have been in the
// API already.
func (a *audit) gatherHostPath(ctx context.Context) (*hostPathView, error) {
	if a.hostPathRoot == "" {
		return nil, nil
	}
	v := &hostPathView{root: filepath.Clean(a.hostPathRoot), claims: map[types.UID]bool{}}
	entries, err := os.ReadDir(v.root)
	if err != nil {
		return nil, fmt.Errorf("--host-path-root: %w", err)
	}
	for _, e := range entries {
		if hostpath.IsMarker(e.Name()) {
			continue
		}
		v.folders = append(v.folders, e.Name())
	}
	claims := &corev1.PersistentVolumeClaimList{}
	if err := a.client.List(ctx, claims); err != nil {
		return nil, fmt.Errorf("listing claims: %w", err)
	}
	for i := range claims.Items {
		v.claims[claims.Items[i].UID] = true
	}
	return v, nil
}

// judgeHostPath lists the volumes of tarn.dev/host-path and the directories of its root.
func (v *auditView) judgeHostPath() {
	if v.hostPath == nil {
		return
	}
	there := map[string]bool{}
	for _, entry := range v.hostPath.folders {
		name, going := hostpath.VolumeOf(entry)
		there[name] = true
		item := auditItem{Kind: "Folder", Name: filepath.Join(v.hostPath.root, entry), Volume: name, Provisioner: hostpath.Provisioner, Node: "this machine"}
		uid := strings.TrimPrefix(name, "pvc-") // as provisioners name the volumes of claims
		switch {
		case isFolder(v.volumes[name]) && going:
			item.State = "being deleted"
		case isFolder(v.volumes[name]):
		case v.hostPath.claims[types.UID(uid)]:
			item.State = "being created or removed"
		default:
			item.Orphaned = "no PersistentVolume and no claim uses it: a volume with policy Retain was deleted, or one was deleted by force; check its content, then remove it by hand"
		}
		v.items = append(v.items, item)
	}
	for name, vol := range v.volumes {
		if !isFolder(vol) {
			continue
		}
		item := auditItem{Kind: "PersistentVolume", Name: name, Volume: name, Provisioner: hostpath.Provisioner, State: string(vol.Status.Phase)}
		if l := vol.Spec.Local; l != nil && l.Path == filepath.Join(v.hostPath.root, name) && !there[name] && vol.DeletionTimestamp == nil {
			item.Orphaned = l.Path + " is missing, so pods that use the volume do not start; restore the directory, or delete the claim"
		}
		v.items = append(v.items, item)
	}
}

// isFolder says whether a volume, which may be nil, belongs to tarn.dev/host-path.
func isFolder(vol *corev1.PersistentVolume) bool {
	return vol != nil && vol.Annotations[volume.AnnProvisionedBy] == hostpath.Provisioner
}
