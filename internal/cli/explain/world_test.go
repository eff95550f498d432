package explain

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// now is the time of all answers in these tests; everything began an hour before.
var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

var began = metav1.NewTime(now.Add(-time.Hour))

func ahead(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(now.Add(d))) }

// world is a claim shop/data of class gold, and what tests change about it. The class's provisioner
// is a PavProvisioner of the same name.
type world struct {
	claim       *corev1.PersistentVolumeClaim
	class       *storagev1.StorageClass
	provisioner *pavv1.PavProvisioner
	record      *tarnv1.PavVolume
	volume      *corev1.PersistentVolume
	pod         *corev1.Pod
	view        *View
	claimView   *claimView
	volumeView  *volumeView
}

// newWorld returns the world, asked about its claim, before any provisioning.
func newWorld() *world {
	w := &world{claim: testkit.Claim("shop", "data", "claim-uid", "gold"), class: testkit.Class("gold"), provisioner: testkit.Provisioner("gold")}
	w.claim.CreationTimestamp = began
	w.claim.Status.Phase = corev1.ClaimPending
	w.volumeView = &volumeView{Name: "pvc-claim-uid", Provisioner: w.provisioner, Driver: &storagev1.CSIDriver{}}
	w.claimView = &claimView{Object: Object{Claim, "shop", "data"}, Claim: w.claim, Class: w.class, Classes: []*storagev1.StorageClass{w.class},
		Provisioners: []pavv1.PavProvisioner{*w.provisioner}, Volume: w.volumeView}
	w.view = &View{Asked: w.claimView.Object, Now: now, Claim: w.claimView, Twice: true, Controller: &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
		HolderIdentity: ptr.To("host-1_a"), LeaseDurationSeconds: ptr.To[int32](15), RenewTime: ptr.To(metav1.NewMicroTime(now.Add(-time.Second))),
	}}}
	return w
}

// recorded adds the record in a phase.
func (w *world) recorded(phase tarnv1.VolumePhase) *world {
	w.record = testkit.Record(w.claim, "gold", phase)
	w.record.CreationTimestamp = began
	w.record.Status.PodNamespace = "default"
	w.volumeView.Record = w.record
	return w
}

// failed gives the record a last failure and the time of the next attempt.
func (w *world) failed(step tarnv1.Step, message string) *world {
	w.record.Status.LastError = &tarnv1.PavVolumeError{Step: step, Reason: "PodFailed", Message: message, Time: began}
	if step != tarnv1.StepDeletion {
		w.provisioned("PodFailed", message)
	}
	w.record.Status.Attempts, w.record.Status.DeletionAttempts = 3, 3
	w.record.Status.NextAttemptTime, w.record.Status.NextDeletionTime = ahead(30*time.Second), ahead(30*time.Second)
	return w
}

// provisioned sets in the record why there is no PersistentVolume yet.
func (w *world) provisioned(reason, message string) *world {
	meta.SetStatusCondition(&w.record.Status.Conditions, metav1.Condition{
		Type: tarnv1.ConditionProvisioned, Status: metav1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: began})
	return w
}

// step adds the pod of the record's step.
func (w *world) step(step tarnv1.Step, changes ...func(*corev1.Pod)) *world {
	pod := somePod("default", "pav-"+string(step), changes...)
	pod.Labels = map[string]string{tarnv1.LabelStep: string(step)}
	if w.record != nil {
		pod.OwnerReferences = []metav1.OwnerReference{{UID: w.record.UID}}
	}
	w.volumeView.Step = &podView{Pod: pod, Log: []string{"the last line"}}
	return w
}

// bound gives the claim its volume.
func (w *world) bound() *world {
	w.recorded(tarnv1.VolumeCreated)
	w.record.Status.Handle, w.record.Status.Capacity = "handle", 1<<30
	w.record.Status.Conditions = []metav1.Condition{{Type: tarnv1.ConditionProvisioned, Status: metav1.ConditionTrue}}
	w.volume = testkit.Volume(w.record)
	w.volume.CreationTimestamp, w.volume.Spec.StorageClassName = began, "gold"
	w.volume.Annotations = map[string]string{volume.AnnProvisionedBy: "gold", tarnv1.AnnotationRecord: string(w.record.UID)}
	w.volumeView.Volume, w.volumeView.Claim = w.volume, w.claim
	w.claim.Spec.VolumeName, w.claim.Status.Phase = w.volume.Name, corev1.ClaimBound
	w.claim.Annotations[volume.AnnBindCompleted] = volume.AnnYes
	w.claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	return w
}

// askedVolume asks about the volume.
func (w *world) askedVolume() *world {
	w.view.Asked, w.view.Claim, w.view.Volume = Object{Volume, "", w.volumeView.Name}, nil, w.volumeView
	return w
}

// askedPod asks about a pod shop/web on node n1 that uses the claim.
func (w *world) askedPod(changes ...func(*corev1.Pod)) *world {
	w.pod = somePod("shop", "web", changes...)
	w.view.Asked, w.view.Claim, w.view.Claims = Object{Pod, "shop", "web"}, nil, []*claimView{w.claimView}
	w.view.Pod = &podView{Pod: w.pod, Drivers: []string{"gold"}}
	w.claimView.Users = []user{{Pod: w.pod}}
	return w
}

// staged adds the volume's stage on node n1.
func (w *world) staged(change func(*tarnv1.PavStage)) *world {
	stage := &tarnv1.PavStage{
		ObjectMeta: metav1.ObjectMeta{Name: "stage-1", UID: "stage-uid", CreationTimestamp: began},
		Spec:       tarnv1.PavStageSpec{VolumeName: "pvc-claim-uid", NodeName: "n1", Provisioner: tarnv1.ProvisionerReference{Name: "gold"}},
	}
	stage.Status.Node.Phase = tarnv1.StageStaged
	change(stage)
	w.volumeView.Stages = append(w.volumeView.Stages, stageView{Stage: stage})
	return w
}

// stagePod gives the stage its pod.
func (w *world) stagePod(changes ...func(*corev1.Pod)) *world {
	pod := somePod("default", "pav-staging", changes...)
	pod.Labels = map[string]string{tarnv1.LabelStep: string(tarnv1.StepStaging)}
	pod.OwnerReferences = []metav1.OwnerReference{{UID: "stage-uid"}}
	w.volumeView.Stages[0].Pod = &podView{Pod: pod}
	return w
}

// nearest sets the nearest volume as read and unused.
func (w *world) nearest() {
	if vol, _ := w.claimView.nearestVolume(); vol != nil {
		w.claimView.Nearest = &volumeView{Name: vol.Name, Volume: vol}
	}
}

// event adds an Event about the claim.
func (w *world) event(kind, reason, message string) *world {
	w.claimView.Events = append(w.claimView.Events, corev1.Event{Type: kind, Reason: reason, Message: message, LastTimestamp: began})
	return w
}

// somePod returns a pod on node n1 that names the claim data.
func somePod(namespace, name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "pod-uid", CreationTimestamp: began}}
	pod.Spec.NodeName = "n1"
	pod.Spec.Volumes = []corev1.Volume{{Name: "d", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	pod.Status.Phase = corev1.PodPending
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func unscheduled(pod *corev1.Pod) {
	pod.Spec.NodeName = ""
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes fit"}}
}

func runs(pod *corev1.Pod) {
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: began}}}}
}

func stops(pod *corev1.Pod) {
	pod.Status.Phase, pod.Status.Conditions = corev1.PodFailed, nil
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 143}}}}
}

func waits(reason, message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
	}
}

func deadline(seconds int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = &seconds }
}

// freeVolume returns an unused volume of class gold.
func freeVolume(name, size string, changes ...func(*corev1.PersistentVolume)) corev1.PersistentVolume {
	vol := corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: "gold",
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
	}}
	vol.Status.Phase = corev1.VolumeAvailable
	for _, change := range changes {
		change(&vol)
	}
	return vol
}
