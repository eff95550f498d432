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

// aheadLook is when the controller reconciles a waiting stage, or one begun ahead, if no event
// arrives. It is only a safety net.
const aheadLook = 15 * time.Second

// ahead begins stages before the kubelet asks for their volumes. The kubelet accepts a pod and
// reports that at once, but its own loops ask for the volumes a quarter of a second later. The
// stage begins in between. It does not begin earlier: a pod that its kubelet rejects may be on
// another node the next moment, and its volume must not be on both.
//
// It is only a head start. Each pod is handled once, and errors are left to the kubelet's call.
// The stage itself is handled by Reconciler, like any other.
type ahead struct {
	client client.Client
	pods   client.Reader
}

// registerAhead adds ahead to a manager. pods is a cache of all pods of the cluster.
func (r *Reconciler) registerAhead(mgr ctrl.Manager, pods cache.Cache, concurrent int) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("stage-ahead").
		WatchesRawSource(source.Kind[client.Object](pods, &corev1.Pod{}, &handler.EnqueueRequestForObject{}, takenOn())).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrent, RateLimiter: kube.RateLimiter()}).
		Complete(&ahead{client: r.client, pods: pods})
}

// takenOn passes the event by which a kubelet accepts a pod that uses claims. It skips pods
// that existed when the controller started: their kubelet has already asked, or is about to.
func takenOn() predicate.Funcs {
	return updates(func(old, current *corev1.Pod) bool {
		return (old.Status.StartTime == nil || old.UID != current.UID) && awaitsVolumes(current)
	})
}

// awaitsVolumes reports whether the kubelet has accepted a pod, will ask for its volumes, and
// has started none of its containers.
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

// begin creates the stage of a pod's volume, if it may begin ahead.
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

// aheadView is all that a decision to begin a stage ahead depends on, as the caches have it. A
// nil object does not exist.
type aheadView struct {
	Pod         *corev1.Pod
	ReadOnly    bool // the pod only reads the volume
	Claim       *corev1.PersistentVolumeClaim
	Volume      *corev1.PersistentVolume
	Provisioner *pavv1.PavProvisioner
	Node        *storagev1.CSINode
	// Staged reports whether the volume has a stage on any node.
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

// planAhead returns the stage to begin; nil if the controller should wait for the kubelet's
// call. It begins no stage that the kubelet's call would reject, or would find already there.
func planAhead(v aheadView) *tarnv1.PavStage {
	switch {
	case v.Claim == nil, v.Volume == nil, v.Provisioner == nil, v.Node == nil, v.Staged,
		!volume.Uses(v.Pod, v.Claim),
		v.ReadOnly && !volume.OnlyRead(v.Volume),                                  // the node agent decides which stage such a pod gets
		v.Volume.Annotations[tarnv1.AnnotationRecord] == "",                       // written by hand: its unstaging needs the claim, and a pod that has nothing to unmount does not keep the claim
		v.Volume.Spec.CSI != nil && v.Volume.Spec.CSI.NodePublishSecretRef != nil, // only the kubelet's call has the Secret
		v.Claim.Status.Phase != corev1.ClaimBound, v.Claim.DeletionTimestamp != nil,
		v.Volume.DeletionTimestamp != nil, v.Volume.Spec.ClaimRef == nil, v.Volume.Spec.ClaimRef.UID != v.Claim.UID,
		v.Provisioner.DeletionTimestamp != nil, acceptance(v.Provisioner) != string(metav1.ConditionTrue):
		return nil
	}
	serves := func(d storagev1.CSINodeDriver) bool { return d.Name == v.Provisioner.Name }
	if !slices.ContainsFunc(v.Node.Spec.Drivers, serves) {
		return nil // no node agent of Tarn runs there to handle it
	}
	stage := tarnv1.NewStage(tarnv1.ProvisionerReference{Name: v.Provisioner.Name, UID: v.Provisioner.UID}, v.Volume.Name, v.Volume.UID, v.Pod.Spec.NodeName, volume.OnlyRead(v.Volume))
	stage.Spec.AheadFor = &tarnv1.StageConsumer{Namespace: v.Pod.Namespace, Name: v.Pod.Name, UID: v.Pod.UID}
	return stage
}

// forsaken reports whether the kubelet will not ask for a stage that was begun ahead. Its pod
// is gone, is ending, or runs without it. While the pod waits, the kubelet will ask, even if
// only once the node agent is back.
func (r *Reconciler) forsaken(ctx context.Context, stage *tarnv1.PavStage) (bool, error) {
	if !stage.Awaited() || stage.DeletionTimestamp != nil {
		return false, nil
	}
	if r.pods == nil {
		return true, nil // begun by an earlier controller process that had a cache of pods
	}
	who := stage.Spec.AheadFor
	pod, err := kube.Get(ctx, r.pods, client.ObjectKey{Namespace: who.Namespace, Name: who.Name}, &corev1.Pod{})
	return err == nil && (pod == nil || pod.UID != who.UID || ends(pod) || volume.Started(pod)), err
}

func ends(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil || volume.Ended(pod) }

// elsewhere finds other stages of the same volume that are on other nodes. It reads from the
// API server, so that the later of two stages sees the earlier. A stage begun ahead may end
// before its kubelet asks. The successor of its pod may then already be on this node, and the
// volume must not be on both. A stage begun ahead gives way to any other stage.
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
		case !s.Awaited(), !sent && s.DeletionTimestamp != nil: // a deleted stage that has sent no pod never begins
		case !sent:
			v.Unsent = append(v.Unsent, *s)
		default:
			v.Awaited = fmt.Sprintf(tarnv1.StageWaits+"%s, which was staged ahead for pod %s/%s on node %s", s.Name, s.Spec.AheadFor.Namespace, s.Spec.AheadFor.Name, s.Spec.NodeName)
		}
	}
	return nil
}

// unanswered reports whether the node agent has written nothing to a stage that was begun
// ahead. No pod starts before it has. Otherwise, on a node without an agent, the pod would wait
// for its directory and the stage for its finalizer.
func unanswered(stage *tarnv1.PavStage) bool {
	return stage.Awaited() && stage.Status.Node.Phase == ""
}

// mounts reports whether a container of a pod mounts a claim, and all that do use its volume
// mode. The kubelet asks for no other claim.
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

// lookAhead is when to reconcile a stage that was begun ahead; zero for other stages.
func lookAhead(stage *tarnv1.PavStage, now time.Time) time.Time {
	if stage == nil || !stage.Awaited() || stage.DeletionTimestamp != nil {
		return time.Time{}
	}
	return now.Add(aheadLook)
}
