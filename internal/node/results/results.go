package results

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/keymutex"
	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/podend"
)

// Config is what Results needs; every field must be set.
type Config struct {
	// Writer patches the status of pods.
	Writer client.Client
	// Live reads the pods of this node, bypassing any cache.
	Live client.Reader
	// Mounts is the mount table.
	Mounts mounts.Mounter
	// Folder contains one directory per volume.
	Folder string
	// KubeletFolder is the kubelet's root directory; every target lies in it.
	KubeletFolder string
}

// Results serves the /pav of pods that run to their end.
type Results struct {
	Config
	volumes keymutex.Mutex // by key: one call or check of a volume at a time

	mu    sync.Mutex
	byPod map[types.UID]string // -> key
}

// New returns Results that knows of no volume: see Collect.
func New(config Config) *Results {
	return &Results{Config: config, byPod: map[types.UID]string{}}
}

// Request is one publish call.
type Request struct {
	VolumeID  string
	Target    string
	Namespace string
	Pod       string
	UID       types.UID
}

// Publish gives the pod its /pav at the target. Errors are gRPC statuses.
func (r *Results) Publish(ctx context.Context, q Request) error {
	if err := r.checkTarget(q.Target); err != nil {
		return err
	}
	if q.Pod == "" || q.Namespace == "" || q.UID == "" {
		return status.Errorf(codes.InvalidArgument,
			"driver %s serves only inline volumes and needs the pod's details; its CSIDriver needs volumeLifecycleModes: [Ephemeral] and podInfoOnMount: true", tarnv1.ResultsDriver)
	}
	k := key(q.VolumeID)
	defer r.volumes.Lock(k)()
	pod, err := r.pod(ctx, q.Namespace, q.Pod, q.UID)
	if err != nil {
		return status.Errorf(codes.Unavailable, "read the pod: %v", err)
	}
	if pod == nil {
		return status.Errorf(codes.NotFound, "pod %s/%s with uid %s does not exist", q.Namespace, q.Pod, q.UID)
	}
	if pod.Labels[tarnv1.LabelStep] == "" {
		return status.Errorf(codes.PermissionDenied,
			"driver %s is only for pods that Tarn creates from a PavProvisioner's templates; pod %s/%s has no label %s; use an emptyDir or a claim",
			tarnv1.ResultsDriver, q.Namespace, q.Pod, tarnv1.LabelStep)
	}
	if other, ok := r.keyOf(q.UID); ok && other != k {
		return status.Errorf(codes.FailedPrecondition, "pod %s/%s has a volume of driver %s already; remove the other one from the template",
			q.Namespace, q.Pod, tarnv1.ResultsDriver)
	}
	rec := &record{VolumeID: q.VolumeID, Namespace: q.Namespace, Pod: q.Pod, UID: q.UID, Target: q.Target, Shape: podend.ShapeOf(pod)}
	if err := r.keep(k, rec); err != nil {
		return status.Errorf(codes.Unavailable, "create the directory for /pav: %v", err)
	}
	r.know(q.UID, k)
	if err := r.bind(k, q.Target); err != nil {
		return status.Errorf(codes.Unavailable, "mount /pav: %v", err)
	}
	return nil
}

func (r *Results) bind(k, target string) error {
	fd, err := unix.Open(r.pav(k), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: r.pav(k), Err: err}
	}
	source := os.NewFile(uintptr(fd), r.pav(k))
	defer func() { _ = source.Close() }()
	return mounts.EnsureBind(r.Mounts, source, target, false)
}

// Unpublish stores the result on the pod, if that was not done, and only then removes the volume.
// Errors are gRPC statuses.
func (r *Results) Unpublish(ctx context.Context, volumeID, target string) error {
	if err := r.checkTarget(target); err != nil {
		return err
	}
	k := key(volumeID)
	defer r.volumes.Lock(k)()
	rec, err := r.recall(k)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if rec != nil {
		if err := r.store(ctx, k, rec, podend.Ending{}); err != nil {
			return status.Errorf(codes.Unavailable, "the result of pod %s/%s is not stored yet: %v", rec.Namespace, rec.Pod, err)
		}
	}
	if err := mounts.UnmountTree(r.Mounts, target, nil); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if err := mounts.RemoveTarget(r.Mounts, target); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if err := r.drop(k, rec); err != nil {
		return status.Errorf(codes.Internal, "remove the directory of /pav: %v", err)
	}
	return nil
}

// drop removes the volume's directory. The pod cannot mount anything in it, because its mount table
// is not shared. So a mount there is an error.
func (r *Results) drop(k string, rec *record) error {
	if rec != nil {
		r.forget(rec.UID, k)
	}
	return mounts.RemoveTree(r.folder(k))
}

func (r *Results) checkTarget(target string) error {
	if !mounts.Inside(target, r.KubeletFolder) || target == r.KubeletFolder {
		return status.Errorf(codes.InvalidArgument, "target %s is not in the kubelet's directory %s; set the node agent's --kubelet-dir to the kubelet's root directory", target, r.KubeletFolder)
	}
	return nil
}

// pod is the pod of that UID, read live; nil if it does not exist any more.
func (r *Results) pod(ctx context.Context, namespace, name string, uid types.UID) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pod)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pod %s/%s: %w", namespace, name, err)
	}
	if pod.UID != uid {
		return nil, nil
	}
	return pod, nil
}

func (r *Results) know(uid types.UID, k string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byPod[uid] = k
}

func (r *Results) forget(uid types.UID, k string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byPod[uid] == k {
		delete(r.byPod, uid)
	}
}

func (r *Results) keyOf(uid types.UID) (k string, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, known = r.byPod[uid]
	return k, known
}

// Collect finds the volumes that an earlier run has left, and unmounts and removes those whose pod
// does not exist any more. Call it before any volume is served.
func (r *Results) Collect(ctx context.Context) error {
	entries, err := os.ReadDir(r.Folder)
	if errors.Is(err, os.ErrNotExist) {
		return os.MkdirAll(r.Folder, 0o700)
	}
	var failed error
	for _, e := range entries {
		failed = errors.Join(failed, r.collect(ctx, e.Name()))
	}
	return errors.Join(err, failed)
}

func (r *Results) collect(ctx context.Context, k string) error {
	defer r.volumes.Lock(k)()
	rec, err := r.recall(k)
	if err != nil {
		log.FromContext(ctx).Error(err, "a record cannot be read; its directory is removed")
		rec = nil
	}
	if rec != nil {
		pod, err := r.pod(ctx, rec.Namespace, rec.Pod, rec.UID)
		if err != nil || pod != nil {
			r.know(rec.UID, k)
			return err
		}
		log.FromContext(ctx).Info("remove the directory of a deleted pod", "namespace", rec.Namespace, "name", rec.Pod)
		if r.checkTarget(rec.Target) == nil {
			if err := mounts.UnmountTree(r.Mounts, rec.Target, nil); err != nil {
				return err
			}
		}
	}
	if err := mounts.UnmountTree(r.Mounts, r.folder(k), nil); err != nil {
		return err
	}
	return r.drop(k, rec)
}
