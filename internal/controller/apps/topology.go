package apps

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appplan "tarn.dev/tarn/internal/app/plan"
	appspec "tarn.dev/tarn/internal/app/spec"
)

// topologyKey is the key of the topology in the ConfigMap.
const topologyKey = "volumes.json"

// topology lists the volumes that were deployed, and which of them are still mounted. The end
// of an App goes by it.
type topology struct {
	Volumes []deployedVolume `json:"volumes"`
}

// deployedVolume is one deployed volume.
type deployedVolume struct {
	Name      string `json:"name"`
	ClaimName string `json:"claimName"`
	// MountPath is empty for a volume that is detached.
	MountPath        string                            `json:"mountPath,omitempty"`
	SizeGi           int64                             `json:"sizeGi"`
	AccessMode       corev1.PersistentVolumeAccessMode `json:"accessMode"`
	StorageClass     string                            `json:"storageClass"`
	PreserveOnDelete bool                              `json:"preserveOnDelete"`
}

// readTopology reads a ConfigMap. It returns an empty topology for invalid content: the
// topology is then built again from the spec and the claims.
func readTopology(config *corev1.ConfigMap) topology {
	var t topology
	if json.Unmarshal([]byte(config.Data[topologyKey]), &t) != nil {
		return topology{}
	}
	return t
}

// text is the topology in the form of the ConfigMap.
func (t topology) text() string {
	text, err := json.MarshalIndent(t, "", "  ")
	if err != nil { // impossible: the type has no channels and functions
		return ""
	}
	return string(text)
}

// says reports whether a ConfigMap holds a topology, in any layout.
func says(config *corev1.ConfigMap, t topology) bool { return readTopology(config).text() == t.text() }

// mounts reports whether a volume is mounted.
func (t topology) mounts(name string) bool {
	return slices.ContainsFunc(t.Volumes, func(d deployedVolume) bool { return d.Name == name && d.MountPath != "" })
}

// topologyOf lists the volumes that the spec mounts, in its order, and then the detached claims
// by name.
func topologyOf(v *View) topology {
	t := topology{Volumes: []deployedVolume{}}
	for i := range v.App.Spec.Volumes {
		volume := &v.App.Spec.Volumes[i]
		d := deployedVolume{
			Name: volume.Name, ClaimName: appspec.ClaimName(v.App.Name, volume.Name), MountPath: volume.MountPath,
			SizeGi: volume.SizeGi, AccessMode: v.mode(volume), StorageClass: v.world().ClassName(*volume), PreserveOnDelete: volume.PreserveOnDelete,
		}
		if claim := v.claim(volume.Name); claim != nil {
			d.StorageClass = appplan.ClassOf(claim)
		}
		t.Volumes = append(t.Volumes, d)
	}
	for _, claim := range v.detached() {
		t.Volumes = append(t.Volumes, deployedVolume{
			Name: claim.Labels[tarnv1.LabelAppVolume], ClaimName: claim.Name, SizeGi: inGi(requested(claim)),
			AccessMode: appplan.ModeOf(claim), StorageClass: appplan.ClassOf(claim), PreserveOnDelete: preserved(claim),
		})
	}
	return t
}

// topologyLeft is the topology of an App whose ConfigMap was gone before its end began. With a
// foreground deletion, the garbage collector deletes owned objects at once. The topology then
// lists the claims whose annotation says that they were made for this very App.
func topologyLeft(v *View) topology {
	var t topology
	for _, name := range slices.Sorted(maps.Keys(v.Claims)) {
		claim := v.Claims[name]
		volume := claim.Labels[tarnv1.LabelAppVolume]
		if v.claim(volume) == claim && v.madeFor(claim) {
			t.Volumes = append(t.Volumes, deployedVolume{Name: volume, ClaimName: name, PreserveOnDelete: preserved(claim)})
		}
	}
	return t
}

// madeFor reports whether a claim was made for this very App, and not for another of that name.
func (v *View) madeFor(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Annotations[tarnv1.AnnotationMadeFor] == string(v.App.UID)
}

// detached are the App's deployed claims that its spec no longer names, by name. A claim
// restored from the trash after an earlier App has the labels and the name too. It is not this
// App's to delete.
func (v *View) detached() []*corev1.PersistentVolumeClaim {
	var claims []*corev1.PersistentVolumeClaim
	for _, claim := range v.Claims {
		name := claim.Labels[tarnv1.LabelAppVolume]
		was := v.madeFor(claim) || slices.ContainsFunc(v.Deployed.Volumes, func(d deployedVolume) bool { return d.ClaimName == claim.Name })
		wanted := slices.ContainsFunc(v.App.Spec.Volumes, func(volume tarnv1.AppVolume) bool { return volume.Name == name })
		if was && !wanted && v.claim(name) == claim {
			claims = append(claims, claim)
		}
	}
	slices.SortFunc(claims, func(a, b *corev1.PersistentVolumeClaim) int { return cmp.Compare(a.Name, b.Name) })
	return claims
}

func preserved(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Annotations[tarnv1.AnnotationPreserve] == preserveYes
}
