package main

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
)

const (
	name = "bench-protect"
	// namespace contains the claims and pods.
	namespace = "default"
	image     = "busybox:1.36"
	// atOnce is how many requests run in parallel.
	atOnce = 16
	// patience is how long each step may take.
	patience = 5 * time.Minute
)

// result is the result of one run. Times are in seconds.
type result struct {
	Subject string `json:"subject"`
	Claims  int    `json:"claims"`
	Pods    int    `json:"pods"`
	// Asked is how long it took to request all deletions. Seconds is the time from the first
	// request until all unused claims were gone. Lists is how often any client listed the pods of a
	// namespace meanwhile.
	Asked   float64 `json:"askedSeconds"`
	Seconds float64 `json:"seconds"`
	Lists   int     `json:"podLists"`
	// UsedSeconds and UsedLists are for the claims that pods use, from the request to delete the
	// pods.
	UsedSeconds float64 `json:"usedSeconds"`
	UsedLists   int     `json:"usedPodLists"`
}

// bench is one run on a cluster of its own.
type bench struct {
	client *kubernetes.Clientset
	// claims are the names of all claims; those that pods use come first.
	claims []string
	pods   int
}

// deletion makes volumes, claims and pods, waits until all are bound and running, and times the
// deletion.
func (b *bench) deletion(ctx context.Context, subject string) (result, error) {
	r := result{Subject: subject, Claims: len(b.claims) - b.pods, Pods: b.pods}
	if err := b.prepare(ctx); err != nil {
		return r, err
	}
	listed, err := b.podLists(ctx)
	if err != nil {
		return r, err
	}
	list, err := b.client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return r, err
	}
	began := time.Now()
	err = each(ctx, b.claims, func(claim string) error {
		return b.client.CoreV1().PersistentVolumeClaims(namespace).Delete(ctx, claim, metav1.DeleteOptions{})
	})
	if err != nil {
		return r, err
	}
	r.Asked = time.Since(began).Seconds()
	version, err := b.gone(ctx, list.ResourceVersion, r.Claims)
	if err != nil {
		return r, err
	}
	r.Seconds = time.Since(began).Seconds()
	if r.Lists, err = b.listedSince(ctx, &listed); err != nil {
		return r, err
	}
	began = time.Now()
	err = each(ctx, b.claims[:b.pods], func(pod string) error {
		return b.client.CoreV1().Pods(namespace).Delete(ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	})
	if err != nil {
		return r, err
	}
	if _, err := b.gone(ctx, version, b.pods); err != nil {
		return r, err
	}
	r.UsedSeconds = time.Since(began).Seconds()
	r.UsedLists, err = b.listedSince(ctx, &listed)
	return r, err
}

// prepare makes the objects to delete. The volumes are written by hand, with policy Retain, so that
// only objects are created and deleted.
func (b *bench) prepare(ctx context.Context) error {
	storage := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	err := each(ctx, b.claims, func(claim string) error {
		_, err := b.client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim}, Spec: corev1.PersistentVolumeSpec{
			Capacity: storage, AccessModes: modes, StorageClassName: name, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp"}},
			ClaimRef:               &corev1.ObjectReference{Namespace: namespace, Name: claim},
		}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		_, err = b.client.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: claim}, Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(name), VolumeName: claim, AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: storage},
		}}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	err = each(ctx, b.claims[:b.pods], func(claim string) error {
		_, err := b.client.CoreV1().Pods(namespace).Create(ctx, podOf(claim), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	claims, running := b.client.CoreV1().PersistentVolumeClaims(namespace), b.client.CoreV1().Pods(namespace)
	err = reached(ctx, len(b.claims), "claims to be Bound", claims.List, claims.Watch, func(c *corev1.PersistentVolumeClaim) bool { return c.Status.Phase == corev1.ClaimBound })
	if err != nil {
		return err
	}
	return reached(ctx, b.pods, "pods to run", running.List, running.Watch, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
}

func podOf(claim string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: claim}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: image, Command: []string{"sleep", "1d"}, VolumeMounts: []corev1.VolumeMount{{Name: "d", MountPath: "/d"}}}},
		Volumes: []corev1.Volume{{Name: "d", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}},
	}}
}

// each calls do for every name, some in parallel.
func each(ctx context.Context, names []string, do func(string) error) error {
	failed := make([]error, len(names))
	workqueue.ParallelizeUntil(ctx, atOnce, len(names), func(i int) { failed[i] = do(names[i]) })
	return errors.Join(append(failed, ctx.Err())...)
}
