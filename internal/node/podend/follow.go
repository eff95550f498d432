package podend

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Listener is told when pods end.
type Listener interface {
	// Pods gives the UIDs of the pods whose end the listener waits for.
	Pods() []types.UID
	// Stopped is called when a container of the pod has ended. It may call look to get the input of
	// Judge.
	Stopped(ctx context.Context, pod types.UID, look func(context.Context) (Look, error))
}

// labelPodUID is the label the kubelet puts on containers and sandboxes.
const labelPodUID = "io.kubernetes.pod.uid"

// lookTimeout limits a listener's work for one event.
const lookTimeout = 20 * time.Second

// Follow passes the runtime's events to the listeners until ctx ends. When the event stream breaks,
// it connects again after a pause. node reads this machine's Node from the API server, not from a
// cache.
func Follow(ctx context.Context, endpoint string, node func(context.Context) (*corev1.Node, error), listeners ...Listener) error {
	conn, err := grpc.NewClient(target(endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("--cri-endpoint %s: %w", endpoint, err)
	}
	defer func() { _ = conn.Close() }()
	f := follower{runtime: cri.NewRuntimeServiceClient(conn), node: node, listeners: listeners}
	backoff := newBackoff()
	for {
		begun := time.Now()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(begun) > time.Minute {
			backoff = newBackoff()
		}
		pause := backoff.Step()
		log.FromContext(ctx).Info("the container runtime's event stream ended; reconnecting",
			"endpoint", endpoint, "because", fmt.Sprint(err), "in", pause.String())
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func newBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 8, Cap: 30 * time.Second}
}

// target makes a gRPC target from the path of a socket. A URL stays unchanged.
func target(endpoint string) string {
	if len(endpoint) > 0 && endpoint[0] == '/' {
		return "unix://" + endpoint
	}
	return endpoint
}

type follower struct {
	runtime   cri.RuntimeServiceClient
	node      func(context.Context) (*corev1.Node, error)
	listeners []Listener
}

// follow follows one stream. A stream begins with old events; those of pods without a listener cost
// no call.
func (f *follower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.runtime.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		return err
	}
	f.tell(ctx, "") // pods may have ended before the stream began
	for {
		event, err := stream.Recv()
		if err != nil {
			return err
		}
		if event.GetContainerEventType() == cri.ContainerEventType_CONTAINER_STOPPED_EVENT {
			f.tell(ctx, podOf(event))
		}
	}
}

// tell calls the listeners that wait for the pod, or for any pod if uid is empty.
func (f *follower) tell(ctx context.Context, uid types.UID) {
	for _, l := range f.listeners {
		for _, pod := range l.Pods() {
			if uid != "" && pod != uid {
				continue
			}
			go func() {
				ctx, cancel := context.WithTimeout(ctx, lookTimeout)
				defer cancel()
				l.Stopped(ctx, pod, func(ctx context.Context) (Look, error) { return f.look(ctx, pod) })
			}()
		}
	}
}

// podOf is the UID of the event's pod; empty if the event does not contain it.
func podOf(event *cri.ContainerEventResponse) types.UID {
	if uid := event.GetPodSandboxStatus().GetMetadata().GetUid(); uid != "" {
		return types.UID(uid)
	}
	for _, c := range event.GetContainersStatuses() {
		if uid := c.GetLabels()[labelPodUID]; uid != "" {
			return types.UID(uid)
		}
	}
	return ""
}

// look asks the runtime. The Node is read only after it and only if needed: a Node read before the
// pod ended might not show the reason yet.
func (f *follower) look(ctx context.Context, pod types.UID) (Look, error) {
	runs, err := f.runs(ctx, pod)
	if err != nil {
		return Look{}, err
	}
	return Look{Runs: runs, Ending: func(ctx context.Context) string { return f.ending(ctx, pod) }}, nil
}

// ending says why the kubelet may have ended a pod. If that cannot be found out, it says so.
func (f *follower) ending(ctx context.Context, pod types.UID) string {
	var why string
	if node, err := f.node(ctx); err != nil {
		why = "the node cannot be read: " + err.Error()
	} else {
		why = endsPods(node)
	}
	if why != "" {
		log.FromContext(ctx).Info("the kubelet may be stopping pods, so its report decides whether a pod succeeded", "pod", pod, "because", why)
	}
	return why
}

func (f *follower) runs(ctx context.Context, pod types.UID) ([]Run, error) {
	list, err := f.runtime.ListContainers(ctx, &cri.ListContainersRequest{
		Filter: &cri.ContainerFilter{LabelSelector: map[string]string{labelPodUID: string(pod)}},
	})
	if err != nil {
		return nil, err
	}
	var runs []Run
	for _, c := range list.GetContainers() {
		answer, err := f.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.GetId()})
		if err != nil {
			return nil, err
		}
		s := answer.GetStatus()
		runs = append(runs, Run{
			Container: s.GetMetadata().GetName(),
			Attempt:   s.GetMetadata().GetAttempt(),
			Exited:    s.GetState() == cri.ContainerState_CONTAINER_EXITED,
			ExitCode:  s.GetExitCode(),
			Started:   time.Unix(0, s.GetStartedAt()),
			Finished:  time.Unix(0, s.GetFinishedAt()),
		})
	}
	return runs, nil
}
