//go:build e2e

package e2e

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtimeSocket is that of the cluster's container runtime.
func (m machine) runtimeSocket() string {
	return filepath.Join("/run/tarn-cluster", m.name, "containerd.sock")
}

// toldByRuntime listens to the container runtime as the node agent does, until the test ends,
// and gives how long after the end of a pod's process it told of it; 0 if it has not. It removes
// what is left of the container first, which takes seconds where many pods come and go at once.
func toldByRuntime(t *testing.T, pod *corev1.Pod) (after func(end time.Time) time.Duration) {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+suite.machine.runtimeSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := cri.NewRuntimeServiceClient(conn).GetContainerEvents(t.Context(), &cri.GetEventsRequest{})
	if err != nil {
		t.Fatalf("listening to the container runtime: %v", err)
	}
	var mu sync.Mutex
	var told time.Time
	go func() { // ends with the connection
		for {
			event, err := stream.Recv()
			if err != nil {
				return
			}
			if event.GetContainerEventType() == cri.ContainerEventType_CONTAINER_STOPPED_EVENT && event.GetPodSandboxStatus().GetMetadata().GetUid() == string(pod.UID) {
				mu.Lock()
				told = time.Now()
				mu.Unlock()
				return
			}
		}
	}()
	return func(end time.Time) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return max(0, told.Sub(end))
	}
}
