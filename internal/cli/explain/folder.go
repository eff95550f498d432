package explain

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// hostPath is the provisioner inside Tarn's own controller, whose volumes are directories.
const hostPath = "tarn.dev/host-path"

// ofHostPath says whether that provisioner creates, or has created, a claim's volume.
func ofHostPath(c *claimView) bool { return provisionerOf(c.Claim, c.Class) == hostPath }

// byHostPath is about a claim for which the provisioner inside Tarn's controller was called. It has
// not reported an error.
func (s *story) byHostPath(c *claimView, o Object) {
	since := writtenAt(c.Claim)
	switch {
	case slices.Contains(c.Claim.Finalizers, tarnv1.FinalizerInProcess): // it marks a claim that it has begun
		link := s.add(Link{Object: o, State: "at work", Next: "when the directory is created, which takes longer on a slow disk"})
		if e := newest(c.Events, "Provisioning"); e != nil {
			link.Since, link.Message = moment(lastSeen(e)), e.Message
		}
		s.atWork("its volume", "is being made by "+o.Name, "is being made by "+o.Name, since)
	case s.young(since):
		s.add(Link{Object: o, State: "called", Next: "within moments"})
		s.controllerSilent("provisioner "+o.Name+" has to make its volume", since)
	default:
		s.add(Link{Object: o, State: "silent", Message: "it is part of tarn controller and works only if that runs with --host-path-root", Next: "when tarn controller runs with --host-path-root"})
		s.blame("provisioner %s has not started", o.Name)
		s.controllerSilent("", since)
	}
}

// refusedByHostPath reports a claim for which this provisioner never creates a volume, and says
// whether it is one. told is the Event that reported it, nil for none. The reasons are checked
// again here, because most of these fields cannot be changed in an existing claim.
func (s *story) refusedByHostPath(c *claimView, o Object, told *corev1.Event) bool {
	claim := c.Claim
	if c.Class.Provisioner != hostPath { // the class was created again after the claim
		return false
	}
	link, size := Link{Object: o, State: "refuses"}, volume.Request(claim)
	if told != nil {
		link.Since, link.Reason = moment(lastSeen(told)), told.Reason
	}
	refuses := func(what, field, kind, patch, how string) bool {
		l := s.add(link)
		l.Message = "the existing claim's " + field + " cannot be changed"
		l.Next = "when the claim is created again " + how + ": no retry can succeed"
		s.blame("provisioner %s makes no volume %s, which %s of the claim requests", hostPath, what, field)
		s.anew(c, l, kind, patch, how)
		return true
	}
	switch attributes := volume.AttributesClassOf(claim); {
	case volume.ForPopulator(claim):
		s.populated(c)
		return true
	case volume.HasSource(claim):
		return refuses("from a data source", "spec.dataSource", "json", removal(claim), "without it")
	case claim.Spec.Selector != nil:
		return refuses("for a selector", "spec.selector", "json", `[{"op":"remove","path":"/spec/selector"}]`, "without it")
	case attributes != "":
		return refuses("of a VolumeAttributesClass", fmt.Sprintf("spec.volumeAttributesClassName %q", attributes), "json", `[{"op":"remove","path":"/spec/volumeAttributesClassName"}]`, "without it")
	case len(c.Class.MountOptions) > 0:
		l := s.add(link)
		l.Message, l.Next = "it supports none", "when mountOptions of StorageClass "+c.Class.Name+" are removed"
		l.Command, l.offer = kubectl("", "patch", "storageclass", c.Class.Name, "--type=json", "-p", `[{"op":"remove","path":"/mountOptions"}]`), "the command removes them from the class"
		s.blame("provisioner %s makes no volume with mount options, and StorageClass %s has mountOptions %q", hostPath, c.Class.Name, c.Class.MountOptions)
		return true
	case size.CmpInt64(math.MaxInt64) > 0:
		l := s.add(link)
		l.Message, l.Next = "a volume has at most "+strconv.Itoa(math.MaxInt64)+" bytes", "when the claim is created again with a smaller request: no retry can succeed"
		s.blame("provisioner %s makes no volume as large as spec.resources.requests.storage %s of the claim", hostPath, size.String())
		return true
	case volume.ModeOf(claim) != corev1.PersistentVolumeFilesystem:
		return refuses("other than directories", fmt.Sprintf("spec.volumeMode %s", volume.ModeOf(claim)), "merge", `{"spec":{"volumeMode":"Filesystem"}}`, "with volumeMode Filesystem")
	}
	return s.refusesParameters(c, link)
}

// refusesParameters reports a class whose parameters are for another provisioner, and says whether
// it is one.
func (s *story) refusesParameters(c *claimView, link Link) bool {
	var has, patch []string
	for _, name := range slices.Sorted(maps.Keys(c.Class.Parameters)) {
		if name == tarnv1.AnnotationRetention { // the trash's retention is allowed for every provisioner
			continue
		}
		has = append(has, fmt.Sprintf("%s=%q", name, c.Class.Parameters[name]))
		patch = append(patch, fmt.Sprintf(`{"op":"remove","path":%q}`, "/parameters/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(name)))
	}
	if len(has) == 0 {
		return false
	}
	l, class := s.add(link), Object{Kind: storageClass, Name: c.Class.Name}
	l.Message = "it supports none, and those of an existing class cannot be changed"
	l.Next = "when StorageClass " + class.Name + " is created again without them: no retry can succeed"
	l.Command, l.offer = replacing(class, "storageclass", "json", "["+strings.Join(patch, ",")+"]"), "the command creates the class again without them; its claims and volumes are not affected"
	s.blame("provisioner %s makes no volume with parameters, and StorageClass %s has %s", hostPath, class.Name, join(has))
	return true
}

// lostFolder is about a claim whose volume, a directory, was removed by force. The directory stays
// on its node when the PersistentVolume is deleted.
func (s *story) lostFolder(c *claimView, link *Link) {
	name := c.Claim.Spec.VolumeName
	if beside := c.besideFolder(); beside != nil {
		at := filepath.Join(filepath.Dir(beside.Spec.Local.Path), name)
		if manifest, err := lostFolderVolume(c, beside); err == nil {
			link.Message = fmt.Sprintf("%s made it, as directory %s on node %s if it is beside its other volumes; its data may still be there; if it is not, create it again from a backup",
				hostPath, at, beside.Annotations[tarnv1.AnnotationNode])
			if s.giveUp(c, link); link.Command != "" {
				link.Message += ", or delete the claim: " + link.Command
			}
			link.offer = "the command creates the PersistentVolume again, for this claim alone, always with policy Retain"
			link.Command = "kubectl create -f - <<'EOF'\n" + manifest + "EOF"
			return
		}
	}
	root := rootOf(s.view.Deployment)
	if root == "" {
		root = "ROOT"
	}
	size := volume.Request(c.Claim)
	link.Message = fmt.Sprintf("%s made it as a directory, and its data may still be in %s/%s on the node of tarn controller", hostPath, root, name)
	if root == "ROOT" {
		link.Message += ", where ROOT is its --host-path-root (in an embedded cluster /var/lib/tarn-cluster/NAME/host-path)"
	}
	link.Message += fmt.Sprintf("; if it is, create PersistentVolume %s with local.path %s/%s, nodeAffinity to that node by label %s, annotations %s: %s and %s: the node's name, "+
		"capacity %s, accessModes %s, class %s, and claimRef of namespace %s, name %s and uid %s; if it is not, create it again from a backup",
		name, root, name, corev1.LabelHostname, volume.AnnProvisionedBy, hostPath, tarnv1.AnnotationNode,
		size.String(), volume.AccessOf(c.Claim.Spec.AccessModes), volume.ClassOf(c.Claim), c.Object.Namespace, c.Object.Name, c.Claim.UID)
	if s.giveUp(c, link); link.Command != "" {
		link.offer += "; use it only if the data is gone or not needed: an existing directory stays, but no claim or volume records it"
	}
}

// besideFolder returns another volume of the same provisioner, which creates all volumes in one
// root directory on one node. It is nil if there is none, or if they differ in node or root
// directory.
func (c *claimView) besideFolder() *corev1.PersistentVolume {
	var beside *corev1.PersistentVolume
	at := c.Claim.Annotations[volume.AnnSelectedNode]
	for i := range c.Candidates {
		vol := &c.Candidates[i]
		if vol.Annotations[volume.AnnProvisionedBy] != hostPath {
			continue
		}
		on, local := vol.Annotations[tarnv1.AnnotationNode], vol.Spec.Local
		if on == "" || at != "" && on != at || local == nil || filepath.Base(local.Path) != vol.Name || vol.Spec.NodeAffinity == nil ||
			beside != nil && (filepath.Dir(beside.Spec.Local.Path) != filepath.Dir(local.Path) || beside.Annotations[tarnv1.AnnotationPlace] != vol.Annotations[tarnv1.AnnotationPlace]) {
			return nil
		}
		at, beside = on, vol
	}
	return beside
}

// lostFolderVolume returns the manifest of a directory's volume that was removed by force, made
// from its claim and a volume beside it. The former policy is unknown, so the manifest says Retain.
func lostFolderVolume(c *claimView, beside *corev1.PersistentVolume) (string, error) {
	name, size := c.Claim.Spec.VolumeName, volume.Request(c.Claim)
	annotations := map[string]string{volume.AnnProvisionedBy: hostPath, tarnv1.AnnotationNode: beside.Annotations[tarnv1.AnnotationNode]}
	if place := beside.Annotations[tarnv1.AnnotationPlace]; place != "" {
		annotations[tarnv1.AnnotationPlace] = place
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "PersistentVolume", "metadata": map[string]any{"name": name, "annotations": annotations},
		"spec": map[string]any{
			"capacity":    map[string]string{"storage": size.String()},
			"accessModes": c.Claim.Spec.AccessModes, "volumeMode": volume.ModeOf(c.Claim), "storageClassName": volume.ClassOf(c.Claim), "persistentVolumeReclaimPolicy": corev1.PersistentVolumeReclaimRetain,
			"claimRef":     map[string]string{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": c.Object.Namespace, "name": c.Object.Name, "uid": string(c.Claim.UID)},
			"local":        map[string]string{"path": filepath.Join(filepath.Dir(beside.Spec.Local.Path), name)},
			"nodeAffinity": beside.Spec.NodeAffinity,
		},
	})
	return string(text), err
}

// rootOf returns the directory in which Tarn's controller, a Deployment, creates volumes. It is
// empty if the arguments do not say.
func rootOf(d *appsv1.Deployment) string {
	if d == nil {
		return ""
	}
	root := ""
	for i := range d.Spec.Template.Spec.Containers {
		c := &d.Spec.Template.Spec.Containers[i]
		for _, arg := range slices.Concat(c.Command, c.Args) {
			if given, found := strings.CutPrefix(arg, "--host-path-root="); found && given != "" {
				root = filepath.Clean(given) // the last one counts
			}
		}
	}
	return root
}
