package main

import (
	"context"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// idealWorkers is how many pairs are written at once, the same as in Tarn's binder.
const idealWorkers = 128

// ideal stands in for a binder that knows each pair in advance: claim-00007 gets volume-00007, or
// the volume that names it. It watches claims and volumes as any binder must, and makes the writes
// of a binding, each once and in order. It has no checks, caches, Events or retries. Its rate is
// thus what the API server accepts of a mode's writes, beside this program and the watches.
type ideal struct {
	cluster *cluster
	work    chan func() error
	fail    func(error)

	mu     sync.Mutex
	claims map[string]*corev1.PersistentVolumeClaim
	// volumes are the volumes by the name of their claim.
	volumes map[string]*corev1.PersistentVolume
	// begun are the steps already begun, by key.
	begun map[string]bool
}

// newIdeal starts an ideal binder for at most n claims, with some volumes beside theirs. It ends
// with ctx, and calls fail with its errors.
func (c *cluster) newIdeal(ctx context.Context, n int, fail func(error)) (*ideal, error) {
	b := &ideal{
		cluster: c, fail: fail, work: make(chan func() error, 3*n),
		claims: map[string]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{}, begun: map[string]bool{},
	}
	for range idealWorkers {
		go func() {
			for {
				select {
				case do := <-b.work:
					if err := do(); err != nil && ctx.Err() == nil {
						fail(err)
					}
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	api := c.client.CoreV1().PersistentVolumes()
	list, err := api.List(ctx, metav1.ListOptions{LabelSelector: kindLabel})
	if err != nil {
		return nil, fmt.Errorf("listing volumes: %w", err)
	}
	go func() {
		from := metav1.ListOptions{LabelSelector: kindLabel, ResourceVersion: list.ResourceVersion}
		err := follow(ctx, api.Watch, from, func(event watch.Event) bool {
			if volume, ok := event.Object.(*corev1.PersistentVolume); ok {
				b.seeVolume(ctx, volume)
			}
			return true
		})
		if err != nil && ctx.Err() == nil {
			fail(err)
		}
	}()
	return b, nil
}

func (b *ideal) seeVolume(ctx context.Context, v *corev1.PersistentVolume) {
	name := strings.Replace(v.Name, "volume", "claim", 1)
	switch {
	case v.Labels[kindLabel] != kindFree:
		return
	case v.Spec.ClaimRef != nil:
		name = v.Spec.ClaimRef.Name
	case v.Status.Phase != corev1.VolumeAvailable:
		b.once("offer "+name, func() error { return b.cluster.setPhase(ctx, v, corev1.VolumeAvailable) })
		return
	}
	b.mu.Lock()
	b.volumes[name] = v
	b.mu.Unlock()
	b.match(ctx, name)
}

func (b *ideal) seeClaim(ctx context.Context, wanted *corev1.PersistentVolumeClaim) {
	if *wanted.Spec.StorageClassName == dynamicClass && wanted.Annotations[provisionerAnnotation] == "" {
		b.once("order "+wanted.Name, func() error { return b.cluster.order(ctx, wanted) })
		return
	}
	b.mu.Lock()
	b.claims[wanted.Name] = wanted
	b.mu.Unlock()
	b.match(ctx, wanted.Name)
}

// match binds a claim and its volume as soon as it has seen both.
func (b *ideal) match(ctx context.Context, name string) {
	b.mu.Lock()
	wanted, v := b.claims[name], b.volumes[name]
	b.mu.Unlock()
	if wanted != nil && v != nil {
		b.once("bind "+name, func() error { return b.cluster.bind(ctx, v, wanted) })
	}
}

// once runs a step the first time it is called for it.
func (b *ideal) once(step string, do func() error) {
	b.mu.Lock()
	known := b.begun[step]
	b.begun[step] = true
	b.mu.Unlock()
	if !known {
		b.work <- do
	}
}

// order writes a provisioner's name on a claim.
func (c *cluster) order(ctx context.Context, wanted *corev1.PersistentVolumeClaim) error {
	metav1.SetMetaDataAnnotation(&wanted.ObjectMeta, provisionerAnnotation, driver)
	metav1.SetMetaDataAnnotation(&wanted.ObjectMeta, betaProvisionerAnnotation, driver)
	if _, err := c.client.CoreV1().PersistentVolumeClaims(wanted.Namespace).Update(ctx, wanted, asBinder); err != nil {
		return fmt.Errorf("putting the provisioner's name on a claim: %w", err)
	}
	return nil
}
