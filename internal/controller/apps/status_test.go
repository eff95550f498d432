package apps

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/testkit"
)

func pending(claim *corev1.PersistentVolumeClaim) { claim.Status.Phase = corev1.ClaimPending }

// grows makes a claim of 1Gi request 2Gi, with the given progress.
func grows(state corev1.ClaimResourceStatus, condition corev1.PersistentVolumeClaimConditionType, message string) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.Resources.Requests = storage(2 * gi)
		if state != "" {
			claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: state}
		}
		if condition != "" {
			claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: condition, Status: corev1.ConditionTrue, Message: message}}
		}
	}
}

func TestAnAppIsReadyWhenNothingOfItIsUnderWay(t *testing.T) {
	data := volumeOf("data", 1)
	for _, c := range []struct {
		name         string
		view         *View
		reason, want string
	}{
		{"all is there", deployed(appOf(data)), tarnv1.ReasonReady, "1 of 1 pods are ready"},
		{"nothing is deployed", viewOf(&tarnv1.App{}), tarnv1.ReasonNothingDeployed, "spec.image is empty"},
		{"it is being made", viewOf(appOf(data)), tarnv1.ReasonDeploying, "being applied"},
		{"a claim has no storage", deployed(appOf(data), onClaim("data", pending)), tarnv1.ReasonWaitingForVolumes, "volume data is Pending"},
		{"a claim has no storage and no pod waits for it", deployed(func() *tarnv1.App {
			app := appOf(data)
			app.Spec.Replicas = ptr.To[int32](0)
			return app
		}(), onClaim("data", pending)), tarnv1.ReasonReady, "0 of 0"},
		{"the storage of a claim is gone", deployed(appOf(data), onClaim("data", func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost })),
			tarnv1.ReasonWaitingForVolumes, "volume data is Lost"},
		{"a claim is being deleted", deployed(appOf(data), onClaim("data", terminating)), tarnv1.ReasonDeploying, "claim paas-app-shop-data is being deleted"},
		{"a pod is not ready", deployed(appOf(data), func(v *View) { v.Deployment.Status.ReadyReplicas, v.Deployment.Status.AvailableReplicas = 0, 0 }), tarnv1.ReasonWaitingForPods, "0 of 1 pods are ready"},
		{"the Deployment has not been looked at", deployed(appOf(data), func(v *View) { v.Deployment.Generation = 2 }), tarnv1.ReasonWaitingForPods,
			"1 of 1 pods are ready, and Kubernetes has not yet acted on the last change of Deployment paas-app-shop"},
		{"an old pod is left", deployed(appOf(data), func(v *View) { v.Deployment.Status.Replicas = 2 }), tarnv1.ReasonWaitingForPods, "1 of an earlier deploy remain"},
		{"a volume grows", deployed(appOf(volumeOf("data", 2)), onClaim("data", func(c *corev1.PersistentVolumeClaim) { c.Status.Capacity = storage(gi) })),
			tarnv1.ReasonResizing, "volume data grows to 2Gi"},
		{"a volume waits for its node", deployed(appOf(volumeOf("data", 2)), onClaim("data", grows(corev1.PersistentVolumeClaimNodeResizePending, "", ""))),
			tarnv1.ReasonResizing, "its file system grows next"},
		{"a volume waits for a node and no pod is wanted", deployed(func() *tarnv1.App {
			app := appOf(volumeOf("data", 2))
			app.Spec.Replicas = ptr.To[int32](0)
			return app
		}(), onClaim("data", grows(corev1.PersistentVolumeClaimNodeResizePending, "", ""))), tarnv1.ReasonReady, "0 of 0"},
		{"a volume could not grow", deployed(appOf(volumeOf("data", 2)), onClaim("data",
			grows(corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeError, "the shelf is full"))),
			tarnv1.ReasonResizeFailed, "the shelf is full"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status := statusOf(c.view, noon)
			ready := meta.FindStatusCondition(status.Conditions, tarnv1.ConditionReady)
			if (ready.Status == metav1.ConditionTrue) != (c.reason == tarnv1.ReasonReady) || ready.Reason != c.reason || !strings.Contains(ready.Message, c.want) {
				t.Errorf("Ready is %+v, want reason %s and %q", ready, c.reason, c.want)
			}
			if status.ObservedGeneration != c.view.App.Generation {
				t.Errorf("observed is generation %d, want %d", status.ObservedGeneration, c.view.App.Generation)
			}
		})
	}
}

func TestTheStatusSaysWhatThereIsOfEachVolume(t *testing.T) {
	foreign := func(claim *corev1.PersistentVolumeClaim) { claim.Labels = nil }
	v := deployed(appOf(volumeOf("data", 1), volumeOf("logs", 1, preserving), volumeOf("other", 1), volumeOf("new", 1), volumeOf("old", 7)),
		asks(func(s *tarnv1.AppSpec) { s.Volumes = s.Volumes[:4] }),
		onClaim("data", grows("", "", "")), onClaim("other", foreign), func(v *View) { delete(v.Claims, "paas-app-shop-new") })
	status := statusOf(v, noon)
	want := []tarnv1.AppVolumeStatus{
		{Name: "data", ClaimName: "paas-app-shop-data", Phase: tarnv1.AppVolumeBound, Resize: tarnv1.AppResizing},
		{Name: "logs", ClaimName: "paas-app-shop-logs", Phase: tarnv1.AppVolumeBound, PreserveOnDelete: true},
		{Name: "other", ClaimName: "paas-app-shop-other", Phase: tarnv1.AppVolumeForeign},
		{Name: "new", ClaimName: "paas-app-shop-new", Phase: tarnv1.AppVolumeMissing},
	}
	if len(status.Volumes) != len(want) {
		t.Fatalf("there are %d volumes, want %d", len(status.Volumes), len(want))
	}
	for i, w := range want {
		if got := status.Volumes[i]; got.Name != w.Name || got.ClaimName != w.ClaimName || got.Phase != w.Phase || got.Resize != w.Resize || got.PreserveOnDelete != w.PreserveOnDelete {
			t.Errorf("volume %d is %+v, want %+v", i, got, w)
		}
	}
	if d := status.Detached; len(d) != 1 || d[0].Name != "old" || d[0].Requested.String() != "7Gi" || d[0].StorageClass != "ovh-csi-rbd" || d[0].AccessMode != rwo {
		t.Errorf("detached are %+v, want old alone", d)
	}
}

func TestWhatTheClaimKeepsIsWarnedOf(t *testing.T) {
	v := deployed(appOf(volumeOf("data", 5, shared)), asks(func(s *tarnv1.AppSpec) {
		s.Volumes[0].SizeGi, s.Volumes[0].AccessMode, s.Volumes[0].StorageClass = 2, rwo, "fast"
	}))
	all := strings.Join(warnings(v), "\n")
	for _, want := range []string{"keeps its 5 GiB: the spec asks for 2", "stays ReadWriteMany", "stays in storage class 'ovh-csi-nfs'"} {
		if !strings.Contains(all, want) {
			t.Errorf("the warnings are\n%s\nwant %q among them", all, want)
		}
	}
}

func TestARefusalIsToldOnce(t *testing.T) {
	v := deployed(appOf(volumeOf("data", 1)), asks(func(s *tarnv1.AppSpec) { s.Replicas = ptr.To[int32](2) }))
	refusals := func() (n int) {
		for _, a := range report(v, noon) {
			switch a := a.(type) {
			case action.PatchStatus:
				v.App = a.To.(*tarnv1.App)
			case action.Emit:
				n++
			}
		}
		return n
	}
	if first, second := refusals(), refusals(); first != 1 || second != 0 {
		t.Errorf("it is told %d times, and %d times once more, want 1 and 0", first, second)
	}
	v.App.DeletionTimestamp, v.App.Finalizers = ptr.To(metav1.NewTime(noon)), nil
	if p := report(v, noon); len(p) > 0 {
		t.Errorf("the status of an App that was let go is written: %+v", p)
	}
}

func TestADeployedAppWritesNoStatusAgain(t *testing.T) {
	for _, v := range []*View{deployed(appOf(volumeOf("data", 1))), viewOf(appOf(), testkit.With[*View](dying))} {
		v.App.Status = statusOf(v, noon)
		if p := report(v, noon.Add(1)); len(p) > 0 {
			t.Errorf("it is written again: %+v", p)
		}
	}
}
