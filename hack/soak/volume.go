package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// volume is what a slot has: at most one claim and its pod at a time.
type volume struct {
	*soak
	slot, life, pods int
	class            string
	size             int64
}

func (v *volume) name() string { return fmt.Sprintf("soak-%d-%d", v.slot, v.life) }
func (v *volume) pod() string  { return fmt.Sprintf("%s-%d", v.name(), v.pods) }

func (v *volume) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func (v *volume) do(ctx context.Context, e event) error {
	if e.do == begin {
		v.life, v.pods, v.size = v.life+1, 0, size
	}
	say("%s %s of %s", e.do, v.name(), v.class)
	switch e.do {
	case begin:
		class := v.class[strings.Index(v.class, ":")+1:]
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: v.meta(v.name()), Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(v.size, resource.BinarySI)}},
		}}
		if err := v.Create(ctx, claim); err != nil {
			return err
		}
		return v.start(ctx)
	case restart:
		if err := v.stop(ctx); err != nil {
			return err
		}
		return v.start(ctx)
	case end:
		if err := v.stop(ctx); err != nil {
			return err
		}
		return v.Delete(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: v.meta(v.name())})
	case crash:
		pod, err := v.running(ctx, "")
		if err != nil {
			return err
		}
		if err := killIn(pod, "load"); err != nil {
			return err
		}
		_, err = v.running(ctx, pod.Status.ContainerStatuses[0].ContainerID)
		return err
	case serve:
		return v.killSteps(ctx)
	case grow:
		return v.grow(ctx)
	default:
		return fmt.Errorf("a volume has no %s", e.do)
	}
}

// start begins a pod that loads the volume, and waits until it runs.
func (v *volume) start(ctx context.Context) error {
	if err := v.create(ctx); err != nil {
		return err
	}
	_, err := v.running(ctx, "")
	return err
}

// create begins a pod that loads the volume.
func (v *volume) create(ctx context.Context) error {
	v.pods++
	flags, _, _ := strings.Cut(v.class, ":")
	meta, tolerations := v.meta(v.pod()), []corev1.Toleration{{Key: corev1.TaintNodeOutOfService, Operator: corev1.TolerationOpExists}}
	if v.moves() {
		meta.Labels, tolerations = map[string]string{moves: ""}, nil
	}
	pod := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
		Tolerations:                   tolerations,
		TerminationGracePeriodSeconds: ptr.To(int64(patience.Seconds())),
		AutomountServiceAccountToken:  ptr.To(false),
		Containers: []corev1.Container{{
			Name: "load", Image: image, Args: append([]string{"/volume", "/journals/" + v.name(), v.name()}, strings.Split(flags, ",")...),
			VolumeMounts: []corev1.VolumeMount{{Name: "volume", MountPath: "/volume"}, {Name: "journals", MountPath: "/journals"}},
		}},
		Volumes: []corev1.Volume{
			{Name: "volume", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.name()}}},
			{Name: "journals", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: v.journals, Type: ptr.To(corev1.HostPathDirectory)}}},
		},
	}}
	return v.Create(ctx, pod)
}

// moves is the label of pods that can run on another node when theirs is lost.
const moves = "moves"

func (v *volume) moves() bool {
	flags, _, _ := strings.Cut(v.class, ":")
	return slices.Contains(strings.Split(flags, ","), moves)
}

// running waits until the pod's load runs, in another container than the one that was killed: the
// kubelet pauses before it starts one again. A pod that went with its node is made again.
func (v *volume) running(ctx context.Context, killed string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := v.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v.pod()}, pod)
		if apierrors.IsNotFound(err) && v.moves() {
			return false, v.create(ctx)
		}
		if err != nil || len(pod.Status.ContainerStatuses) != 1 {
			return false, nil // not yet
		}
		is := &pod.Status.ContainerStatuses[0]
		return is.State.Running != nil && is.ContainerID != killed, nil
	})
	if err != nil {
		return nil, fmt.Errorf("pod %s does not run, in phase %s: %w", v.pod(), pod.Status.Phase, err)
	}
	return pod, nil
}

// stop ends the pod and reads what its load said last. If the load went with its node, another pod
// checks the volume.
func (v *volume) stop(ctx context.Context) error {
	for {
		began := time.Now()
		pod, err := v.running(ctx, "")
		if err != nil {
			return err
		}
		if err := v.Delete(ctx, pod); client.IgnoreNotFound(err) != nil {
			return err
		}
		var seen []corev1.ContainerStatus
		err = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, 2*patience, true, func(ctx context.Context) (bool, error) {
			gone := apierrors.IsNotFound(v.Get(ctx, client.ObjectKeyFromObject(pod), pod))
			if !gone {
				seen = pod.Status.ContainerStatuses
			}
			return gone, nil
		})
		if err != nil {
			return fmt.Errorf("pod %s does not end: %w", pod.Name, err)
		}
		text, err := os.ReadFile(filepath.Join(v.journals, v.name()))
		if err != nil {
			return err
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		last, failed := lines[len(lines)-1], strings.Contains(string(text), "\nfailed ")
		switch verified := strings.HasPrefix(last, "verified "); {
		case verified && !failed:
			return nil
		case failed || !v.wasOff(pod.Spec.NodeName, began):
			return fmt.Errorf("the load of pod %s has not verified everything: see %s, which ends with %q; its container was last seen as %+v", pod.Name, filepath.Join(v.journals, v.name()), last, seen)
		}
		say("node %s took pod %s with it, another checks", pod.Spec.NodeName, pod.Name)
		if err := v.start(ctx); err != nil {
			return err
		}
	}
}

// killSteps kills all processes of the step pods that the volume has.
func (v *volume) killSteps(ctx context.Context) error {
	claim := &corev1.PersistentVolumeClaim{}
	if err := v.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v.name()}, claim); err != nil {
		return err
	}
	var pods corev1.PodList
	if err := v.List(ctx, &pods, client.MatchingLabels{tarn.LabelVolume: claim.Spec.VolumeName}); err != nil {
		return err
	}
	for i := range pods.Items {
		if err := killIn(&pods.Items[i], ""); err != nil {
			return err
		}
	}
	return nil
}

// grow asks for more, and waits until the volume has it.
func (v *volume) grow(ctx context.Context) error {
	v.size += step
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"resources":{"requests":{"storage":"%d"}}}}`, v.size))
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: v.meta(v.name())}
	if err := v.Patch(ctx, claim, patch); err != nil {
		return err
	}
	err := wait.PollUntilContextTimeout(ctx, time.Second, 2*patience, true, func(ctx context.Context) (bool, error) {
		return v.Get(ctx, client.ObjectKeyFromObject(claim), claim) == nil && claim.Status.Capacity.Storage().Value() >= v.size, nil
	})
	if err != nil {
		return fmt.Errorf("claim %s has %s, and asked for %d bytes: %w", claim.Name, claim.Status.Capacity.Storage(), v.size, err)
	}
	return nil
}

// killIn kills the processes of that name in a pod's containers, or all without a name. There may
// be none.
func killIn(pod *corev1.Pod, name string) error {
	entries, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return err
	}
	for _, path := range entries {
		comm, err := os.ReadFile(path)
		groups, err2 := os.ReadFile(filepath.Join(filepath.Dir(path), "cgroup"))
		if err != nil || err2 != nil || !strings.Contains(string(groups), string(pod.UID)) {
			continue // it has ended, or is of another pod
		}
		is := strings.TrimSpace(string(comm))
		if name != "" && is != name || name == "" && is == "pause" {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return err
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}
