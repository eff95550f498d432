package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const (
	// kindLabel distinguishes the volumes to be bound from those that only exist beside them.
	kindLabel = "bench.tarn.dev/kind"
	kindFree  = "free"
	kindNoise = "noise"

	// driver is the name of a driver that does not exist: nothing is ever mounted.
	driver = "bench.tarn.dev"

	// makers is how many objects are made at once.
	makers = 16
)

var oneGi = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}

func volume(kind, name, class string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{kindLabel: kind}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      oneGi,
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			StorageClassName:              class,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name},
			},
		},
	}
}

func claim(name, class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: ptr.To(class),
			Resources:        corev1.VolumeResourceRequirements{Requests: oneGi},
		},
	}
}

// each calls do for 0 to n-1, up to atOnce in parallel, and gives the first error.
func each(ctx context.Context, n, atOnce int, do func(i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan int)
	var workers sync.WaitGroup
	for range min(atOnce, n) {
		workers.Go(func() {
			for i := range work {
				if err := do(i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		select {
		case work <- i:
		case <-ctx.Done():
		}
	}
	close(work)
	workers.Wait()
	return context.Cause(ctx)
}

// makeVolumes makes n volumes that any claim may use and waits until they are Available.
func (c *cluster) makeVolumes(ctx context.Context, n int, patience time.Duration) error {
	err := each(ctx, n, makers, func(i int) error { return c.makeVolume(ctx, volume(kindFree, numbered("volume", i), "")) })
	if err != nil {
		return fmt.Errorf("making volumes: %w", err)
	}
	return c.awaitVolumes(ctx, kindFree, n, corev1.VolumeAvailable, patience)
}

// makeNoise makes n volumes whose claims are gone. They are Released, with policy Retain.
func (c *cluster) makeNoise(ctx context.Context, n int, patience time.Duration) error {
	api := c.client.CoreV1().PersistentVolumes()
	err := each(ctx, n, makers, func(i int) error {
		v := volume(kindNoise, numbered("noise", i), "")
		v.Spec.ClaimRef = &corev1.ObjectReference{
			Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: namespace,
			Name: numbered("gone", i), UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i)),
		}
		made, err := api.Create(ctx, v, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		made.Status.Phase = corev1.VolumeReleased
		if _, err = api.UpdateStatus(ctx, made, metav1.UpdateOptions{}); apierrors.IsConflict(err) {
			return nil // the binder was faster, and writes the same
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("making Released volumes: %w", err)
	}
	return c.awaitVolumes(ctx, kindNoise, n, corev1.VolumeReleased, patience)
}

// makeClaims makes n claims as fast as the API server accepts them.
func (c *cluster) makeClaims(ctx context.Context, seen *claims, n int, class string) error {
	return each(ctx, n, makers, func(i int) error { return c.makeClaim(ctx, seen, numbered("claim", i), class) })
}

func (c *cluster) makeClaim(ctx context.Context, seen *claims, name, class string) error {
	seen.ask(name)
	err := untilAnswered(func() error {
		_, err := c.client.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, claim(name, class), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("making a claim: %w", err)
	}
	return nil
}

// makeVolume makes a volume without waiting for the binder.
func (c *cluster) makeVolume(ctx context.Context, v *corev1.PersistentVolume) error {
	return untilAnswered(func() error {
		_, err := c.client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{})
		return err
	})
}

// untilAnswered makes an object. An overloaded API server aborts a request after half a minute, and
// may or may not have made the object. Then untilAnswered retries, and the object exists or is made
// now.
func untilAnswered(create func() error) error {
	err := create()
	for apierrors.IsTimeout(err) {
		if err = create(); apierrors.IsAlreadyExists(err) {
			return nil
		}
	}
	return err
}

// makePairs makes volumes that are reserved for a claim by name, and their claims, at a constant
// rate.
func (c *cluster) makePairs(ctx context.Context, seen *claims, n, rate int) error {
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var pairs sync.WaitGroup
	errs := make(chan error, n)
	for i := range n {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		pairs.Go(func() {
			name := numbered("claim", i)
			v := volume(kindFree, numbered("volume", i), "")
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: name}
			err := c.makeVolume(ctx, v)
			if err == nil {
				err = c.makeClaim(ctx, seen, name, "")
			}
			if err != nil {
				errs <- err
			}
		})
	}
	pairs.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

func numbered(what string, i int) string { return fmt.Sprintf("%s-%05d", what, i) }
