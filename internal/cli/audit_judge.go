package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// annProvisionedBy is Kubernetes' own annotation: it names the provisioner of a PersistentVolume.
const annProvisionedBy = "pv.kubernetes.io/provisioned-by"

// auditView is what was read of a cluster and a node at one time.
type auditView struct {
	provisioners map[string]bool
	nodes        map[string]bool
	records      map[types.UID]*tarnv1.PavVolume
	stages       map[types.UID]*tarnv1.PavStage
	pods         map[types.UID]*corev1.Pod       // those that Tarn has created
	claims       []*corev1.PersistentVolumeClaim // those that Tarn has made for volumes
	volumes      map[string]*corev1.PersistentVolume
	recordNames  map[string]bool
	folders      []nodeFolder
	mounts       []nodeMount
	hostPath     *hostPathView
	items        []auditItem
}

// gather reads the node before the API. So the owner of whatever the node has must have been in the
// API already.
func (a *audit) gather(ctx context.Context) (*auditView, error) {
	v := &auditView{
		provisioners: map[string]bool{}, nodes: map[string]bool{}, recordNames: map[string]bool{},
		records: map[types.UID]*tarnv1.PavVolume{}, stages: map[types.UID]*tarnv1.PavStage{},
		pods: map[types.UID]*corev1.Pod{}, volumes: map[string]*corev1.PersistentVolume{},
	}
	if a.node != nil {
		var err error
		if v.folders, v.mounts, err = a.node.read(); err != nil {
			return nil, err
		}
	}
	var err error
	if v.hostPath, err = a.gatherHostPath(ctx); err != nil {
		return nil, err
	}
	for _, list := range []client.ObjectList{
		&corev1.PodList{}, &tarnv1.PavStageList{}, &tarnv1.PavVolumeList{}, &corev1.PersistentVolumeList{}, &pavv1.PavProvisionerList{}, &corev1.NodeList{},
		&corev1.PersistentVolumeClaimList{},
	} {
		var options []client.ListOption
		if _, pods := list.(*corev1.PodList); pods {
			options = append(options, client.HasLabels{tarnv1.LabelStep})
		}
		if _, claims := list.(*corev1.PersistentVolumeClaimList); claims {
			options = append(options, client.HasLabels{tarnv1.LabelRecord})
		}
		if err := a.client.List(ctx, list, options...); err != nil {
			return nil, fmt.Errorf("listing %T: %w", list, err)
		}
		for _, o := range objectsOf(list) {
			v.take(o)
		}
	}
	return v, nil
}

func (v *auditView) take(o client.Object) {
	switch o := o.(type) {
	case *corev1.Pod:
		v.pods[o.UID] = o
	case *tarnv1.PavStage:
		v.stages[o.UID] = o
	case *tarnv1.PavVolume:
		v.records[o.UID] = o
		v.recordNames[o.Name] = true
	case *corev1.PersistentVolume:
		v.volumes[o.Name] = o
	case *pavv1.PavProvisioner:
		v.provisioners[o.Name] = true
	case *corev1.Node:
		v.nodes[o.Name] = true
	case *corev1.PersistentVolumeClaim:
		v.claims = append(v.claims, o)
	}
}

// kindOrder is the order in which the parts of a volume are created.
var kindOrder = []string{"PavVolume", "PersistentVolume", "PersistentVolumeClaim", "PavStage", "Pod", "Folder", "Mount"}

// judge lists the items of one provisioner by volume, or of all provisioners if the name is empty.
// It also says whether an item is orphaned. An orphan without any sign of its provisioner may
// belong to any of them, so it is listed for each.
func (v *auditView) judge(provisioner string) (items []auditItem, orphaned bool) {
	v.items = nil
	for _, r := range v.records {
		v.judgeRecord(r)
	}
	for _, vol := range v.volumes {
		v.judgeVolume(vol)
	}
	for _, claim := range v.claims {
		v.judgeClaim(claim)
	}
	for _, g := range v.stages {
		v.judgeStage(g)
	}
	for _, pod := range v.pods {
		v.judgePod(pod)
	}
	for _, f := range v.folders {
		v.judgeFolder(f)
	}
	for _, m := range v.mounts {
		v.judgeMount(m)
	}
	v.judgeHostPath()
	items = []auditItem{}
	for _, i := range v.items {
		if nobodys := i.Provisioner == "" && i.Orphaned != ""; provisioner == "" || i.Provisioner == provisioner || nobodys {
			items = append(items, i)
			orphaned = orphaned || i.Orphaned != ""
		}
	}
	slices.SortFunc(items, func(a, b auditItem) int {
		return cmp.Or(cmp.Compare(a.Volume, b.Volume), cmp.Compare(slices.Index(kindOrder, a.Kind), slices.Index(kindOrder, b.Kind)),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return items, orphaned
}

func (v *auditView) judgeRecord(r *tarnv1.PavVolume) {
	item := auditItem{Kind: "PavVolume", Name: r.Name, Volume: r.Name, Provisioner: r.Spec.Provisioner.Name, State: cmp.Or(string(r.Status.Phase), "new")}
	if e := r.Status.LastError; e != nil && r.Status.Phase != tarnv1.VolumeCreated {
		item.State += ", last failure " + e.Reason
	}
	handedOver := r.Status.Phase == tarnv1.VolumeCreated && meta.IsStatusConditionTrue(r.Status.Conditions, tarnv1.ConditionProvisioned)
	if v.volumes[r.Name] == nil && handedOver && r.DeletionTimestamp == nil {
		item.Orphaned = "its PersistentVolume is gone, but its storage is not; kubectl delete pavvolume " + r.Name + " destroys it"
	}
	v.items = append(v.items, item)
}

func (v *auditView) judgeVolume(vol *corev1.PersistentVolume) {
	source := vol.Spec.CSI
	if source == nil || !v.provisioners[source.Driver] && !v.recordNames[vol.Name] {
		return // not a volume of a PavProvisioner
	}
	item := auditItem{Kind: "PersistentVolume", Name: vol.Name, Volume: vol.Name, Provisioner: source.Driver, State: string(vol.Status.Phase)}
	if vol.Annotations[annProvisionedBy] == source.Driver && !v.recordNames[vol.Name] && vol.DeletionTimestamp == nil {
		item.Orphaned = "it was made dynamically and has no PavVolume, so Tarn will not remove its storage (handle " + source.VolumeHandle + "); remove that by hand, then the PersistentVolume"
	}
	v.items = append(v.items, item)
}

func (v *auditView) judgeClaim(claim *corev1.PersistentVolumeClaim) {
	item := auditItem{
		Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, Volume: claim.Labels[tarnv1.LabelVolume],
		Provisioner: claim.Labels[tarnv1.LabelProvisioner], State: string(claim.Status.Phase),
	}
	switch {
	case claim.DeletionTimestamp != nil:
		item.State += ", ending"
	case v.records[types.UID(claim.Labels[tarnv1.LabelRecord])] == nil:
		item.Orphaned = fmt.Sprintf("the PavVolume it was made for is gone, and its data is kept; to delete that: kubectl label pvc -n %s %s %s- && kubectl delete pvc -n %s %s",
			claim.Namespace, claim.Name, tarnv1.LabelDeletionProtection, claim.Namespace, claim.Name)
	}
	v.items = append(v.items, item)
}

func (v *auditView) judgeStage(g *tarnv1.PavStage) {
	item := auditItem{
		Kind: "PavStage", Name: g.Name, Volume: g.Spec.VolumeName, Provisioner: g.Spec.Provisioner.Name, Node: g.Spec.NodeName,
		State: cmp.Or(string(g.Status.Node.Phase), "new"),
	}
	vol := v.volumes[g.Spec.VolumeName]
	switch {
	case !v.nodes[g.Spec.NodeName]:
		item.Orphaned = "its node is gone, so Tarn cannot unmount it; if the machine is off for good, remove finalizer " + tarnv1.FinalizerStageNode
	case g.DeletionTimestamp != nil:
		item.State += ", ending"
	case vol == nil || vol.UID != g.Spec.VolumeUID:
		item.Orphaned = "its PersistentVolume is gone; delete the pods that use it, or kubectl delete pavstage " + g.Name
	}
	v.items = append(v.items, item)
}

func (v *auditView) judgePod(pod *corev1.Pod) {
	item := auditItem{
		Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, Volume: pod.Labels[tarnv1.LabelVolume],
		Provisioner: pod.Labels[tarnv1.LabelProvisioner], Node: pod.Spec.NodeName,
		State: pod.Labels[tarnv1.LabelStep] + " " + string(pod.Status.Phase),
	}
	record, stage := types.UID(pod.Labels[tarnv1.LabelRecord]), types.UID(pod.Labels[tarnv1.LabelStage])
	switch {
	case pod.DeletionTimestamp != nil:
		item.State += ", ending"
	case v.records[record] != nil, v.stages[stage] != nil:
	case pod.Labels[tarnv1.LabelPoolUID] != "": // a filler pod, which its set accounts for
	case v.isVolume(types.UID(pod.Labels[tarnv1.LabelScrub])): // it scrubs that
	default:
		item.Orphaned = fmt.Sprintf("the PavVolume, PavStage or PersistentVolume it was made for is gone; kubectl delete pod -n %s %s", pod.Namespace, pod.Name)
	}
	v.items = append(v.items, item)
}

func (v *auditView) isVolume(uid types.UID) bool {
	for _, vol := range v.volumes {
		if vol.UID == uid {
			return true
		}
	}
	return false
}

func (v *auditView) judgeFolder(f nodeFolder) {
	item := auditItem{Kind: "Folder", Name: f.path, Node: "this machine"}
	const remedy = "; the node agent removes it when it restarts"
	switch f.of {
	case ofStage:
		item.State = "stage"
		v.ofStage(&item, types.UID(f.id), "the PavStage it was made for is gone"+remedy)
	case ofPod:
		item.State = "/pav of a pod"
		if pod := v.pods[types.UID(f.id)]; pod != nil {
			item.Volume, item.Provisioner, item.Node = pod.Labels[tarnv1.LabelVolume], pod.Labels[tarnv1.LabelProvisioner], pod.Spec.NodeName
		} else {
			item.Orphaned = f.madeFor() + " is gone" + remedy
		}
	case ofDriver:
		item.State, item.Provisioner = "driver", f.id
		if f.id == tarnv1.ResultsDriver || v.provisioners[f.id] || v.isStaged(f.id) {
			break
		}
		item.Orphaned = "there is no PavProvisioner " + f.id + remedy
	default:
		item.Orphaned = "the node agent does not make such a directory; find out what it is"
	}
	v.items = append(v.items, item)
}

// madeFor names the pod that a directory was made for.
func (f nodeFolder) madeFor() string {
	if f.pod == "" {
		return "the pod it was made for"
	}
	return fmt.Sprintf("the pod it was made for, %s (uid %s),", f.pod, f.id)
}

// ofStage copies volume, provisioner and node from the item's stage. If the stage is gone, the item
// is orphaned, with gone as the reason.
func (v *auditView) ofStage(item *auditItem, uid types.UID, gone string) {
	g := v.stages[uid]
	if g == nil {
		item.Orphaned = gone
		return
	}
	item.Volume, item.Provisioner, item.Node = g.Spec.VolumeName, g.Spec.Provisioner.Name, g.Spec.NodeName
}

func (v *auditView) isStaged(provisioner string) bool {
	for _, g := range v.stages {
		if g.Spec.Provisioner.Name == provisioner {
			return true
		}
	}
	return false
}

// judgeMount finds the owner of a mount by its source, by its path, or by a stage that has recorded
// its target. A mount of one of Tarn's volumes that no stage has recorded is orphaned, whatever its
// source is.
func (v *auditView) judgeMount(m nodeMount) {
	item := auditItem{Kind: "Mount", Name: m.point, Node: "this machine"}
	const gone = "the PavStage it was made for is gone; unmount it"
	switch vol := v.volumes[m.volume]; {
	case m.stage != "":
		v.ofStage(&item, types.UID(m.stage), gone)
	case v.target(m.point) != "":
		v.ofStage(&item, v.target(m.point), gone)
	case m.pod != "":
		if pod := v.pods[types.UID(m.pod)]; pod != nil {
			item.Volume, item.Provisioner, item.Node = pod.Labels[tarnv1.LabelVolume], pod.Labels[tarnv1.LabelProvisioner], pod.Spec.NodeName
		} else {
			item.Orphaned = "the pod it was made for is gone; unmount it"
		}
	case m.ours:
		item.Orphaned = "it is in the node agent's directory and belongs to nothing; unmount it"
	case vol != nil && vol.Spec.CSI != nil && v.provisioners[vol.Spec.CSI.Driver]:
		item.Volume, item.Provisioner, item.Orphaned = m.volume, vol.Spec.CSI.Driver, "no PavStage has this target; delete the pod that uses it, or unmount it"
	default:
		return // another driver's
	}
	v.items = append(v.items, item)
}

// target returns the stage that has recorded a target, empty if none has.
func (v *auditView) target(point string) types.UID {
	for uid, g := range v.stages {
		if slices.Contains(g.Status.Node.Targets, point) {
			return uid
		}
	}
	return ""
}
