package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// PodsByClaim is the index of AllPods by the names of the claims that a pod uses, as
// volume.ClaimsOfPod gives them. Query it together with a namespace.
const PodsByClaim = "spec.volumes.claim"

// AllPods adds a cache of every pod of the cluster to a manager. The manager's own cache holds only
// Tarn's pods. Create it once per process. It starts and is filled before any controller runs.
//
// Its pods are trimmed to what shows which claims they use and whether they have ended. That is
// name, namespace, UID, version, creation and deletion times, node, the volumes that are claims,
// phase, start time, and the container states. Pods of Apps also keep the labels of Apps and the
// details of those states. Everything else is missing, so a cached pod must never be written back.
//
// The objects are shared: copy a pod before changing it.
func AllPods(mgr ctrl.Manager) (cache.Cache, error) {
	pods, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient:                   mgr.GetHTTPClient(),
		Scheme:                       mgr.GetScheme(),
		Mapper:                       mgr.GetRESTMapper(),
		DefaultUnsafeDisableDeepCopy: ptr.To(true),
		NewInformer:                  SteadyInformer,
		ByObject:                     map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: trimPod}},
	})
	if err != nil {
		return nil, fmt.Errorf("making the cache of all pods: %w", err)
	}
	err = pods.IndexField(context.Background(), &corev1.Pod{}, PodsByClaim, func(o client.Object) []string {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			return nil
		}
		return volume.ClaimsOfPod(pod)
	})
	if err != nil {
		return nil, fmt.Errorf("indexing all pods by their claims: %w", err)
	}
	if err := mgr.Add(cacheOfManager{pods}); err != nil {
		return nil, fmt.Errorf("adding the cache of all pods: %w", err)
	}
	return pods, nil
}

// cacheOfManager makes a manager treat a cache like its own: it is started first, and filled before
// any reader runs.
type cacheOfManager struct{ cache.Cache }

// GetCache makes the manager treat it as a cache, not as another runnable.
func (c cacheOfManager) GetCache() cache.Cache { return c.Cache }

// trimPod reduces a pod to what AllPods promises. It gets the objects of a watch before any other
// reader, and may get a pod that it has already trimmed.
func trimPod(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	trimmed := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp,
			DeletionTimestamp: pod.DeletionTimestamp, DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
		},
		Spec: corev1.PodSpec{NodeName: pod.Spec.NodeName, Volumes: trimVolumes(pod.Spec.Volumes)},
		Status: corev1.PodStatus{
			Phase:                      pod.Status.Phase,
			StartTime:                  pod.Status.StartTime,
			InitContainerStatuses:      trimContainers(pod.Status.InitContainerStatuses),
			ContainerStatuses:          trimContainers(pod.Status.ContainerStatuses),
			EphemeralContainerStatuses: trimContainers(pod.Status.EphemeralContainerStatuses),
		},
	}
	if pod.Labels[tarnv1.LabelApp] != "" { // its App reports why it does not run
		trimmed.Labels = map[string]string{tarnv1.LabelApp: pod.Labels[tarnv1.LabelApp], tarnv1.LabelDeployed: pod.Labels[tarnv1.LabelDeployed]}
		trimmed.Status.ContainerStatuses = sayContainers(pod.Status.ContainerStatuses)
	}
	return trimmed, nil
}

// sayContainers copies the details of container states.
func sayContainers(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	var kept []corev1.ContainerStatus
	for i := range statuses {
		s := &statuses[i]
		kept = append(kept, corev1.ContainerStatus{Name: s.Name, State: s.State, LastTerminationState: s.LastTerminationState})
	}
	return kept
}

func trimVolumes(volumes []corev1.Volume) []corev1.Volume {
	var kept []corev1.Volume
	for i := range volumes {
		trimmed := corev1.Volume{Name: volumes[i].Name}
		switch v := &volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			trimmed.PersistentVolumeClaim = v.PersistentVolumeClaim
		case v.Ephemeral != nil:
			trimmed.Ephemeral = &corev1.EphemeralVolumeSource{}
		default:
			continue
		}
		kept = append(kept, trimmed)
	}
	return kept
}

// trimContainers keeps which state a container is in, without the state's details.
func trimContainers(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	var kept []corev1.ContainerStatus
	for i := range statuses {
		trimmed := corev1.ContainerStatus{Name: statuses[i].Name}
		switch state := statuses[i].State; {
		case state.Terminated != nil:
			trimmed.State.Terminated = &corev1.ContainerStateTerminated{}
		case state.Waiting != nil:
			trimmed.State.Waiting = &corev1.ContainerStateWaiting{}
		case state.Running != nil:
			trimmed.State.Running = &corev1.ContainerStateRunning{}
		}
		kept = append(kept, trimmed)
	}
	return kept
}
