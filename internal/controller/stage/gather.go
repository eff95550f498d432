package stage

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// View is all that a decision about one stage depends on. A nil object does not exist: its
// absence from the cache was confirmed with the API server.
type View struct {
	// Stage is the object; nil if it is gone.
	Stage *tarnv1.PavStage
	// Node is the node of the stage.
	Node *corev1.Node
	// Pod is the pod of the stage's situation: the staging pod, or the unstaging pod of the
	// current attempt.
	Pod *corev1.Pod

	// Kept is what was observed of the pod, if its Events say what keeps it from starting.
	Kept steppod.Observation

	// The subjects are read if a section may have to be evaluated: see Missing.
	Provisioner *pavv1.PavProvisioner
	Volume      *corev1.PersistentVolume
	// Made means that the volume was made for a claim, not written by an administrator.
	Made  bool
	Claim *corev1.PersistentVolumeClaim
	// Doomed is the UID of the claim, if the claim is being deleted and the stage does not say
	// so yet.
	Doomed types.UID
	// Dropped means that the stage is Void and that the node agent's time to end it is over.
	Dropped bool
	// Missing says which of the subjects is gone for good; empty if none is.
	Missing string

	// Held means that the stage is being deleted while the volume is used.
	Held bool
	// Users are the pods known to use the volume then.
	Users []corev1.Pod

	// Leftover is a validation pod that is no longer needed, read when the stage ends.
	Leftover *corev1.Pod

	// Guard is the disruption budget that keeps the staging pod, as the cache has it.
	Guard *policyv1.PodDisruptionBudget
	// Consumers are the pods that use the volume, read if they must be told something.
	Consumers []corev1.Pod

	// Rival names a stage of another volume that has the same driver and handle and is not
	// unstaged; empty for none. It is read before a pod that would conflict with it is created.
	Rival string

	// Forsaken means that the stage was begun ahead and the kubelet will not ask for it.
	Forsaken bool
	// Awaited names a stage of the same volume on another node that was begun ahead and may end
	// unused. It has or may have something staged. It is read before a pod that would conflict
	// with it is created; empty for none.
	Awaited string
	// Unsent are such stages that have sent no pod. They are ended before a pod is sent here.
	Unsent []tarnv1.PavStage

	// Validation is the evaluated volumeValidation; nil if it is not due.
	Validation *steppod.Prepared
	// Prepared is the evaluated section of another pod that is due; nil if none is.
	Prepared *steppod.Prepared
	// Unfit says why a section could not be evaluated, or why it rejects the volume.
	Unfit *steppod.StepError
	// Refused says why the API server rejected the pod that was started.
	Refused *steppod.StepError
}

// +kubebuilder:rbac:groups=tarn.dev,resources=pavstages;pavvolumes,verbs=get;list;watch
// +kubebuilder:rbac:groups=pav.albertofaria.github.io,resources=pavprovisioners,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumes;persistentvolumeclaims;nodes;pods,verbs=get;list;watch

// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=list;watch

func (r *Reconciler) gather(ctx context.Context, name string, now time.Time) (View, error) {
	stage := &tarnv1.PavStage{}
	if err := r.client.Get(ctx, client.ObjectKey{Name: name}, stage); err != nil {
		return View{}, client.IgnoreNotFound(err)
	}
	v := View{Stage: stage, Dropped: stage.Void() && !now.Before(dropAt(stage))}
	var err error
	if v.Node, err = find(ctx, r, &corev1.Node{}, client.ObjectKey{Name: stage.Spec.NodeName}, ""); err != nil {
		return View{}, err
	}
	if v.Forsaken, err = r.forsaken(ctx, stage); v.Forsaken || err != nil {
		return v, err
	}
	if key := podKey(stage); key.Name != "" {
		if v.Pod, err = find(ctx, r, &corev1.Pod{}, key, ""); err != nil {
			return View{}, err
		}
		if v.Pod != nil {
			if v.Kept, err = r.steps.Unmounted(ctx, v.Pod, steppod.Observe(v.Pod, stage.UID, now), now); err != nil {
				return View{}, err
			}
		}
	}
	if namespace := stage.Status.Pod.Namespace; namespace != "" {
		v.Guard, err = kube.Get(ctx, r.client, client.ObjectKey{Namespace: namespace, Name: guardName(stage)}, &policyv1.PodDisruptionBudget{})
		if err != nil {
			return View{}, err
		}
	}
	if situationOf(stage) == stop {
		if v.Held, v.Users, err = r.users(ctx, v); err != nil {
			return View{}, err
		}
		if v.Leftover, err = r.leftover(ctx, stage); err != nil {
			return View{}, err
		}
	}
	if v.Doomed, err = r.doomedClaim(ctx, stage); v.Doomed != "" || err != nil {
		return v, err
	}
	if somethingToTell(stage) {
		v.Consumers, err = r.findConsumers(ctx, stage)
		return v, err
	}
	if len(tellStaging(v)) > 0 { // the claim is told, too
		err = r.readClaim(ctx, &v)
		return v, err
	}
	if s := situationOf(stage); !mayEvaluate(s) || s == begin && unanswered(stage) {
		return v, nil
	}
	if err := r.readSubjects(ctx, &v, mayStart(v, now)); err != nil {
		return View{}, err
	}
	if step, attempt := due(v, now); step != "" && v.Missing == "" && v.Awaited == "" && !v.Forsaken {
		if err := r.prepare(ctx, &v, step, attempt); err != nil {
			return View{}, err
		}
	}
	return v, nil
}

// prepare evaluates the section of the pod that is due. A validation without a pod ends there,
// and the staging pod is due.
func (r *Reconciler) prepare(ctx context.Context, v *View, step tarnv1.Step, attempt int32) error {
	var err error
	if first := step != tarnv1.StepStaging || attempt == firstAttempt; first {
		if v.Rival, err = r.rival(ctx, v.Volume); err != nil {
			return err
		}
	}
	if step == tarnv1.StepValidation {
		if v.Validation, err = r.steps.PrepareStatic(ctx, v.Provisioner, v.Stage, v.Volume, v.Claim); err == nil && v.Validation.Pod == nil {
			step = tarnv1.StepStaging
		}
	}
	if err == nil && step != tarnv1.StepValidation {
		v.Prepared, err = r.steps.PrepareStage(ctx, step, v.Provisioner, v.Stage, v.Volume, v.Claim, v.Node, attempt)
	}
	if v.Unfit = steppod.AsStepError(err); v.Unfit == nil {
		return err
	}
	return nil
}

// rival finds a stage, on any node, of another volume with the same driver and handle that has
// or may have something staged. The provisioner could not tell the two volumes apart, so
// unstaging one would unstage the other.
func (r *Reconciler) rival(ctx context.Context, vol *corev1.PersistentVolume) (string, error) {
	others, err := r.handles.Volumes(ctx, vol.Spec.CSI.Driver, vol.Spec.CSI.VolumeHandle, vol.Name)
	if err != nil {
		return "", err
	}
	for _, other := range others {
		stages := &tarnv1.PavStageList{}
		if err := r.live.List(ctx, stages, client.MatchingFields{"spec.volumeName": other}); err != nil {
			return "", fmt.Errorf("listing the stages of volume %s: %w", other, err)
		}
		for i := range stages.Items {
			if s := &stages.Items[i]; s.Status.Pod.Staged && s.Status.Pod.Phase != tarnv1.StagePodUnstaged {
				return fmt.Sprintf("PersistentVolume %q, which is staged on node %q, has the same driver %q and volumeHandle %q",
					other, s.Spec.NodeName, vol.Spec.CSI.Driver, vol.Spec.CSI.VolumeHandle), nil
			}
		}
	}
	return "", nil
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
// A volume that is being deleted is not staged. The reclaim controller writes its record before
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

// find reads an object from the cache and, if it is not there as wanted, from the API server.
// The controller starts pods and removes finalizers on the absence of objects, which a cache
// cannot prove. find returns nil if no such object exists, or none with that UID.
func find[O client.Object](ctx context.Context, r *Reconciler, into O, key client.ObjectKey, uid types.UID) (O, error) {
	var none O
	for _, from := range []client.Reader{r.client, r.live} {
		err := from.Get(ctx, key, into)
		if err == nil && (uid == "" || into.GetUID() == uid) {
			return into, nil
		}
		if client.IgnoreNotFound(err) != nil {
			return none, fmt.Errorf("reading %T %s: %w", into, key, err)
		}
	}
	return none, nil
}

// findConsumers returns the pods that the volume is mounted for. They are not Tarn's, so the
// cache does not have them; they are rarely needed.
func (r *Reconciler) findConsumers(ctx context.Context, stage *tarnv1.PavStage) ([]corev1.Pod, error) {
	wanted := map[types.UID]bool{}
	for _, target := range stage.Status.Node.Targets {
		wanted[tarnv1.PodOfTarget(target)] = true
	}
	var list corev1.PodList
	if err := r.live.List(ctx, &list, client.MatchingFields{"spec.nodeName": stage.Spec.NodeName}); err != nil {
		return nil, fmt.Errorf("listing the pods of node %s: %w", stage.Spec.NodeName, err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !wanted[p.UID] }), nil
}
