package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"tarn.dev/tarn/internal/plugin/hostpath"
	"tarn.dev/tarn/internal/volume"
)

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
