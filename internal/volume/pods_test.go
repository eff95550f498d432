package volume_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"tarn.dev/tarn/internal/volume"
)

func named(claim string) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}
}

func podOf(name string, sources ...corev1.VolumeSource) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	for i, s := range sources {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: string(rune('a' + i)), VolumeSource: s})
	}
	return pod
}

func TestClaimsOfPodNamesEachClaimOnce(t *testing.T) {
	ephemeral := corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
	empty := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		want []string
	}{
		{"a pod without volumes", podOf("p"), nil},
		{"a volume that is no claim", podOf("p", empty), nil},
		{"a claim by its name", podOf("p", named("x")), []string{"x"}},
		{"an ephemeral volume by pod and volume", podOf("p", empty, ephemeral), []string{"p-b"}},
		{"in the order of the volumes", podOf("p", named("z"), ephemeral, named("a")), []string{"z", "p-b", "a"}},
		{"twice the same claim", podOf("p", named("x"), named("x")), []string{"x"}},
		{"a claim that is named as an ephemeral one is computed", podOf("p", named("p-b"), ephemeral), []string{"p-b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := volume.ClaimsOfPod(c.pod); !slices.Equal(got, c.want) {
				t.Errorf("ClaimsOfPod = %q, want %q", got, c.want)
			}
		})
	}
}

func TestUsesCountsScheduledPodsUntilTheyAreGone(t *testing.T) {
	type change func(*corev1.Pod)
	claim := func(name string, owner types.UID) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		if owner != "" {
			c.OwnerReferences = []metav1.OwnerReference{{UID: owner, Controller: ptr.To(true)}}
		}
		return c
	}
	deleted := func(grace int64) change {
		return func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.Unix(1, 0)), &grace
		}
	}
	phase := func(phase corev1.PodPhase) change { return func(p *corev1.Pod) { p.Status.Phase = phase } }
	unscheduled := func(p *corev1.Pod) { p.Spec.NodeName = "" }
	elsewhere := func(p *corev1.Pod) { p.Namespace = "other" }
	ephemeral := corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
	for _, c := range []struct {
		name    string
		source  corev1.VolumeSource
		claim   *corev1.PersistentVolumeClaim
		changes []change
		want    bool
	}{
		{"a scheduled pod that names it", named("x"), claim("x", ""), nil, true},
		{"a pod that names another", named("y"), claim("x", ""), nil, false},
		{"a pod of another namespace", named("x"), claim("x", ""), []change{elsewhere}, false},
		{"an unscheduled pod", named("x"), claim("x", ""), []change{unscheduled}, false},
		{"a pod that has succeeded", named("x"), claim("x", ""), []change{phase(corev1.PodSucceeded)}, true},
		{"a pod that has failed", named("x"), claim("x", ""), []change{phase(corev1.PodFailed)}, true},
		{"a pod that is being deleted", named("x"), claim("x", ""), []change{deleted(30)}, true},
		{"a pod that names it and is shut down but not gone", named("x"), claim("x", ""), []change{deleted(0)}, true},
		{"the pod that owns it", ephemeral, claim("p-a", "pod-uid"), nil, true},
		{"a pod that would own it if it were not another's", ephemeral, claim("p-a", "another-uid"), nil, false},
		{"a pod that would own it if it were anybody's", ephemeral, claim("p-a", ""), nil, false},
		{"the pod that owns it, being deleted", ephemeral, claim("p-a", "pod-uid"), []change{deleted(30)}, true},
		{"the pod that owns it, shut down", ephemeral, claim("p-a", "pod-uid"), []change{deleted(0)}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := podOf("p", c.source)
			pod.UID, pod.Spec.NodeName = "pod-uid", "n"
			for _, change := range c.changes {
				change(pod)
			}
			if got := volume.Uses(pod, c.claim); got != c.want {
				t.Errorf("Uses = %t, want %t", got, c.want)
			}
		})
	}
}

func TestAPodHasEndedWhenNoContainerRunsAgain(t *testing.T) {
	running := corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	exited := corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}
	waiting := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}
	for _, c := range []struct {
		name    string
		deleted bool
		status  corev1.PodStatus
		want    bool
	}{
		{"running", false, corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{running}}, false},
		{"between two runs", false, corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{waiting}}, false},
		{"succeeded", false, corev1.PodStatus{Phase: corev1.PodSucceeded}, true},
		{"failed", false, corev1.PodStatus{Phase: corev1.PodFailed}, true},
		{"deleted and still running", true, corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{exited, running}}, false},
		{"deleted and an init container runs", true, corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{running}}, false},
		{"deleted and a debugger runs", true, corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{exited}, EphemeralContainerStatuses: []corev1.ContainerStatus{running}}, false},
		{"deleted and stopped", true, corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{exited, waiting}}, true},
		{"deleted and never started", true, corev1.PodStatus{Phase: corev1.PodPending}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := &corev1.Pod{Status: c.status}
			if c.deleted {
				pod.DeletionTimestamp = ptr.To(metav1.Unix(1, 0))
			}
			if got := volume.Ended(pod); got != c.want {
				t.Errorf("Ended = %t, want %t", got, c.want)
			}
		})
	}
}

func TestAPodHasStartedWhenAContainerEverRan(t *testing.T) {
	one := func(c corev1.ContainerStatus) []corev1.ContainerStatus { return []corev1.ContainerStatus{{}, c} }
	exited := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	for _, c := range []struct {
		name   string
		status corev1.PodStatus
		want   bool
	}{
		{"new", corev1.PodStatus{}, false},
		{"pending", corev1.PodStatus{Phase: corev1.PodPending}, false},
		{"waiting for its volumes", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: one(corev1.ContainerStatus{State: waiting})}, false},
		{"running", corev1.PodStatus{Phase: corev1.PodRunning}, true},
		{"ended", corev1.PodStatus{Phase: corev1.PodFailed}, true},
		{"in its init containers", corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: one(corev1.ContainerStatus{State: exited})}, true},
		{"between two runs", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: one(corev1.ContainerStatus{State: waiting, LastTerminationState: exited})}, true},
		{"after a restart of which no more is known", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: one(corev1.ContainerStatus{State: waiting, RestartCount: 1})}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := volume.Started(&corev1.Pod{Status: c.status}); got != c.want {
				t.Errorf("Started = %t, want %t", got, c.want)
			}
		})
	}
}

func TestWhichPodsUseAVolumeByItsFormerClaim(t *testing.T) {
	before, with, after := metav1.Unix(60, 0), metav1.Unix(120, 0), metav1.Unix(180, 0)
	successor := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: with}}
	user := func(phase corev1.PodPhase, scheduled *metav1.Time) *corev1.Pod {
		p := podOf("p", named("data"))
		p.CreationTimestamp, p.Status.Phase = before, phase
		if scheduled != nil {
			p.Spec.NodeName = "a"
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: *scheduled}}
		}
		return p
	}
	for _, c := range []struct {
		name      string
		pod       *corev1.Pod
		claim     string
		successor *corev1.PersistentVolumeClaim
		want      bool
	}{
		{"case 137: one that runs", user(corev1.PodRunning, &before), "data", nil, true},
		{"case 137: one that is pending", user(corev1.PodPending, nil), "data", nil, true},
		{"case 137: one that succeeded", user(corev1.PodSucceeded, &before), "data", nil, false},
		{"one of another claim", user(corev1.PodRunning, &before), "other", nil, false},
		{"case 137: one that got its node after the new claim", user(corev1.PodRunning, &after), "data", successor, false},
		{"one that got its node in the second of the new claim", user(corev1.PodRunning, &with), "data", successor, false},
		{"one that had its node before the new claim", user(corev1.PodRunning, &before), "data", successor, true},
		{"one that waits for the new claim", user(corev1.PodPending, nil), "data", successor, false},
	} {
		if got := volume.UsesFormer(c.pod, c.claim, c.successor); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}
