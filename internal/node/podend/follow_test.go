package podend

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// oneContainer is a runtime that knows only container a.
type oneContainer struct {
	cri.RuntimeServiceClient
	state cri.ContainerState
	code  int32
}

func (r oneContainer) ListContainers(context.Context, *cri.ListContainersRequest, ...grpc.CallOption) (*cri.ListContainersResponse, error) {
	return &cri.ListContainersResponse{Containers: []*cri.Container{{Id: "1"}}}, nil
}

func (r oneContainer) ContainerStatus(context.Context, *cri.ContainerStatusRequest, ...grpc.CallOption) (*cri.ContainerStatusResponse, error) {
	return &cri.ContainerStatusResponse{Status: &cri.ContainerStatus{Metadata: &cri.ContainerMetadata{Name: "a"}, State: r.state, ExitCode: r.code}}, nil
}

// Every container of every staging pod is checked when it ends, and all of them when the runtime
// was restarted.
func TestTheNodeIsReadOnlyForAPodThatSeemsToHaveSucceeded(t *testing.T) {
	ready := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	shape := Shape{RestartPolicy: corev1.RestartPolicyNever, Containers: []string{"a"}}
	for name, c := range map[string]struct {
		runtime oneContainer
		node    *corev1.Node
		reads   int
		known   bool
	}{
		"it runs":                          {oneContainer{state: cri.ContainerState_CONTAINER_RUNNING}, ready, 0, false},
		"it has failed":                    {oneContainer{state: cri.ContainerState_CONTAINER_EXITED, code: 1}, ready, 0, true},
		"it has succeeded":                 {oneContainer{state: cri.ContainerState_CONTAINER_EXITED}, ready, 1, true},
		"it has, on a node of trouble":     {oneContainer{state: cri.ContainerState_CONTAINER_EXITED}, &corev1.Node{}, 1, false},
		"it has, and nothing tells of it":  {oneContainer{state: cri.ContainerState_CONTAINER_EXITED}, nil, 1, false},
		"it has failed, and nothing tells": {oneContainer{state: cri.ContainerState_CONTAINER_EXITED, code: 1}, nil, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			reads := 0
			f := follower{runtime: c.runtime, node: func(context.Context) (*corev1.Node, error) {
				reads++
				if c.node == nil {
					return nil, errors.New("connection refused")
				}
				return c.node, nil
			}}
			seen, err := f.look(t.Context(), types.UID("u"))
			if err != nil {
				t.Fatal(err)
			}
			if end := Judge(t.Context(), shape, seen); end.Known != c.known || reads != c.reads {
				t.Errorf("known: %t, want %t; the node was read %d times, want %d", end.Known, c.known, reads, c.reads)
			}
		})
	}
}
