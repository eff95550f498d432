package explain

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// After a lost volume is available again, some running containers still have the lost mount. A
// mount may be impossible to replace. With recovery RestartConsumers no mount is replaced, and Tarn
// does not evict a pod that no controller would create again. The kubelet may also keep a subPath
// of the lost mount; then no container with that subPath can start.

// mended says whether a volume was lost on a node and is available again.
func mended(g stageView) bool {
	lost := g.Stage.Status.Node.Loss
	return staged(&g) && lost != nil && lost.ReboundTime != nil
}

// keepsLost is about a volume that was lost and is available again, but not for some container.
// That container has run since before the loss, or cannot be restarted. If the user asked for a
// pod, only that pod counts. It returns false if there is no such container.
func (s *story) keepsLost(g *stageView, users []user) bool {
	if !mended(*g) {
		return false
	}
	for _, u := range users {
		if asked := s.view.Pod; asked != nil && asked.Pod.UID != u.Pod.UID || u.Pod.DeletionTimestamp != nil || hasEnded(u.Pod) {
			continue
		}
		o := Object{Pod, u.Pod.Namespace, u.Pod.Name}
		container, why := lostSubPath(g.Stage, u.Pod)
		but, next := fmt.Sprintf("container %s of %s cannot restart with its subPath", container, o), "when the pod is replaced"
		if why == "" {
			var path string
			path, why = lostMount(g.Stage, u.Pod)
			containers := runSince(u.Pod, path, g.Stage.Status.Node.Loss.ReboundTime)
			if why == "" || len(containers) == 0 {
				continue
			}
			but, next = fmt.Sprintf("not for container %s of %s, which keeps the lost mount", join(containers), o), "when that container restarts"
		}
		link := s.stageLink(g)
		link.Since, link.Message = moment(g.Stage.Status.Node.Loss.ReboundTime.Time), why
		link.Next, link.Command = next, tryAgain(u.Pod)
		if link.Command != "" {
			link.offer = "the command replaces the pod"
		}
		s.blame("volume %s was lost on node %s and is available again, but %s: %s", g.Stage.Spec.VolumeName, g.Stage.Spec.NodeName, but, why)
		return true
	}
	return false
}

// lostMount says why a pod keeps the lost mount, and at which path in its containers. An empty path
// is not known. An empty reason means that the pod does not keep it.
func lostMount(stage *tarnv1.PavStage, pod *corev1.Pod) (path, why string) {
	has := func(target string) bool { return tarnv1.PodOfTarget(target) == pod.UID }
	if stage.Status.Pod.Recovery == tarnv1.RecoveryRestartConsumers {
		if metav1.GetControllerOf(pod) != nil || !slices.ContainsFunc(stage.Status.Node.Targets, has) {
			return "", ""
		}
		return "", "no controller would create the pod again, so Tarn does not evict it"
	}
	for _, l := range stage.Status.Node.Loss.Left {
		if l.PodUID == pod.UID && l.Container == "" {
			return l.Path, fmt.Sprintf("its mount could not be replaced: %s", l.Message)
		}
	}
	return "", ""
}

// lostSubPath returns a container for which the kubelet keeps a subPath of the lost volume, and
// why. Both are empty if there is none, or if the container has started since.
func lostSubPath(stage *tarnv1.PavStage, pod *corev1.Pod) (container, why string) {
	lost := stage.Status.Node.Loss
	for _, l := range lost.Left {
		started := func(c corev1.ContainerStatus) bool {
			return c.Name == l.Container && c.State.Running != nil && c.State.Running.StartedAt.After(lost.ReboundTime.Time)
		}
		if l.PodUID == pod.UID && l.Container != "" && !slices.ContainsFunc(statuses(pod), started) {
			return l.Container, l.Message
		}
	}
	return "", ""
}

// runSince returns the containers of a pod that have run since before a time. If some of these
// mount path, it returns only those.
func runSince(pod *corev1.Pod, path string, at *metav1.Time) []string {
	var there, all []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		i := slices.IndexFunc(statuses(pod), func(status corev1.ContainerStatus) bool { return status.Name == c.Name })
		if i < 0 || len(c.VolumeMounts)+len(c.VolumeDevices) == 0 {
			continue
		}
		if r := statuses(pod)[i].State.Running; r == nil || r.StartedAt.After(at.Time) {
			continue
		}
		all = append(all, c.Name)
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == path }) {
			there = append(there, c.Name)
		}
	}
	if len(there) > 0 {
		return there
	}
	return all
}
