package explain

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// A container that still has the lost mount is not healthy, though its pod runs.
func TestAContainerThatKeepsALostMountIsNamed(t *testing.T) {
	const target = "/var/lib/kubelet/pods/pod-uid/volumes/kubernetes.io~csi/pvc-claim-uid/mount"
	rebound := func(recovery tarnv1.StageRecovery, left ...tarnv1.StageLeft) func(*tarnv1.PavStage) {
		return func(g *tarnv1.PavStage) {
			g.Status.Node.Targets, g.Status.Pod.Recovery = []string{target}, recovery
			g.Status.Node.Loss = &tarnv1.StageLoss{Number: 1, Time: began, ReboundTime: ahead(-time.Minute), Left: left}
		}
	}
	of := tarnv1.StageLeft{PodUID: "pod-uid", Path: "/srv/b", Message: "below it is another volume"}
	nowhere := tarnv1.StageLeft{PodUID: "pod-uid", Message: "it is another block device now"}
	subPath := tarnv1.StageLeft{PodUID: "pod-uid", Container: "a", Message: "the volume staged again has no subPath c"}
	mounts := func(pod *corev1.Pod) {
		pod.Spec.Containers, pod.Status.ContainerStatuses = nil, nil
		for _, name := range []string{"a", "b"} {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, VolumeMounts: []corev1.VolumeMount{{Name: "d", MountPath: "/srv/" + name}}})
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: began}}})
		}
	}
	restarted := func(pod *corev1.Pod) {
		for i := range pod.Status.ContainerStatuses {
			pod.Status.ContainerStatuses[i].State.Running.StartedAt = *ahead(-time.Second)
		}
	}
	waits := func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: "failed to prepare subPath"}}
	}
	owned := func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", Controller: ptr.To(true)}}
	}
	asked := func(lost func(*tarnv1.PavStage), changes ...func(*corev1.Pod)) *world {
		return newWorld().bound().askedPod(append([]func(*corev1.Pod){runs, mounts}, changes...)...).staged(lost)
	}
	volume := func(w *world) *world {
		w.volume.Status.Phase, w.volumeView.Users = corev1.VolumeBound, w.claimView.Users
		w.view.Pod, w.view.Claims = nil, nil
		return w.askedVolume()
	}
	const there, next = "volume pvc-claim-uid was lost on node n1 and is available again, but not for container ", "when that container restarts"
	const anew, made = "kubectl -n shop get pod web -o yaml | kubectl replace --force -f -", "kubectl -n shop delete pod web"
	const replaced, mustReplace = "when the pod is replaced", "volume pvc-claim-uid was lost on node n1 and is available again, but container a of pod shop/web cannot restart with its subPath: the volume staged again has no subPath c"
	for _, c := range []answer{
		{"what could not be exchanged", asked(rebound(tarnv1.RecoveryRebind, of)), there + "b of pod shop/web, which keeps the lost mount: its mount could not be replaced: below it is another volume", next, anew},
		{"a pod that is made again", asked(rebound(tarnv1.RecoveryRebind, of), owned), there + "b of pod shop/web", next, made},
		{"what is nowhere in particular", asked(rebound(tarnv1.RecoveryRebind, nowhere)), there + "a, b of pod shop/web", next, anew},
		{"a pod that is not evicted", asked(rebound(tarnv1.RecoveryRestartConsumers)), there + "a, b of pod shop/web, which keeps the lost mount: no controller would create the pod again, so Tarn does not evict it", next, anew},
		{"a subPath the kubelet keeps", asked(rebound(tarnv1.RecoveryRebind, of, subPath), waits), mustReplace, replaced, anew},
		{"a subPath of a container that still runs", asked(rebound(tarnv1.RecoveryRebind, subPath), owned), mustReplace, replaced, made},
		{"who asks for the volume", volume(asked(rebound(tarnv1.RecoveryRebind, of))), "is Bound: " + there + "b of pod shop/web", next, anew},
		{"who asks for the volume of a pod that is not evicted", volume(asked(rebound(tarnv1.RecoveryRestartConsumers))), "is Bound: " + there + "a, b of pod shop/web", next, anew},
	} {
		t.Run(c.name, c.check)
	}
	elsewhere := of
	elsewhere.PodUID = "other-pod"
	for name, w := range map[string]*world{
		"all was exchanged":         asked(rebound(tarnv1.RecoveryRebind)),
		"it is another pod's":       asked(rebound(tarnv1.RecoveryRebind, elsewhere)),
		"it was started anew since": asked(rebound(tarnv1.RecoveryRebind, of), restarted),
		"its subPath was right":     asked(rebound(tarnv1.RecoveryRebind, subPath), restarted),
		"it is one that is evicted": asked(rebound(tarnv1.RecoveryRestartConsumers), owned),
		"it came later": asked(func(g *tarnv1.PavStage) {
			rebound(tarnv1.RecoveryRestartConsumers)(g)
			g.Status.Node.Targets = nil
		}),
	} {
		if e := chain(w.view); !e.Healthy {
			t.Errorf("%s: got %q, want it healthy", name, e.Verdict)
		}
	}
}
