package status

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// now is the time of all answers in these tests.
var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// moment and hour are a moment and an hour before now.
var (
	moment = metav1.NewTime(now.Add(-time.Second))
	hour   = metav1.NewTime(now.Add(-time.Hour))
)

// world returns a healthy cluster. It has a claim shop/data, bound to a volume of PavProvisioner
// gold that is staged on node n1. It also has a pool and an app.
func world() *View {
	claim := testkit.Claim("shop", "data", "claim-uid", "gold")
	claim.CreationTimestamp, claim.Status.Phase = hour, corev1.ClaimBound
	record := testkit.Record(claim, "gold", tarnv1.VolumeCreated)
	vol := testkit.Volume(record)
	ready := func(reason string) []metav1.Condition {
		return []metav1.Condition{{Type: tarnv1.ConditionReady, Status: metav1.ConditionTrue, Reason: reason, LastTransitionTime: hour}}
	}
	v := &View{Now: now, System: "tarn-system", Lease: &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
		HolderIdentity: ptr.To("host-1"), LeaseDurationSeconds: ptr.To[int32](4), RenewTime: ptr.To(metav1.NewMicroTime(moment.Time)),
	}}}
	v.Claims.Items = []corev1.PersistentVolumeClaim{*claim}
	v.Classes.Items = []storagev1.StorageClass{*testkit.Class("gold")}
	v.Provisioners.Items = []pavv1.PavProvisioner{*testkit.Provisioner("gold")}
	v.Records.Items = []tarnv1.PavVolume{*record}
	v.Volumes.Items = []corev1.PersistentVolume{*vol}
	v.Nodes.Items = []storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: tarnv1.ResultsDriver}}}}}
	v.Stages.Items = []tarnv1.PavStage{{
		ObjectMeta: metav1.ObjectMeta{Name: "stage-1", CreationTimestamp: hour},
		Spec:       tarnv1.PavStageSpec{VolumeName: vol.Name, NodeName: "n1"},
		Status:     tarnv1.PavStageStatus{Node: tarnv1.PavStageNodeStatus{Phase: tarnv1.StageStaged}},
	}}
	v.Pools.Items = []tarnv1.PersistentVolumeSet{{
		ObjectMeta: metav1.ObjectMeta{Name: "fast", CreationTimestamp: hour},
		Spec:       tarnv1.PersistentVolumeSetSpec{MinimumReplicas: 2, MaximumReplicas: 5},
		Status:     tarnv1.PersistentVolumeSetStatus{UnboundReplicas: 2, BoundReplicas: 1, Conditions: ready("Enough")},
	}}
	v.Apps.Items = []tarnv1.App{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", CreationTimestamp: hour},
		Spec:       tarnv1.AppSpec{Image: "web:1", Replicas: ptr.To[int32](1), Volumes: []tarnv1.AppVolume{{Name: "data"}}},
		Status:     tarnv1.AppStatus{ReadyReplicas: 1, Conditions: ready(tarnv1.ReasonReady)},
	}}
	return v
}

// failedStaging adds the Event about a staging for claim shop/data that failed a while ago.
func failedStaging(v *View, stage string, ago time.Duration) {
	v.Failed.Items = append(v.Failed.Items, corev1.Event{
		Reason: stagingFailed, Message: "no loop device", EventTime: metav1.NewMicroTime(v.Now.Add(-ago)),
		InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "shop", Name: "data"},
		Related:        &corev1.ObjectReference{Kind: "PavStage", Name: stage},
	})
}

func notReady(reason string, since metav1.Time) []metav1.Condition {
	return []metav1.Condition{{Type: tarnv1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, Message: "because", LastTransitionTime: since}}
}

// spare adds an unused volume of 2Gi.
func spare(v *View, name string, change func(*corev1.PersistentVolume)) {
	vol := *testkit.Volume(&v.Records.Items[0])
	vol.Name, vol.CreationTimestamp = name, hour
	change(&vol)
	v.Volumes.Items = append(v.Volumes.Items, vol)
}

func inTrash(until time.Time) func(*corev1.PersistentVolume) {
	return func(vol *corev1.PersistentVolume) {
		vol.Status.Phase = corev1.VolumeReleased
		volume.Hold(vol, "1h")
		volume.Trash(vol, until)
	}
}

// problems returns the problems of a report, one per line.
func problems(r *Report) string {
	var lines []string
	for _, p := range r.Problems {
		lines = append(lines, fmt.Sprintf("%s: %s; %s", p.Object, p.Message, p.Command))
	}
	return strings.Join(lines, "\n")
}

func TestWhatIsWrongIsToldWithTheCommandToGoOnWith(t *testing.T) {
	record := func(v *View) *tarnv1.PavVolume { return &v.Records.Items[0] }
	claim := func(v *View) *corev1.PersistentVolumeClaim { return &v.Claims.Items[0] }
	stage := func(v *View) *tarnv1.PavStage { return &v.Stages.Items[0] }
	pending := func(v *View, since metav1.Time) {
		v.Records.Items, v.Volumes.Items, v.Stages.Items = nil, nil, nil
		claim(v).Status.Phase, claim(v).CreationTimestamp = corev1.ClaimPending, since
	}
	waiting := func(v *View) {
		pending(v, hour)
		v.Classes.Items[0].VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
	}
	pod := func(v *View, node string, since metav1.Time, claims ...string) {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", CreationTimestamp: since}, Spec: corev1.PodSpec{NodeName: node}}
		for _, name := range append(claims, "data") {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
		}
		v.Pods.Items = append(v.Pods.Items, p)
	}
	for _, c := range []struct {
		name   string
		change func(v *View)
		want   string
	}{
		{"nothing", func(*View) {}, ""},
		{"no installation", func(v *View) { *v = View{Now: now, Missing: []string{kindApp, kindProvisioner}} }, "CustomResourceDefinition pavprovisioners.pav.albertofaria.github.io: Tarn is not installed in this cluster; docs/operations/install.md says what that needs; helm install tarn charts/tarn"},
		{"a controller that needs no lease", func(v *View) { v.Lease = nil }, ""},
		{"a controller that has ended", func(v *View) { v.Lease.Spec.HolderIdentity = nil }, "Lease tarn-system/tarn-controller: no controller is the leader: the last tarn controller has ended"},
		{"a controller that died", func(v *View) { v.Lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(hour.Time)) }, "no controller is the leader: host-1 last renewed it 60m ago"},
		{"a pod that is not ready", func(v *View) {
			v.Deployments.Items = []appsv1.Deployment{{ObjectMeta: metav1.ObjectMeta{Namespace: "tarn-system", Name: "tarn-api"}, Status: appsv1.DeploymentStatus{ReadyReplicas: 0}}}
		}, "Deployment tarn-system/tarn-api: 0 of 1 pods are ready; kubectl -n tarn-system get pods"},
		{"a node agent nowhere", func(v *View) { v.Nodes.Items[0].Spec.Drivers = nil }, "runs on none of 1 nodes"},
		{"a node without agent beside one that has it", func(v *View) { v.Nodes.Items = append(v.Nodes.Items, storagev1.CSINode{}) }, ""},
		{"a provisioner that is refused", func(v *View) {
			v.Provisioners.Items[0].Status.Conditions[0] = testkit.Accepted(metav1.ConditionFalse, "Invalid", "line 3")
		}, "PavProvisioner gold: it is not accepted: line 3; kubectl describe pavprovisioner gold"},
		{"a provisioner that nobody has judged", func(v *View) { v.Provisioners.Items[0].Generation = 2 }, "no controller has validated its current spec"},
		{"a provisioner that no node serves", func(v *View) {
			p := &v.Provisioners.Items[0]
			p.Status.Conditions = append(p.Status.Conditions, metav1.Condition{Type: pavv1.ConditionReady, Status: metav1.ConditionFalse, Message: "no node serves it", LastTransitionTime: hour})
		}, "PavProvisioner gold: it is not ready: no node serves it; kubectl describe pavprovisioner gold"},
		{"a provisioner that no node serves, as there is no node agent", func(v *View) {
			p := &v.Provisioners.Items[0]
			p.Status.Conditions = append(p.Status.Conditions, metav1.Condition{Type: pavv1.ConditionReady, Status: metav1.ConditionFalse, LastTransitionTime: hour})
			v.Nodes.Items[0].Spec.Drivers = nil
		}, "runs on none of 1 nodes"},
		{"a provisioner that is new", func(v *View) {
			v.Provisioners.Items[0].Status.Conditions, v.Provisioners.Items[0].CreationTimestamp = nil, moment
		}, ""},
		{"a pool that lacks spares for long", func(v *View) { v.Pools.Items[0].Status.Conditions = notReady("Filling", hour) }, "pvset fast: it is not ready: because; tarn explain pvset fast"},
		{"a pool that is filled", func(v *View) { v.Pools.Items[0].Status.Conditions = notReady("Filling", moment) }, ""},
		{"a creation that fails, once, not for its claim again", func(v *View) {
			claim(v).Status.Phase = corev1.ClaimPending
			record(v).Status.LastError = &tarnv1.PavVolumeError{Step: tarnv1.StepCreation, Message: "no space", Time: hour}
		}, "claim shop/data: creation by PavProvisioner gold has failed: no space; tarn explain claim shop/data"},
		{"a deletion that fails, of which the claim is gone", func(v *View) {
			v.Claims.Items = nil
			record(v).Status.LastError = &tarnv1.PavVolumeError{Step: tarnv1.StepDeletion, Message: "busy", Time: hour}
		}, "volume pvc-claim-uid: deletion by PavProvisioner gold has failed: busy; tarn explain volume pvc-claim-uid"},
		{"an expansion that fails", func(v *View) {
			record(v).Status.Expansion = &tarnv1.PavVolumeExpansion{LastError: &tarnv1.PavVolumeError{Step: tarnv1.StepExpansion, Message: "no room"}}
		}, "expansion by PavProvisioner gold has failed: no room"},
		{"a handle of two", func(v *View) { record(v).Status.Phase = tarnv1.VolumeDisputed }, "gave it the handle of another volume; an administrator has to decide"},
		{"a volume that is lost on a node", func(v *View) {
			stage(v).Status.Node.Phase, stage(v).Status.Node.Loss = tarnv1.StageLost, &tarnv1.StageLoss{Time: hour, Message: "unmounted"}
		}, "PavStage stage-1: volume pvc-claim-uid on node n1 is lost: unmounted; tarn explain volume pvc-claim-uid"},
		{"a staging that fails", func(v *View) {
			stage(v).Status.Node.Phase, stage(v).Status.Pod.Phase, stage(v).Status.Pod.Message = "", tarnv1.StagePodFailed, "no image"
		}, "could not be staged: no image"},
		{"a staging that failed before the kubelet asks again", func(v *View) { v.Stages.Items = nil; failedStaging(v, "stage-1", 90*time.Second) },
			"claim shop/data: its volume could not be staged: no loop device; tarn explain claim shop/data"},
		{"a staging that failed twice", func(v *View) {
			v.Stages.Items = nil
			failedStaging(v, "stage-1", 90*time.Second)
			failedStaging(v, "stage-1", time.Second)
		}, "claim shop/data: its volume could not be staged"},
		{"a staging that failed, and its next attempt, which waits", func(v *View) {
			stage(v).Status.Node.Phase = tarnv1.StageWaiting
			failedStaging(v, "stage-1", 90*time.Second)
		}, "is not staged yet"},
		{"a staging that failed and went well then", func(v *View) { failedStaging(v, "stage-1", time.Second) }, ""},
		{"a staging that failed, and nobody asks again", func(v *View) { v.Stages.Items = nil; failedStaging(v, "stage-1", time.Hour) }, ""},
		{"a staging that takes long", func(v *View) { stage(v).Status.Node.Phase = tarnv1.StageWaiting }, "is not staged yet"},
		{"an unstaging that takes long", func(v *View) { stage(v).DeletionTimestamp, stage(v).Status.Pod.Message = &hour, "busy" }, "has been unstaging for a long time: busy"},
		{"a claim that waits for long", func(v *View) { pending(v, hour) }, "claim shop/data: it has no volume; tarn explain claim shop/data"},
		{"a claim that waits for a moment", func(v *View) { pending(v, moment) }, ""},
		{"a claim that waits for its pod, as its class has it", func(v *View) {
			pending(v, hour)
			v.Classes.Items[0].VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
		}, ""},
		{"a pod that names its node itself, while its claim waits for the scheduler", func(v *View) { waiting(v); pod(v, "n1", hour) },
			"pod shop/web: it can never start: it sets spec.nodeName, so no scheduler selects a node for claim data; create it again with a nodeSelector; tarn explain pod shop/web"},
		{"a pod that names its node itself, for a moment", func(v *View) { waiting(v); pod(v, "n1", moment) }, ""},
		{"a pod that waits for the scheduler, as its claim does", func(v *View) { waiting(v); pod(v, "", hour) }, ""},
		{"two pods, one of which the scheduler may place", func(v *View) { waiting(v); pod(v, "", hour); pod(v, "n1", hour) }, ""},
		{"a pod of two claims that names its node itself, once", func(v *View) {
			waiting(v)
			other := claim(v).DeepCopy()
			other.Name, other.UID = "logs", "logs-uid"
			v.Claims.Items = append(v.Claims.Items, *other)
			pod(v, "n1", hour, "data", "logs")
		}, "pod shop/web: it can never start"},
		{"a claim whose pod is placed", func(v *View) {
			pending(v, hour)
			v.Classes.Items[0].VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
			claim(v).Annotations[volume.AnnSelectedNode] = "n1"
		}, "it has no volume"},
		{"a claim that is lost", func(v *View) { claim(v).Status.Phase = corev1.ClaimLost }, "claim shop/data: its volume"},
		{"a claim that does not go", func(v *View) { claim(v).DeletionTimestamp = &hour }, "claim shop/data: it is being deleted, and something keeps it"},
		{"a volume that failed", func(v *View) {
			v.Volumes.Items[0].Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumeFailed, Message: "no deleter"}
		}, "volume pvc-claim-uid: it has failed: no deleter"},
		{"a volume that is not reclaimed", func(v *View) {
			v.Volumes.Items[0].Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumeReleased, LastPhaseTransitionTime: &hour}
		}, "has not been reclaimed by policy Delete"},
		{"a volume that does not go", func(v *View) { v.Volumes.Items[0].DeletionTimestamp = &hour }, "volume pvc-claim-uid: it is being deleted, and something keeps it"},
		{"a volume in the trash", func(v *View) { spare(v, "t", inTrash(now.Add(time.Hour))) }, ""},
		{"a volume whose time in the trash is over", func(v *View) { spare(v, "t", inTrash(hour.Time)) }, "volume t: its retention has ended, but it has not been deleted"},
		{"an app that is refused", func(v *View) {
			v.Apps.Items[0].Status.Conditions = notReady(tarnv1.ReasonRefused, moment)
		}, "app shop/web: it is not ready, Refused: because; tarn explain app shop/web"},
		{"an app that starts", func(v *View) {
			v.Apps.Items[0].Status.Conditions = notReady(tarnv1.ReasonWaitingForPods, moment)
		}, ""},
		{"an app whose pods crash", func(v *View) {
			v.Apps.Items[0].Status.Conditions = notReady(tarnv1.ReasonPodsFailing, moment)
		}, "app shop/web: it is not ready, PodsFailing: because"},
		{"an app that does not start", func(v *View) {
			v.Apps.Items[0].Status.Conditions = notReady(tarnv1.ReasonWaitingForPods, hour)
		}, "app shop/web: it is not ready, WaitingForPods: because"},
		{"an app that has yet to be deployed", func(v *View) {
			v.Apps.Items[0].Status.Conditions = notReady(tarnv1.ReasonNothingDeployed, hour)
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := world()
			c.change(v)
			r := judge(v)
			got := problems(r)
			if c.want == "" && (got != "" || !r.Healthy || !strings.HasSuffix(r.Verdict, " is healthy")) {
				t.Errorf("%s\n%s", r.Verdict, got)
			}
			if c.want != "" && (len(r.Problems) != 1 || !strings.Contains(got, c.want) || r.Healthy || !strings.HasSuffix(r.Verdict, "not healthy: 1 problem")) {
				t.Errorf("%s\ngot  %s\nwant %s", r.Verdict, got, c.want)
			}
		})
	}
}

func TestWhatIsHiddenIsNotCalledWell(t *testing.T) {
	v := world()
	v.Unread = []Unread{{kindLease, "needs permission to get leases"}, {"CSINode", "needs permission to list csinodes"}}
	v.Lease, v.Nodes.Items = nil, nil
	r := judge(v)
	if r.Healthy || len(r.Problems) > 0 || r.Controller != nil || r.Nodes != nil || !strings.Contains(r.Verdict, "cannot be assessed") || len(r.Unread) != 2 {
		t.Errorf("got %+v", r)
	}
}

func TestOneNamespaceIsJudgedByWhatIsInIt(t *testing.T) {
	v := world()
	v = &View{Now: now, Namespace: "shop", Claims: v.Claims, Apps: v.Apps, Unread: []Unread{{kindClass, "needs permission to list storageclasses"}}}
	if r := judge(v); !r.Healthy || r.Verdict != "namespace shop is healthy" || r.Controller != nil {
		t.Errorf("got %+v", r)
	}
}

func TestVolumesAreCountedByWhatBecomesOfThem(t *testing.T) {
	v := world()
	spare(v, "free", func(vol *corev1.PersistentVolume) { vol.Status.Phase, vol.Spec.ClaimRef = corev1.VolumeAvailable, nil })
	spare(v, "kept", func(vol *corev1.PersistentVolume) {
		vol.Status.Phase, vol.Spec.PersistentVolumeReclaimPolicy = corev1.VolumeReleased, corev1.PersistentVolumeReclaimRetain
	})
	spare(v, "later", inTrash(now.Add(2*time.Hour)))
	spare(v, "soon", inTrash(now.Add(time.Hour)))
	spare(v, "guarded", func(vol *corev1.PersistentVolume) {
		inTrash(hour.Time)(vol)
		metav1.SetMetaDataLabel(&vol.ObjectMeta, tarnv1.LabelDeletionProtection, "true")
	})
	r := judge(v)
	want := []Count{{stateTrash, 3, 3 << 30}, {"Available", 1, 1 << 30}, {"Bound", 1, 1 << 30}, {stateRetained, 1, 1 << 30}}
	if !slices.Equal(r.Volumes, want) || !r.Healthy {
		t.Errorf("got %v, want %v; problems: %s", r.Volumes, want, problems(r))
	}
	if r.Trash == nil || r.Trash.Volumes != 3 || r.Trash.Next == nil || !r.Trash.Next.Equal(now.Add(time.Hour)) {
		t.Errorf("the trash is %+v", r.Trash)
	}
}
