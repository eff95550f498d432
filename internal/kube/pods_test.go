package kube

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

func TestATrimmedPodOfAnAppStillTellsWhyItDoesNotRun(t *testing.T) {
	labels := map[string]string{tarnv1.LabelApp: "shop", tarnv1.LabelDeployed: "d"}
	state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "later"}}
	last := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Message: "no config"}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", Labels: map[string]string{"other": "x"}},
		Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "app", Image: "shop:1", State: state, LastTerminationState: last}}},
	}
	maps.Copy(pod.Labels, labels)
	got, err := trimPod(pod)
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", Labels: labels},
		Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "app", State: state, LastTerminationState: last}}},
	}
	if err != nil || !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("trimmed: %+v, %v\nwant %+v", got, err, want)
	}
}

func TestATrimmedPodStillTellsWhoUsesWhichClaim(t *testing.T) {
	running := corev1.ContainerStatus{Name: "c", Image: "busybox:1.36", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}
	ended := corev1.ContainerStatus{Name: "i", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: "long"}}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "p", Namespace: "ns", UID: "u", ResourceVersion: "7", Labels: map[string]string{"app": "x"},
			DeletionTimestamp: ptr.To(metav1.Now()), DeletionGracePeriodSeconds: ptr.To[int64](30),
		},
		Spec: corev1.PodSpec{
			NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "busybox:1.36"}},
			Volumes: []corev1.Volume{
				{Name: "e", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "x", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}},
				{Name: "y", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}}},
			},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Message: "long",
			InitContainerStatuses: []corev1.ContainerStatus{ended}, ContainerStatuses: []corev1.ContainerStatus{running},
		},
	}
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "p", Namespace: "ns", UID: "u", ResourceVersion: "7",
			DeletionTimestamp: pod.DeletionTimestamp, DeletionGracePeriodSeconds: ptr.To[int64](30),
		},
		Spec: corev1.PodSpec{NodeName: "n", Volumes: []corev1.Volume{
			pod.Spec.Volumes[1],
			{Name: "y", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		}},
		Status: corev1.PodStatus{
			Phase:                 corev1.PodRunning,
			InitContainerStatuses: []corev1.ContainerStatus{{Name: "i", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}},
			ContainerStatuses:     []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		},
	}
	got := any(pod)
	for _, round := range []string{"once", "twice"} {
		var err error
		if got, err = trimPod(got); err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("trimmed %s: %+v\nwant %+v", round, got, want)
		}
		if claims := volume.ClaimsOfPod(got.(*corev1.Pod)); len(claims) != 2 || claims[0] != "claim" || claims[1] != "p-y" {
			t.Errorf("trimmed %s: the claims are %q", round, claims)
		}
	}
}
