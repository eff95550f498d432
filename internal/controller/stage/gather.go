package stage

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
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

// doomedClaim returns the UID of the claim of a stage's volume, if the claim is being deleted
// and the stage does not say so yet. The stage tells it to the node agent, which may not read
// claims.
func (r *Reconciler) doomedClaim(ctx context.Context, stage *tarnv1.PavStage) (types.UID, error) {
	if stage.DeletionTimestamp != nil {
		return "", nil
	}
	vol, err := kube.Get(ctx, r.client, client.ObjectKey{Name: stage.Spec.VolumeName}, &corev1.PersistentVolume{})
	if err != nil || vol == nil || vol.UID != stage.Spec.VolumeUID || vol.Spec.ClaimRef == nil {
		return "", err
	}
	ref := vol.Spec.ClaimRef
	claim, err := kube.Get(ctx, r.client, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &corev1.PersistentVolumeClaim{})
	if err != nil || claim == nil || claim.UID != ref.UID || claim.DeletionTimestamp == nil || claim.UID == stage.Status.Pod.ClaimDeleted {
		return "", err
	}
	return claim.UID, nil
}

// leftover returns the validation pod that a crash has left beside the staging pod.
func (r *Reconciler) leftover(ctx context.Context, stage *tarnv1.PavStage) (*corev1.Pod, error) {
	pods := &corev1.PodList{}
	labels := client.MatchingLabels{tarnv1.LabelStage: string(stage.UID), tarnv1.LabelStep: string(tarnv1.StepValidation)}
	if err := r.client.List(ctx, pods, labels); err != nil {
		return nil, fmt.Errorf("listing the validation pods of PavStage %s: %w", stage.Name, err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; steppod.OwnedBy(pod, stage.UID) && client.ObjectKeyFromObject(pod) != podKey(stage) {
			return pod, nil
		}
	}
	return nil, nil
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
