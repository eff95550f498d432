package results

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// labelPodUID is the label the kubelet puts on containers and sandboxes.
const labelPodUID = "io.kubernetes.pod.uid"

// lookTimeout bounds one look at an ended pod.
const lookTimeout = 20 * time.Second

// Follow listens to the container runtime's events until ctx ends, and stores the
// results of pods as soon as they have ended. It is a short cut: what it misses is
// stored when the kubelet unpublishes.
func (r *Results) Follow(ctx context.Context, endpoint string) error {
	conn, err := grpc.NewClient(target(endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("--cri-endpoint %s: %w", endpoint, err)
	}
	defer func() { _ = conn.Close() }()
	runtime := cri.NewRuntimeServiceClient(conn)
	backoff := newBackoff()
	for {
		begun := time.Now()
		err := r.listen(ctx, runtime)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(begun) > time.Minute {
			backoff = newBackoff()
		}
		pause := backoff.Step()
		log.FromContext(ctx).Info("the container runtime's events ended; listening again soon",
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

// target makes a gRPC target of a socket's path; a URL is one already.
func target(endpoint string) string {
	if len(endpoint) > 0 && endpoint[0] == '/' {
		return "unix://" + endpoint
	}
	return endpoint
}

// listen follows one stream of events. A stream begins with old events; those of pods
// that are not ours are skipped without a call.
func (r *Results) listen(ctx context.Context, runtime cri.RuntimeServiceClient) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := runtime.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		return err
	}
	for _, uid := range r.pods() { // what ended while nobody listened
		go r.look(ctx, runtime, uid)
	}
	for {
		event, err := stream.Recv()
		if err != nil {
			return err
		}
		if event.GetContainerEventType() != cri.ContainerEventType_CONTAINER_STOPPED_EVENT {
			continue
		}
		if uid, ok := podOf(event); ok {
			if _, known := r.keyOf(uid); known {
				go r.look(ctx, runtime, uid)
			}
			continue
		}
		for _, uid := range r.pods() {
			go r.look(ctx, runtime, uid)
		}
	}
}

func podOf(event *cri.ContainerEventResponse) (types.UID, bool) {
	if uid := event.GetPodSandboxStatus().GetMetadata().GetUid(); uid != "" {
		return types.UID(uid), true
	}
	for _, c := range event.GetContainersStatuses() {
		if uid := c.GetLabels()[labelPodUID]; uid != "" {
			return types.UID(uid), true
		}
	}
	return "", false
}

// look stores the pod's result if the pod has surely ended.
func (r *Results) look(ctx context.Context, runtime cri.RuntimeServiceClient, uid types.UID) {
	k, known := r.keyOf(uid)
	if !known {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	defer r.volumes.Lock(k)()
	logger := log.FromContext(ctx).WithValues("pod", uid)
	rec, err := r.recall(k)
	if err != nil || rec == nil {
		return // unpublished meanwhile, or unpublish will tell
	}
	runs, err := runsOf(ctx, runtime, uid)
	if err != nil {
		logger.Info("cannot see how the pod ended; the kubelet will tell", "because", err.Error())
		return
	}
	end := judge(rec.Shape, runs)
	if !end.known {
		return
	}
	if err := r.store(ctx, k, rec, end); err != nil {
		logger.Info("result not stored yet; it will be when the volume is unpublished", "because", err.Error())
	}
}

// runsOf asks for all runs of all containers of the pod.
func runsOf(ctx context.Context, runtime cri.RuntimeServiceClient, uid types.UID) ([]container, error) {
	list, err := runtime.ListContainers(ctx, &cri.ListContainersRequest{
		Filter: &cri.ContainerFilter{LabelSelector: map[string]string{labelPodUID: string(uid)}},
	})
	if err != nil {
		return nil, err
	}
	var runs []container
	for _, c := range list.GetContainers() {
		answer, err := runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.GetId()})
		if err != nil {
			return nil, err
		}
		s := answer.GetStatus()
		runs = append(runs, container{
			name:     s.GetMetadata().GetName(),
			attempt:  s.GetMetadata().GetAttempt(),
			exited:   s.GetState() == cri.ContainerState_CONTAINER_EXITED,
			exitCode: s.GetExitCode(),
			started:  time.Unix(0, s.GetStartedAt()),
			finished: time.Unix(0, s.GetFinishedAt()),
		})
	}
	return runs, nil
}
