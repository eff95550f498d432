// Package steppodtest replaces the kubelet and the node agent in tests with an API server and no
// node. It ends pods as the test says. Like the real ones, the fake acts only through API objects.
package steppodtest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// End is how a pod ends.
type End struct {
	// Fails says that its container exits with 1.
	Fails bool
	// Result is what the pod leaves in /pav.
	Result tarnv1.PodResult
	// Stays says that the pod keeps running.
	Stays bool
}

// Kubelet ends every pod that Tarn makes for one provisioner.
type Kubelet struct {
	// Provisioner is its name.
	Provisioner string
	// Client is a live one.
	Client client.WithWatch
	// Ends says how a pod ends.
	Ends func(*corev1.Pod) End
	// Node says on which node a pod without a node runs. If nil, all run on one node.
	Node func(*corev1.Pod) string

	mu  sync.Mutex
	ran map[tarnv1.Step]map[types.UID]string
}

// Run runs the kubelet until the context ends.
func (k *Kubelet) Run(ctx context.Context) error {
	w, err := k.Client.Watch(ctx, &corev1.PodList{}, client.MatchingLabels{tarnv1.LabelProvisioner: k.Provisioner})
	if err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			continue
		}
		switch event.Type { //nolint:exhaustive // of the others a kubelet has nothing to do
		case watch.Added:
			err = k.run(ctx, pod)
		case watch.Modified:
			err = k.confirm(ctx, pod)
		}
		if client.IgnoreNotFound(err) != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// Start runs the kubelet until the context ends. The test must end it in a cleanup registered
// later.
func (k *Kubelet) Start(ctx context.Context, t *testing.T) {
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	t.Cleanup(func() {
		if err := <-done; err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
}

// Ran gives the names of the pods of a step that have run so far. A pod that ran twice under one
// name appears twice.
func (k *Kubelet) Ran(step tarnv1.Step) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var names []string
	for _, name := range k.ran[step] {
		names = append(names, name)
	}
	return names
}

func (k *Kubelet) count(pod *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	step := tarnv1.Step(pod.Labels[tarnv1.LabelStep])
	if k.ran == nil {
		k.ran = map[tarnv1.Step]map[types.UID]string{}
	}
	if k.ran[step] == nil {
		k.ran[step] = map[types.UID]string{}
	}
	k.ran[step][pod.UID] = pod.Name
}

func (k *Kubelet) run(ctx context.Context, pod *corev1.Pod) error {
	if scheduled, err := k.schedule(ctx, pod); err != nil || !scheduled {
		return err
	}
	k.count(pod)
	return k.end(ctx, pod)
}

// schedule gives a pod a node, without which it cannot run. It is false for a pod that is already
// being deleted: the API server gives it no node.
func (k *Kubelet) schedule(ctx context.Context, pod *corev1.Pod) (bool, error) {
	if pod.Spec.NodeName != "" {
		return true, nil
	}
	node := "node"
	if k.Node != nil {
		node = k.Node(pod)
	}
	err := k.Client.SubResource("binding").Create(ctx, pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}})
	if apierrors.IsConflict(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, k.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod)
}

// keep makes the containers of a pod run.
func (k *Kubelet) keep(ctx context.Context, pod *corev1.Pod) error {
	base := pod.DeepCopy()
	pod.Status.Phase = corev1.PodRunning
	for _, c := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, ContainerID: "containerd://" + c.Name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
	}
	return k.Client.Status().Patch(ctx, pod, client.MergeFrom(base))
}

func (k *Kubelet) end(ctx context.Context, pod *corev1.Pod) error {
	end := k.Ends(pod)
	if end.Stays {
		return k.keep(ctx, pod)
	}
	result := end.Result
	result.Succeeded = ptr.To(!end.Fails)
	data, err := json.Marshal(result)
	if err != nil {
		return err
	}
	base := pod.DeepCopy()
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[tarnv1.AnnotationResult] = string(data)
	state, phase := &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(time.Now())}, corev1.PodSucceeded
	if end.Fails {
		state.ExitCode, phase = 1, corev1.PodFailed
	}
	pod.Status.Phase = phase
	pod.Status.ContainerStatuses = nil
	for _, c := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, ContainerID: "containerd://" + c.Name, State: corev1.ContainerState{Terminated: state}})
	}
	if err := k.Client.Status().Patch(ctx, pod, client.MergeFrom(base)); err != nil {
		return err
	}
	return k.confirm(ctx, pod)
}

// confirm confirms the end of a pod that is being deleted, as kubelets do. The API server itself
// removes a pod that ended before its deletion, in two writes. If the deleting client stops between
// them, the second write is left to the kubelet.
func (k *Kubelet) confirm(ctx context.Context, pod *corev1.Pod) error {
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if pod.DeletionTimestamp == nil || !ended {
		return nil
	}
	err := k.Client.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	if apierrors.IsConflict(err) {
		return nil // it was deleted, and another pod has its name
	}
	return err
}
