package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// agree reads all claims and volumes and reports where the two sides differ.
func (c *cluster) agree(ctx context.Context, n int) error {
	wanted, err := c.client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing claims: %w", err)
	}
	volumes, err := c.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{LabelSelector: kindLabel + "=" + kindFree})
	if err != nil {
		return fmt.Errorf("listing volumes: %w", err)
	}
	if len(wanted.Items) != n || len(volumes.Items) != n {
		return fmt.Errorf("there are %d claims and %d volumes, want %d of each", len(wanted.Items), len(volumes.Items), n)
	}
	return pairwise(wanted.Items, volumes.Items)
}

// pairwise returns an error for a claim that is not bound, both ways, to a volume of its own.
func pairwise(wanted []corev1.PersistentVolumeClaim, volumes []corev1.PersistentVolume) error {
	byName := map[string]*corev1.PersistentVolume{}
	for i := range volumes {
		byName[volumes[i].Name] = &volumes[i]
	}
	for i := range wanted {
		claim := &wanted[i]
		v := byName[claim.Spec.VolumeName]
		switch {
		case claim.Status.Phase != corev1.ClaimBound:
			return fmt.Errorf("claim %s is %s", claim.Name, claim.Status.Phase)
		case v == nil:
			return fmt.Errorf("claim %s has volume %q, which is not there or another claim's too", claim.Name, claim.Spec.VolumeName)
		case v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != claim.UID:
			return fmt.Errorf("claim %s has volume %s, which says it is of %+v", claim.Name, v.Name, v.Spec.ClaimRef)
		case v.Status.Phase != corev1.VolumeBound:
			return fmt.Errorf("volume %s of claim %s is %s", v.Name, claim.Name, v.Status.Phase)
		}
		delete(byName, v.Name)
	}
	return nil
}
