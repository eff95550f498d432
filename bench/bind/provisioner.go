package main

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	dynamicClass = "bench-dynamic"

	provisionerAnnotation     = "volume.kubernetes.io/storage-provisioner"
	betaProvisionerAnnotation = "volume.beta.kubernetes.io/storage-provisioner"
	provisionedBy             = "pv.kubernetes.io/provisioned-by"
	provisionerFinalizer      = "external-provisioner.volume.kubernetes.io/finalizer"
)

// provisioner stands in for an external provisioner whose storage takes no time. A claim with its
// name gets a volume at once, with everything that the contract with the binder requires. It sends
// no Events.
type provisioner struct {
	cluster *cluster
	work    chan *corev1.PersistentVolumeClaim

	mu    sync.Mutex
	begun map[types.UID]bool
}

// newProvisioner starts a provisioner for at most n claims. It ends with ctx, and calls fail with
// its errors.
func (c *cluster) newProvisioner(ctx context.Context, n int, fail func(error)) *provisioner {
	p := &provisioner{cluster: c, work: make(chan *corev1.PersistentVolumeClaim, n), begun: map[types.UID]bool{}}
	for range makers {
		go func() {
			for {
				select {
				case claim := <-p.work:
					if err := p.provision(ctx, claim); err != nil {
						fail(err)
					}
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	return p
}

// see starts work, once, on a claim that asks for a volume.
func (p *provisioner) see(claim *corev1.PersistentVolumeClaim) {
	if claim.Annotations[provisionerAnnotation] != driver || claim.Spec.VolumeName != "" {
		return
	}
	p.mu.Lock()
	known := p.begun[claim.UID]
	p.begun[claim.UID] = true
	p.mu.Unlock()
	if !known {
		p.work <- claim
	}
}

func (p *provisioner) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	v := volume(kindFree, "pvc-"+string(claim.UID), dynamicClass)
	v.Annotations = map[string]string{provisionedBy: driver}
	v.Finalizers = []string{provisionerFinalizer}
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	v.Spec.ClaimRef = &corev1.ObjectReference{
		Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name,
		UID: claim.UID, ResourceVersion: claim.ResourceVersion,
	}
	if err := p.cluster.makeVolume(ctx, v); err != nil {
		return fmt.Errorf("making a dynamic volume: %w", err)
	}
	return nil
}
