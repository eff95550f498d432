package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// concurrencies are those at which the ceiling is measured.
var concurrencies = []int{1, 4, 8, 16, 32, 64, 128}

// ceiling is how many writes of a binder's kind the API server accepts per second.
type ceiling struct {
	Turn   int     `json:"turn"`
	Levels []level `json:"levels"`
}

// level is the ceiling at one concurrency and over a number of pairs.
type level struct {
	Concurrency int     `json:"concurrency"`
	Pairs       int     `json:"pairs"`
	PerSecond   float64 `json:"writesPerSecond"`
	// APIServer and Etcd are the seconds of processor time for a thousand writes.
	APIServer float64 `json:"apiserverSecondsPerThousand"`
	Etcd      float64 `json:"etcdSecondsPerThousand"`
}

// ceiling does the four writes of each binding itself, in a cluster without a binder. The writes
// are in order, on pairs that are known. It also watches the claims, as every run does.
//
// The fastest level is measured again for each larger size of the runs, which last longer. In a
// burst of a thousand pairs, the API server may collect its garbage once or not at all.
func (c *cluster) ceiling(ctx context.Context, pairs int, sizes []int, turn int) (ceiling, error) {
	found := ceiling{Turn: turn}
	for _, concurrency := range concurrencies {
		one, err := c.level(ctx, pairs, concurrency)
		if err != nil {
			return ceiling{}, err // a part would be mistaken for the whole
		}
		found.Levels = append(found.Levels, one)
	}
	best := slices.MaxFunc(found.Levels, func(a, b level) int { return cmp.Compare(a.PerSecond, b.PerSecond) })
	for _, n := range sizes {
		if n <= pairs {
			continue
		}
		one, err := c.level(ctx, n, best.Concurrency)
		if err != nil {
			return ceiling{}, err // a part would be mistaken for the whole
		}
		found.Levels = append(found.Levels, one)
	}
	return found, nil
}

// of is the highest rate in writes per second of the levels with as many pairs as there are claims.
// If there is no such level, it takes the next smaller size, or else the smallest; 0 if nothing was
// measured.
func (c ceiling) of(claims int) float64 {
	pairs, best := 0, 0.0
	for _, l := range c.Levels {
		closer := pairs == 0 || l.Pairs <= claims && (l.Pairs > pairs || pairs > claims) || l.Pairs > claims && l.Pairs < pairs
		if closer {
			pairs, best = l.Pairs, 0
		}
		if l.Pairs == pairs {
			best = max(best, l.PerSecond)
		}
	}
	return best
}

func (c *cluster) level(ctx context.Context, pairs, concurrency int) (level, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	volumes, wanted := make([]*corev1.PersistentVolume, pairs), make([]*corev1.PersistentVolumeClaim, pairs)
	err := each(ctx, pairs, makers, func(i int) (err error) {
		prefix := fmt.Sprintf("level-%d-%d", pairs, concurrency)
		v := volume(kindFree, numbered(prefix, i), "")
		if v, err = c.client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{}); err != nil {
			return err
		}
		v.Status.Phase = corev1.VolumeAvailable
		if volumes[i], err = c.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, v, asBinder); err != nil {
			return err
		}
		wanted[i], err = c.client.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, claim(numbered(prefix, i), ""), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return level{}, fmt.Errorf("making the pairs: %w", err)
	}
	if _, err := c.watchClaims(ctx, pairs, nil); err != nil {
		return level{}, err
	}
	before, err := c.usage(ctx)
	if err != nil {
		return level{}, err
	}
	began := time.Now()
	if err := each(ctx, pairs, concurrency, func(i int) error { return c.bind(ctx, volumes[i], wanted[i]) }); err != nil {
		return level{}, err
	}
	took := time.Since(began)
	after, err := c.usage(ctx)
	if err != nil {
		return level{}, err
	}
	writes := float64(binderWrites * pairs)
	return level{
		Concurrency: concurrency, Pairs: pairs, PerSecond: writes / took.Seconds(),
		APIServer: (after.seconds[apiServer] - before.seconds[apiServer]) * 1000 / writes,
		Etcd:      (after.seconds[etcd] - before.seconds[etcd]) * 1000 / writes,
	}, nil
}

// asBinder gives a write the binder's field manager, which differs from that of the program that
// makes claims and volumes. At every update, the API server processes the fields of each manager of
// an object. The ceiling and ideal must have that cost too.
var asBinder = metav1.UpdateOptions{FieldManager: "binder"}

// setPhase writes a volume's phase.
func (c *cluster) setPhase(ctx context.Context, v *corev1.PersistentVolume, phase corev1.PersistentVolumePhase) error {
	v.Status.Phase = phase
	if _, err := c.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, v, asBinder); err != nil {
		return fmt.Errorf("writing a volume's status: %w", err)
	}
	return nil
}

// bind does the four writes, or the remaining three where the volume names the claim already.
func (c *cluster) bind(ctx context.Context, v *corev1.PersistentVolume, wanted *corev1.PersistentVolumeClaim) (err error) {
	if v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != wanted.UID {
		v.Spec.ClaimRef = &corev1.ObjectReference{
			Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: wanted.Namespace, Name: wanted.Name,
			UID: wanted.UID, ResourceVersion: wanted.ResourceVersion,
		}
		if v, err = c.client.CoreV1().PersistentVolumes().Update(ctx, v, asBinder); err != nil {
			return fmt.Errorf("reserving a volume: %w", err)
		}
	}
	if err := c.setPhase(ctx, v, corev1.VolumeBound); err != nil {
		return err
	}
	wanted.Spec.VolumeName = v.Name
	metav1.SetMetaDataAnnotation(&wanted.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
	metav1.SetMetaDataAnnotation(&wanted.ObjectMeta, "pv.kubernetes.io/bound-by-controller", "yes")
	if wanted, err = c.client.CoreV1().PersistentVolumeClaims(wanted.Namespace).Update(ctx, wanted, asBinder); err != nil {
		return fmt.Errorf("writing a claim: %w", err)
	}
	wanted.Status.Phase, wanted.Status.AccessModes, wanted.Status.Capacity = corev1.ClaimBound, v.Spec.AccessModes, v.Spec.Capacity
	if _, err = c.client.CoreV1().PersistentVolumeClaims(wanted.Namespace).UpdateStatus(ctx, wanted, asBinder); err != nil {
		return fmt.Errorf("writing a claim's status: %w", err)
	}
	return nil
}
