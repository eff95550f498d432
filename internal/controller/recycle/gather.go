package recycle

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumes;persistentvolumeclaims;pods,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=volumeattachments,verbs=list;watch
// +kubebuilder:rbac:groups=tarn.dev,resources=pavvolumes,verbs=get;list;watch
// +kubebuilder:rbac:groups=pav.albertofaria.github.io,resources=pavprovisioners,verbs=get;list;watch
// +kubebuilder:rbac:groups=tarn.dev,resources=pavstages;persistentvolumesets,verbs=list;watch

// View is all that a decision about one volume depends on. A nil object does not exist.
type View struct {
	// Namespace and Image are those of scrub pods.
	Namespace, Image string
	// PullSecrets are the names of the Secrets for pulling the image.
	PullSecrets []string
	// OwnBinder means that Kubernetes' own binder, and with it its recycler, is off.
	OwnBinder bool
	Volume    *corev1.PersistentVolume
	// Class is the volume's class, Sets are the sets that select it.
	Class *storagev1.StorageClass
	Sets  []tarnv1.PersistentVolumeSet
	// Claim is the scrub claim, Pod the scrub pod of the volume.
	Claim *corev1.PersistentVolumeClaim
	Pod   *corev1.Pod
	// Record is the volume's record, if a PavProvisioner has made the volume. Provisioner is
	// that PavProvisioner; nil if it is gone.
	Record      *tarnv1.PavVolume
	Provisioner *pavv1.PavProvisioner
	// Work are the provisioner's pods that recycle the volume in this passage, Earlier those of
	// earlier passages. Others are its running pods that do something else with the storage,
	// such as expanding it for a claim that is gone.
	Work, Earlier, Others []corev1.Pod
	// Holder is the claim with the name in the volume's claimRef, whatever its UID; nil if the
	// volume points at its scrub claim.
	Holder *corev1.PersistentVolumeClaim
	// Live means that all this was read from the API server, including Users. Users describe
	// what still uses the volume.
	Live  bool
	Users []string
	// Recyclers are those Users that Kubernetes' binder has created.
	Recyclers []string
	// Taints are the sorted keys of the taints of all nodes; empty if the volume is on a single
	// node.
	Taints []string
}

// gather reads the View of one volume, except its users.
func (r *reconciler) gather(ctx context.Context, from client.Reader, name string) (*View, error) {
	v := &View{Namespace: r.namespace, Image: r.image, PullSecrets: r.secrets, OwnBinder: r.ownBinder}
	var err error
	if v.Volume, err = kube.Get(ctx, from, client.ObjectKey{Name: name}, &corev1.PersistentVolume{}); err != nil || v.Volume == nil {
		return v, err
	}
	if v.Class, err = kube.ClassOf(ctx, from, v.Volume); err != nil {
		return nil, err
	}
	if !v.concerned() {
		return v, nil
	}
	if v.Sets, err = kube.SetsOf(ctx, from, v.Volume); err != nil {
		return nil, err
	}
	own := client.ObjectKey{Namespace: r.namespace, Name: volume.ScrubClaim(v.Volume)}
	if v.Claim, err = kube.Get(ctx, from, own, &corev1.PersistentVolumeClaim{}); err != nil {
		return nil, err
	}
	if v.Pod, err = kube.Get(ctx, from, own, &corev1.Pod{}); err != nil {
		return nil, err
	}
	if err := r.gatherRecord(ctx, from, v); err != nil {
		return nil, err
	}
	if err := r.gatherTaints(ctx, v); err != nil {
		return nil, err
	}
	if ref := v.Volume.Spec.ClaimRef; ref != nil && !v.ours() {
		v.Holder, err = kube.Get(ctx, from, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &corev1.PersistentVolumeClaim{})
	}
	return v, err
}

// gatherTaints always reads from the cache. A taint that the cache does not have yet affects
// only this scrub pod, not the next one.
func (r *reconciler) gatherTaints(ctx context.Context, v *View) error {
	if onOneNode(v.Volume) {
		return nil
	}
	nodes := &corev1.NodeList{}
	if err := r.client.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	for i := range nodes.Items {
		for _, taint := range nodes.Items[i].Spec.Taints {
			v.Taints = append(v.Taints, taint.Key)
		}
	}
	slices.Sort(v.Taints)
	v.Taints = slices.Compact(v.Taints)
	return nil
}

// gatherRecord reads the record, the provisioner and the pods of a volume that a PavProvisioner
// has made.
func (r *reconciler) gatherRecord(ctx context.Context, from client.Reader, v *View) error {
	uid := v.Volume.Annotations[tarnv1.AnnotationRecord]
	if uid == "" {
		return nil
	}
	record, err := kube.Get(ctx, from, client.ObjectKey{Name: v.Volume.Name}, &tarnv1.PavVolume{})
	if err != nil || record == nil || string(record.UID) != uid || record.Status.Phase != tarnv1.VolumeCreated || v.Volume.Spec.CSI == nil {
		return err
	}
	v.Record = record
	p, err := kube.Get(ctx, from, client.ObjectKey{Name: record.Spec.Provisioner.Name}, &pavv1.PavProvisioner{})
	if err != nil {
		return err
	}
	if p != nil && p.UID == record.Spec.Provisioner.UID {
		v.Provisioner = p
	}
	pods := &corev1.PodList{}
	if err := from.List(ctx, pods, client.MatchingLabels{tarnv1.LabelRecord: uid}); err != nil {
		return fmt.Errorf("listing the pods of PavVolume %s: %w", v.Volume.Name, err)
	}
	v.sort(pods.Items)
	return nil
}

// sort assigns the pods of the volume's record to Work, Earlier and Others.
func (v *View) sort(pods []corev1.Pod) {
	for i := range pods {
		switch pod := &pods[i]; {
		case pod.Labels[tarnv1.LabelScrub] != string(v.Volume.UID):
			if steppod.OwnedBy(pod, v.Record.UID) && !steppod.Ended(pod) {
				v.Others = append(v.Others, *pod)
			}
		case v.ours() && pod.Annotations[annClaim] == string(v.Volume.Spec.ClaimRef.UID):
			v.Work = append(v.Work, *pod)
		default:
			v.Earlier = append(v.Earlier, *pod)
		}
	}
}

// gatherLive reads the View from the API server, including the users.
func (r *reconciler) gatherLive(ctx context.Context, name string) (*View, error) {
	v, err := r.gather(ctx, r.reader, name)
	if err != nil || v.Volume == nil {
		return v, err
	}
	v.Live = true
	if err := r.gatherUsers(ctx, v); err != nil {
		return nil, err
	}
	attachments := &storagev1.VolumeAttachmentList{}
	if err := r.reader.List(ctx, attachments); err != nil {
		return nil, fmt.Errorf("listing VolumeAttachments: %w", err)
	}
	for i := range attachments.Items {
		if attached := attachments.Items[i].Spec.Source.PersistentVolumeName; attached != nil && *attached == name {
			v.Users = append(v.Users, "an attachment to node "+attachments.Items[i].Spec.NodeName)
		}
	}
	copying := &tarnv1.PavVolumeList{}
	if err := r.reader.List(ctx, copying, client.MatchingFields{volume.SourceStorage: name}); err != nil {
		return nil, fmt.Errorf("listing the PavVolumes that are made from %s: %w", name, err)
	}
	for i := range copying.Items {
		if volume.Copies(&copying.Items[i]) {
			v.Users = append(v.Users, "volume "+copying.Items[i].Name+", which is being made from it")
		}
	}
	stages := &tarnv1.PavStageList{}
	if err := r.reader.List(ctx, stages); err != nil {
		return nil, fmt.Errorf("listing PavStages: %w", err)
	}
	for i := range stages.Items {
		if stages.Items[i].Spec.VolumeName == name && !stages.Items[i].Void() {
			v.Users = append(v.Users, "stage "+stages.Items[i].Name+" on node "+stages.Items[i].Spec.NodeName)
		}
	}
	return v, nil
}

// gatherUsers finds the claims and pods that may still use the volume. It does not rely on
// claimRef alone. If an edit points claimRef at another claim, the former claim still names the
// volume, even though the binder calls that claim Lost. A claim that was never bound does not
// count: it waits for the volume and gets it after the scrub.
func (r *reconciler) gatherUsers(ctx context.Context, v *View) error {
	naming, err := r.claims.Naming(ctx, v.Volume.Name)
	if err != nil {
		return err
	}
	naming = slices.DeleteFunc(naming, func(c *corev1.PersistentVolumeClaim) bool {
		return c.Namespace == r.namespace && c.Name == volume.ScrubClaim(v.Volume)
	})
	for _, claim := range naming {
		if volume.WasBound(claim) {
			v.Users = append(v.Users, "claim "+claim.Namespace+"/"+claim.Name)
		}
	}
	ref := v.Volume.Spec.ClaimRef
	if v.ours() {
		ref = nil
	}
	pods, err := r.claims.Pods(ctx, ref, naming)
	if err != nil {
		return err
	}
	for i := range pods {
		v.Users = append(v.Users, "pod "+pods[i].Namespace+"/"+pods[i].Name)
	}
	if err := r.gatherRecyclers(ctx, v); err != nil {
		return err
	}
	v.Users = append(v.Users, v.Recyclers...)
	return nil
}

// recyclerPrefix is the prefix of the pod by which Kubernetes' binder recycles a volume. The
// volume's name follows.
const recyclerPrefix = "recycler-for-"

// gatherRecyclers finds that pod. It has the source of the volume and no claim. If the policy
// changes while it runs, it would delete the files of the volume's next user. The binder may
// run it in any namespace, and any user may create a pod of that name. So a pod without the
// source does not count.
func (r *reconciler) gatherRecyclers(ctx context.Context, v *View) error {
	if !kubernetesRecycles(v.Volume) {
		return nil
	}
	pods := &corev1.PodList{}
	if err := r.reader.List(ctx, pods, client.MatchingFields{metav1.ObjectNameField: recyclerPrefix + v.Volume.Name}); err != nil {
		return fmt.Errorf("listing the pods by which Kubernetes recycles volume %s: %w", v.Volume.Name, err)
	}
	for i := range pods.Items {
		if !volume.Ended(&pods.Items[i]) && mounts(&pods.Items[i], &v.Volume.Spec.PersistentVolumeSource) {
			v.Recyclers = append(v.Recyclers, "Kubernetes' recycler, pod "+pods.Items[i].Namespace+"/"+pods.Items[i].Name)
		}
	}
	return nil
}

// mounts reports whether a pod has the directory or export of a volume directly, not through a
// claim.
func mounts(pod *corev1.Pod, source *corev1.PersistentVolumeSource) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		switch {
		case v.HostPath != nil && source.HostPath != nil:
			return v.HostPath.Path == source.HostPath.Path
		case v.NFS != nil && source.NFS != nil:
			return v.NFS.Server == source.NFS.Server && v.NFS.Path == source.NFS.Path
		}
		return false
	})
}
