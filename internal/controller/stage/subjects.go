package stage

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// Verdicts on whether a provisioner may be used for a new stage.
const (
	usable  = ""
	unknown = "unknown"
)

// verdict says whether a new stage may begin: usable, unknown if the provisioner was not judged
// yet, or else the cause and the remedy.
func verdict(v View) string {
	if v.Missing != "" {
		return v.Missing + "; a volume can be staged only while its PavProvisioner, PersistentVolume and claim exist"
	}
	p := v.Provisioner
	if p.DeletionTimestamp != nil {
		return fmt.Sprintf("PavProvisioner %q is being deleted and stages no more volumes; create it again once it is gone", p.Name)
	}
	c := meta.FindStatusCondition(p.Status.Conditions, pavv1.ConditionAccepted)
	switch {
	case c == nil:
		return unknown
	case c.Status != metav1.ConditionTrue:
		return fmt.Sprintf("PavProvisioner %q is not accepted (%s): %s; correct it", p.Name, c.Reason, c.Message)
	case !v.Made && !slices.Contains(p.Spec.ProvisioningModes, pavv1.ModeStatic):
		return notStatic(v)
	}
	return usable
}

// notStatic says why a volume that was not made for a claim is not staged: its provisioner
// serves only volumes made for claims.
func notStatic(v View) string {
	of := "was written by hand"
	if v.Volume.Annotations[tarnv1.AnnotationRecord] != "" {
		of = "has no PavVolume (it may have been restored from a backup), so it counts as written by hand"
	}
	return fmt.Sprintf("PersistentVolume %q %s, and PavProvisioner %q does not have Static in spec.provisioningModes; add it", v.Volume.Name, of, v.Provisioner.Name)
}

// readSubjects reads provisioner, volume and claim. starts means that a pod may be started for
// them.
func (r *Reconciler) readSubjects(ctx context.Context, v *View, starts bool) error {
	spec := v.Stage.Spec
	if !v.Stage.NamedForItsSpec() {
		v.Missing = fmt.Sprintf("metadata.name %q is not derived from volume, node and readOnly of the spec, as that of a stage is", v.Stage.Name)
		return nil
	}
	var err error
	v.Provisioner, err = find(ctx, r, &pavv1.PavProvisioner{}, client.ObjectKey{Name: spec.Provisioner.Name}, spec.Provisioner.UID)
	if err != nil {
		return err
	}
	if v.Provisioner == nil {
		v.Missing = fmt.Sprintf("PavProvisioner %q is gone", spec.Provisioner.Name)
	}
	v.Volume, err = find(ctx, r, &corev1.PersistentVolume{}, client.ObjectKey{Name: spec.VolumeName}, spec.VolumeUID)
	switch {
	case err != nil:
		return err
	case v.Volume == nil:
		v.Missing = fmt.Sprintf("PersistentVolume %q is gone", spec.VolumeName)
		return nil
	case v.Volume.Spec.CSI == nil:
		v.Missing = fmt.Sprintf("PersistentVolume %q is not a CSI volume", spec.VolumeName)
		return nil
	case v.Volume.Spec.CSI.Driver != spec.Provisioner.Name:
		v.Missing = fmt.Sprintf("PersistentVolume %q is of driver %q, not of PavProvisioner %q", spec.VolumeName, v.Volume.Spec.CSI.Driver, spec.Provisioner.Name)
		return nil
	}
	if v.Made, err = r.made(ctx, v.Volume); err != nil {
		return err
	}
	switch {
	case situationOf(v.Stage) == unstage:
		v.Claim, err = r.lastClaim(ctx, v.Volume)
	case starts:
		v.Claim, err = r.liveClaim(ctx, v)
	default:
		v.Claim, err = r.boundClaim(ctx, v.Volume)
	}
	if err != nil {
		return err
	}
	if v.Claim == nil && v.Missing == "" {
		v.Missing = fmt.Sprintf("the claim of PersistentVolume %q is gone", spec.VolumeName)
	}
	return nil
}

// boundClaim returns the claim that a volume is bound to; nil if it is gone.
func (r *Reconciler) boundClaim(ctx context.Context, vol *corev1.PersistentVolume) (*corev1.PersistentVolumeClaim, error) {
	ref := vol.Spec.ClaimRef
	if ref == nil {
		return nil, nil
	}
	return find(ctx, r, &corev1.PersistentVolumeClaim{}, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, ref.UID)
}

// readClaim reads the claim of the stage's volume, if both exist.
func (r *Reconciler) readClaim(ctx context.Context, v *View) error {
	spec := v.Stage.Spec
	vol, err := find(ctx, r, &corev1.PersistentVolume{}, client.ObjectKey{Name: spec.VolumeName}, spec.VolumeUID)
	if err == nil && vol != nil {
		v.Claim, err = r.boundClaim(ctx, vol)
	}
	return err
}

// liveClaim returns the claim for which a volume may be staged. It sets Missing if no pod of
// the node uses the claim, and sets Awaited.
//
// A volume that is being deleted is not staged. Controller pavvolume writes its record before
// it looks for stages. The stage exists before liveClaim reads the record. So one of the two
// sees the other. All requests to the API server run at once, because a pod waits.
func (r *Reconciler) liveClaim(ctx context.Context, v *View) (*corev1.PersistentVolumeClaim, error) {
	claim, err := r.boundClaim(ctx, v.Volume)
	if err != nil {
		return nil, err
	}
	var leaves, made bool
	used := true
	reads, asking := errgroup.WithContext(ctx)
	reads.Go(func() (err error) {
		leaves, made, err = r.leaves(asking, v.Volume)
		return err
	})
	if claim != nil {
		reads.Go(func() (err error) {
			used, err = r.usedOn(asking, v.Stage, claim)
			return err
		})
	}
	if s := situationOf(v.Stage); s == begin || s == validate {
		reads.Go(func() (err error) {
			return r.elsewhere(asking, v)
		})
	}
	if err := reads.Wait(); err != nil {
		return nil, err
	}
	switch {
	case leaves:
		v.Missing = fmt.Sprintf("PersistentVolume %q is being deleted", v.Volume.Name)
		return nil, nil
	case v.Stage.Awaited() && !(used && made):
		v.Forsaken = true // nothing keeps the claim, so unstaging needs the record
	case !used && claim.DeletionTimestamp != nil:
		v.Missing = fmt.Sprintf("claim %s/%s is being deleted, and no pod that uses it has ever started on node %q", claim.Namespace, claim.Name, v.Stage.Spec.NodeName)
	case !used:
		v.Missing = fmt.Sprintf("no pod on node %q uses claim %s/%s", v.Stage.Spec.NodeName, claim.Namespace, claim.Name)
	}
	return claim, nil
}

// leaves reports whether the API server has the volume as being undone or deleted, and whether
// the volume has a record.
func (r *Reconciler) leaves(ctx context.Context, vol *corev1.PersistentVolume) (leaves, made bool, err error) {
	record, err := kube.Get(ctx, r.live, client.ObjectKey{Name: vol.Name}, &tarnv1.PavVolume{})
	return record != nil && (record.Status.Phase == tarnv1.VolumeDeleting || record.Status.Phase == tarnv1.VolumeUndoing), record != nil, err
}

// usedOn reports whether a pod that has not ended uses a claim on a node.
//
// A node agent may create stages of its own node for any volume. Without this check, an
// attacker who controls a node could have every volume brought to it. But the scheduler places
// pods, and a node cannot create pods that use claims. The API server knows a pod before its
// kubelet does, so usedOn reads from the API server.
//
// No pod starts with a claim that is being deleted. A stage begun ahead is for one pod, which
// must not be deleted and must mount the volume.
func (r *Reconciler) usedOn(ctx context.Context, stage *tarnv1.PavStage, claim *corev1.PersistentVolumeClaim) (bool, error) {
	node := stage.Spec.NodeName
	pods := &corev1.PodList{}
	if err := r.live.List(ctx, pods, client.InNamespace(claim.Namespace), client.MatchingFields{"spec.nodeName": node}); err != nil {
		return false, fmt.Errorf("listing the pods of node %s in namespace %s: %w", node, claim.Namespace, err)
	}
	return slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
		is := volume.Uses(&p, claim) && !volume.Ended(&p) && (claim.DeletionTimestamp == nil || volume.Started(&p))
		if stage.Awaited() {
			is = is && p.UID == stage.Spec.AheadFor.UID && p.DeletionTimestamp == nil && mounts(&p, claim)
		}
		return is
	}), nil
}

// lastClaim returns the claim for unstaging. A volume may outlive its claim and be unstaged
// after it. Then lastClaim returns the claim saved in the volume's record, if it is the same
// claim.
func (r *Reconciler) lastClaim(ctx context.Context, vol *corev1.PersistentVolume) (*corev1.PersistentVolumeClaim, error) {
	ref := vol.Spec.ClaimRef
	claim, err := r.boundClaim(ctx, vol)
	if err != nil || claim != nil {
		return claim, err
	}
	record, err := find(ctx, r, &tarnv1.PavVolume{}, client.ObjectKey{Name: vol.Name}, "")
	if err != nil || record == nil {
		return nil, err
	}
	if ref != nil && ref.UID != "" && ref.UID != record.Spec.Claim.UID {
		return nil, nil
	}
	claim = &corev1.PersistentVolumeClaim{}
	if err := json.Unmarshal(record.Spec.ClaimSnapshot.Raw, claim); err != nil {
		return nil, fmt.Errorf("reading claimSnapshot of PavVolume %s: %w", record.Name, err)
	}
	return claim, nil
}

// made reports whether a volume was made for a claim rather than written by an administrator.
// The volume's own annotations do not prove that, because a restored or copied volume has them
// too. Its record proves it, or the mark that tarn uninstall leaves when it removes the record.
func (r *Reconciler) made(ctx context.Context, vol *corev1.PersistentVolume) (bool, error) {
	uid := types.UID(vol.Annotations[tarnv1.AnnotationRecord])
	switch {
	case uid == "":
		return false, nil
	case vol.Annotations[tarnv1.AnnotationKept] == string(vol.UID):
		return true, nil
	}
	record, err := find(ctx, r, &tarnv1.PavVolume{}, client.ObjectKey{Name: vol.Name}, uid)
	return record != nil, err
}
