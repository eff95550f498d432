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

// View is all that a decision about one stage depends on. What is nil in it does not
// exist: absence in the cache was checked with the API server.
type View struct {
	// Stage as it stands, nil where it is gone.
	Stage *tarnv1.PavStage
	// Node of the stage.
	Node *corev1.Node
	// Pod that the stage's present situation is about: the staging pod, or the
	// unstaging pod of the current attempt.
	Pod *corev1.Pod

	// Kept is what was observed of the pod where its Events tell what keeps it from starting.
	Kept steppod.Observation

	// Subjects are read where a section may have to be evaluated: see Missing.
	Provisioner *pavv1.PavProvisioner
	Volume      *corev1.PersistentVolume
	// Made says that the volume was made for a claim, not written by an administrator.
	Made  bool
	Claim *corev1.PersistentVolumeClaim
	// Doomed is the uid of the claim where it is being deleted and the stage does not tell it yet.
	Doomed types.UID
	// Dropped says that the stage is Void, and that the node agent had its time to end it.
	Dropped bool
	// Missing says which of the subjects is gone for good, empty if none is.
	Missing string

	// Held says that the stage is to end while the volume is used.
	Held bool
	// Users are the pods by which it is used then, as far as they are known.
	Users []corev1.Pod

	// Leftover is a validation pod that is not needed any more, read where the stage ends.
	Leftover *corev1.Pod

	// Guard is the disruption budget that keeps the staging pod, as the cache has it.
	Guard *policyv1.PodDisruptionBudget
	// Consumers are the pods that use the volume, read where they have to be told
	// of something.
	Consumers []corev1.Pod

	// Rival says which stage of another volume has the same driver and handle and is not
	// unstaged; read where a pod is due that would meet it. Empty for none.
	Rival string

	// Forsaken says that the stage was begun ahead and the kubelet is not going to ask for it.
	Forsaken bool
	// Awaited says which stage of the volume on another node was begun ahead, has or may have
	// something staged, and may end unused; read where a pod is due that would meet it. Empty
	// for none.
	Awaited string
	// Unsent are such stages that have sent no pod; they are ended before one is sent here.
	Unsent []tarnv1.PavStage

	// Validation is the evaluated volumeValidation where it is due, nil where it is not.
	Validation *steppod.Prepared
	// Prepared is the evaluated section of another pod that is due, nil where none is.
	Prepared *steppod.Prepared
	// Unfit says why a section could not be evaluated, or refuses the volume.
	Unfit *steppod.StepError
	// Refused says why the API server did not take the pod that was started.
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

// prepare evaluates the section of the pod that is due. A validation without a pod is
// done with that, and the staging pod is due.
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

// rival looks for a stage, on any node, of another volume that has the same driver and
// handle, and that has or may have something staged. The provisioner could not tell the
// two apart: what the one unstages would be the other's.
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

// readSubjects reads provisioner, volume and claim; starts says that a pod may be
// started for them.
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

// boundClaim gives the claim a volume is bound to, nil if that is gone.
func (r *Reconciler) boundClaim(ctx context.Context, vol *corev1.PersistentVolume) (*corev1.PersistentVolumeClaim, error) {
	ref := vol.Spec.ClaimRef
	if ref == nil {
		return nil, nil
	}
	return find(ctx, r, &corev1.PersistentVolumeClaim{}, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, ref.UID)
}

// liveClaim gives the claim for which a volume may be staged, and says what is Missing
// where no pod of the node uses it, and what has to be Awaited. A volume on its way out
// is staged for nobody: reclaim writes its record before it looks for stages, and the
// stage is there before it looks at the record, so one of the two sees the other. What is
// asked of the API server is asked at once, for a pod waits.
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
		v.Forsaken = true // unstaging rests on the record, as nothing keeps the claim
	case !used && claim.DeletionTimestamp != nil:
		v.Missing = fmt.Sprintf("claim %s/%s is being deleted, and no pod that uses it has ever started on node %q", claim.Namespace, claim.Name, v.Stage.Spec.NodeName)
	case !used:
		v.Missing = fmt.Sprintf("no pod on node %q uses claim %s/%s", v.Stage.Spec.NodeName, claim.Namespace, claim.Name)
	}
	return claim, nil
}

// leaves says whether a volume is being undone or deleted, and whether it has a record, as the
// API server has it.
func (r *Reconciler) leaves(ctx context.Context, vol *corev1.PersistentVolume) (leaves, made bool, err error) {
	record, err := kube.Get(ctx, r.live, client.ObjectKey{Name: vol.Name}, &tarnv1.PavVolume{})
	return record != nil && (record.Status.Phase == tarnv1.VolumeDeleting || record.Status.Phase == tarnv1.VolumeUndoing), record != nil, err
}

// usedOn says whether a pod that has not ended uses a claim on a node. A node agent may
// make stages of its own node for any volume, so that a node that was taken over could
// have all of them brought to it; but where pods go is the scheduler's, and a node cannot
// make pods that use claims. Of a pod that is there the API server knew before the
// kubelet did, so it is looked for live. On a claim that is being deleted no pod is started. A stage that was begun ahead is for one pod, which is
// not to be deleted and mounts the volume.
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

// lastClaim gives the claim for unstaging. A volume outlives its claim and may have to
// be unstaged after it: then the claim as the volume's record keeps it serves, if that
// is the same one.
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

// find reads an object from the cache and, where it is not there as wanted, from the
// API server, since both what is started and what is let go here rest on what does
// not exist. It gives nil where there is no such object, or not with that uid.
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

// findConsumers gives the pods the volume is mounted for. They are not Tarn's, so the
// cache does not have them; that they are asked for is rare.
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
