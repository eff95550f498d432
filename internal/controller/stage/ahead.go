package stage

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// aheadLook is when a stage that waits for another, or was begun ahead, is looked at though no
// event tells: a net.
const aheadLook = 15 * time.Second

// ahead begins stages before the kubelet asks for their volumes. By its own loops that is
// a quarter of a second after it has taken a pod on, in which nothing is done; but it tells
// at once that it has. Not before that: a pod that the kubelet refuses may be on another node
// the next moment, and its volume must not be on both.
//
// It is but a head start. Each pod is looked at once, what goes wrong is left to the kubelet's
// call, and all else about the stage is the same reconciler's.
type ahead struct {
	client client.Client
	pods   client.Reader
}

// registerAhead adds it to a manager; pods are all of the cluster.
func (r *Reconciler) registerAhead(mgr ctrl.Manager, pods cache.Cache, concurrent int) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("stage-ahead").
		WatchesRawSource(source.Kind[client.Object](pods, &corev1.Pod{}, &handler.EnqueueRequestForObject{}, takenOn())).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrent, RateLimiter: kube.RateLimiter()}).
		Complete(&ahead{client: r.client, pods: pods})
}

// takenOn lets pass that a kubelet has taken on a pod that uses claims. Of those that were
// there when the controller started the kubelet has asked, or is about to.
func takenOn() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			old, ok := e.ObjectOld.(*corev1.Pod)
			current, ok2 := e.ObjectNew.(*corev1.Pod)
			return ok && ok2 && (old.Status.StartTime == nil || old.UID != current.UID) && awaitsVolumes(current)
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// awaitsVolumes says that a pod's kubelet has taken it on, will ask for its volumes, and has
// started nothing of it.
func awaitsVolumes(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.StartTime != nil && pod.Status.Phase == corev1.PodPending &&
		pod.DeletionTimestamp == nil && len(volume.ClaimsOfPod(pod)) > 0 && !volume.Started(pod)
}

// Reconcile begins the stages of one pod's volumes. It never fails: what cannot be read or
// written is left to the kubelet's call.
func (a *ahead) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	pod, err := kube.Get(ctx, a.pods, req.NamespacedName, &corev1.Pod{})
	if err != nil {
		log.FromContext(ctx).V(1).Info("the volumes of a pod cannot be staged ahead; they are staged when the kubelet asks", "because", err.Error())
	}
	if pod == nil || !awaitsVolumes(pod) {
		return reconcile.Result{}, nil
	}
	for i := range pod.Spec.Volumes {
		if err := a.begin(ctx, pod, &pod.Spec.Volumes[i]); err != nil {
			log.FromContext(ctx).V(1).Info("a volume cannot be staged ahead; it is staged when the kubelet asks", "volume", pod.Spec.Volumes[i].Name, "because", err.Error())
		}
	}
	return reconcile.Result{}, nil
}

// +kubebuilder:rbac:groups=tarn.dev,resources=pavstages,verbs=create
// +kubebuilder:rbac:groups=storage.k8s.io,resources=csinodes,verbs=list;watch

// begin makes the stage of a pod's volume, where that is one to begin.
func (a *ahead) begin(ctx context.Context, pod *corev1.Pod, from *corev1.Volume) error {
	v, err := a.gather(ctx, pod, from)
	if err != nil {
		return err
	}
	stage := planAhead(v)
	if stage == nil {
		return nil
	}
	if err := a.client.Create(ctx, stage); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating PavStage %s: %w", stage.Name, err)
	}
	return nil
}

// aheadView is all that beginning a stage ahead depends on, as the caches have it. What is
// not there is nil.
type aheadView struct {
	Pod         *corev1.Pod
	ReadOnly    bool // the pod only reads the volume
	Claim       *corev1.PersistentVolumeClaim
	Volume      *corev1.PersistentVolume
	Provisioner *pavv1.PavProvisioner
	Node        *storagev1.CSINode
	// Staged says that the volume has a stage, on whatever node.
	Staged bool
}

func (a *ahead) gather(ctx context.Context, pod *corev1.Pod, from *corev1.Volume) (aheadView, error) {
	v := aheadView{Pod: pod}
	name := volume.ClaimOf(pod, from)
	if name == "" {
		return v, nil
	}
	v.ReadOnly = from.PersistentVolumeClaim != nil && from.PersistentVolumeClaim.ReadOnly
	var err error
	if v.Claim, err = kube.Get(ctx, a.client, client.ObjectKey{Namespace: pod.Namespace, Name: name}, &corev1.PersistentVolumeClaim{}); err != nil || v.Claim == nil || v.Claim.Spec.VolumeName == "" {
		return v, err
	}
	if v.Volume, err = kube.Get(ctx, a.client, client.ObjectKey{Name: v.Claim.Spec.VolumeName}, &corev1.PersistentVolume{}); err != nil || v.Volume == nil || v.Volume.Spec.CSI == nil {
		return v, err
	}
	if v.Provisioner, err = kube.Get(ctx, a.client, client.ObjectKey{Name: v.Volume.Spec.CSI.Driver}, &pavv1.PavProvisioner{}); err != nil || v.Provisioner == nil {
		return v, err
	}
	if v.Node, err = kube.Get(ctx, a.client, client.ObjectKey{Name: pod.Spec.NodeName}, &storagev1.CSINode{}); err != nil {
		return v, err
	}
	stages := &tarnv1.PavStageList{}
	err = a.client.List(ctx, stages, client.MatchingFields{byVolume: v.Volume.Name}, client.UnsafeDisableDeepCopy)
	v.Staged = len(stages.Items) > 0
	return v, err
}

// planAhead gives the stage to begin, nil where the kubelet's call is to be waited for: what
// that would be refused, or find there, is not begun.
func planAhead(v aheadView) *tarnv1.PavStage {
	switch {
	case v.Claim == nil, v.Volume == nil, v.Provisioner == nil, v.Node == nil, v.Staged,
		!volume.Uses(v.Pod, v.Claim),
		v.ReadOnly && !volume.OnlyRead(v.Volume),            // the node agent decides which stage that gets
		v.Volume.Annotations[tarnv1.AnnotationRecord] == "", // written by hand: its unstaging needs the claim, which a pod that has nothing to unmount does not keep
		v.Claim.Status.Phase != corev1.ClaimBound, v.Claim.DeletionTimestamp != nil,
		v.Volume.DeletionTimestamp != nil, v.Volume.Spec.ClaimRef == nil, v.Volume.Spec.ClaimRef.UID != v.Claim.UID,
		v.Provisioner.DeletionTimestamp != nil, acceptance(v.Provisioner) != string(metav1.ConditionTrue):
		return nil
	}
	serves := func(d storagev1.CSINodeDriver) bool { return d.Name == v.Provisioner.Name }
	if !slices.ContainsFunc(v.Node.Spec.Drivers, serves) {
		return nil // no node agent of ours is there to see to it
	}
	stage := tarnv1.NewStage(tarnv1.ProvisionerReference{Name: v.Provisioner.Name, UID: v.Provisioner.UID}, v.Volume.Name, v.Volume.UID, v.Pod.Spec.NodeName, volume.OnlyRead(v.Volume))
	stage.Spec.AheadFor = &tarnv1.StageConsumer{Namespace: v.Pod.Namespace, Name: v.Pod.Name, UID: v.Pod.UID}
	return stage
}

// forsaken says that a stage was begun ahead for a pod which is gone, ends, or runs without it,
// so that the kubelet is not going to ask. As long as the pod waits it is, if only when the node
// agent is there again.
func (r *Reconciler) forsaken(ctx context.Context, stage *tarnv1.PavStage) (bool, error) {
	if !stage.Awaited() || stage.DeletionTimestamp != nil {
		return false, nil
	}
	if r.pods == nil {
		return true, nil // it was begun when the controller ran otherwise
	}
	who := stage.Spec.AheadFor
	pod, err := kube.Get(ctx, r.pods, client.ObjectKey{Namespace: who.Namespace, Name: who.Name}, &corev1.Pod{})
	return err == nil && (pod == nil || pod.UID != who.UID || ends(pod) || volume.Started(pod)), err
}

func ends(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil || volume.Ended(pod) }

// elsewhere looks for the stages of a volume for one node on other nodes, live, so that of
// two stages the later sees the earlier. One that was begun ahead may end without its kubelet
// having asked: of a pod that went before, another may be on this node already, and the volume
// must not be on both. One begun ahead itself gives way to any other; it is but a head start.
func (r *Reconciler) elsewhere(ctx context.Context, v *View) error {
	if slices.Contains(v.Volume.Spec.AccessModes, corev1.ReadWriteMany) {
		return nil
	}
	stages := &tarnv1.PavStageList{}
	if err := r.live.List(ctx, stages, client.MatchingFields{"spec.volumeName": v.Stage.Spec.VolumeName}); err != nil {
		return fmt.Errorf("listing the stages of volume %s: %w", v.Stage.Spec.VolumeName, err)
	}
	for i := range stages.Items {
		s := &stages.Items[i]
		sent := s.Status.Pod.Staged && s.Status.Pod.Phase != tarnv1.StagePodUnstaged
		switch {
		case s.Spec.NodeName == v.Stage.Spec.NodeName:
		case v.Stage.Awaited():
			v.Forsaken = true
		case !s.Awaited(), !sent && s.DeletionTimestamp != nil: // the latter never begins any more
		case !sent:
			v.Unsent = append(v.Unsent, *s)
		default:
			v.Awaited = fmt.Sprintf(tarnv1.StageWaits+"%s, which was staged ahead for pod %s/%s on node %s", s.Name, s.Spec.AheadFor.Namespace, s.Spec.AheadFor.Name, s.Spec.NodeName)
		}
	}
	return nil
}

// unanswered says of a stage that was begun ahead that its node agent has not written a word.
// No pod is sent before: it would wait for its folder, and its stage for somebody who lets it
// go, on a node from which the agent was taken.
func unanswered(stage *tarnv1.PavStage) bool {
	return stage.Awaited() && stage.Status.Node.Phase == ""
}

// mounts says whether a container of a pod mounts a claim, and all that do in its volume mode.
// The kubelet asks for no other.
func mounts(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	names := map[string]bool{}
	for i := range pod.Spec.Volumes {
		if volume.ClaimOf(pod, &pod.Spec.Volumes[i]) == claim.Name {
			names[pod.Spec.Volumes[i].Name] = true
		}
	}
	var mounted, devices bool
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		mounted = mounted || slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return names[m.Name] })
		devices = devices || slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return names[d.Name] })
	}
	block := volume.ModeOf(claim) == corev1.PersistentVolumeBlock
	return mounted == !block && devices == block
}

func consumerOf(stage *tarnv1.PavStage) string {
	if stage.Spec.AheadFor == nil {
		return ""
	}
	return string(stage.Spec.AheadFor.UID)
}

// podEnding lets pass that a pod is gone or ends.
func podEnding() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			pod, ok := e.ObjectNew.(*corev1.Pod)
			return ok && (ends(pod) || e.ObjectOld.GetUID() != pod.UID) // one may be another's successor
		},
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// stagesFor enqueues the stages that were begun ahead for a pod.
func (r *Reconciler) stagesFor() handler.EventHandler {
	return r.enqueue(byConsumer, func(o client.Object) string { return string(o.GetUID()) })
}

// lookAhead is when a stage that was begun ahead is looked at again; zero for others.
func lookAhead(stage *tarnv1.PavStage, now time.Time) time.Time {
	if stage == nil || !stage.Awaited() || stage.DeletionTimestamp != nil {
		return time.Time{}
	}
	return now.Add(aheadLook)
}

// siblings enqueues the stages of a stage's volume.
func (r *Reconciler) siblings() handler.EventHandler {
	return r.enqueue(byVolume, func(o client.Object) string { return o.(*tarnv1.PavStage).Spec.VolumeName })
}

// awaitedNoMore lets pass that a stage which was begun ahead is gone, or that the kubelet has
// asked for it: stages on other nodes may wait for that.
func awaitedNoMore() predicate.Predicate {
	awaited := func(o client.Object) bool {
		stage, ok := o.(*tarnv1.PavStage)
		return ok && stage.Awaited()
	}
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(e event.UpdateEvent) bool { return awaited(e.ObjectOld) && !awaited(e.ObjectNew) },
		DeleteFunc:  func(e event.DeleteEvent) bool { return awaited(e.Object) },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
