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

// concurrencies are those at which the ceiling is looked for.
var concurrencies = []int{1, 4, 8, 16, 32, 64, 128}

// ceiling is how many writes a second the API server takes of the kind a binder makes.
type ceiling struct {
	Turn   int     `json:"turn"`
	Levels []level `json:"levels"`
}

// level is the ceiling at one concurrency and over a number of pairs.
type level struct {
	Concurrency int     `json:"concurrency"`
	Pairs       int     `json:"pairs"`
	PerSecond   float64 `json:"writesPerSecond"`
	// APIServer and Etcd are the seconds of processor time of a thousand writes.
	APIServer float64 `json:"apiserverSecondsPerThousand"`
	Etcd      float64 `json:"etcdSecondsPerThousand"`
}

// ceiling does by itself, in a cluster where nobody binds, the four writes of each
// binding, in their order and on pairs that are known, and watches the claims as every
// run does.
//
// The level that takes most is measured again for each size of the runs that is larger, which
// last longer: in a burst of a thousand pairs the API server may collect its garbage once or not.
func (c *cluster) ceiling(ctx context.Context, pairs int, sizes []int, turn int) (ceiling, error) {
	found := ceiling{Turn: turn}
	for _, concurrency := range concurrencies {
		one, err := c.level(ctx, pairs, concurrency)
		if err != nil {
			return ceiling{}, err // a part of it would be taken for the whole
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
			return ceiling{}, err // a part of it would be taken for the whole
		}
		found.Levels = append(found.Levels, one)
	}
	return found, nil
}

// of is the most writes a second of any level that was measured over as many pairs as there
// are claims, or else over the most that are fewer, or else over the fewest; 0 if there is none.
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

// asBinder makes a write a binder's own. Whoever binds is not who made the claims and volumes,
// and for each that wrote an object the API server has its fields to look through at every
// update: so the ceiling, and ideal, have them too.
var asBinder = metav1.UpdateOptions{FieldManager: "binder"}

// setPhase writes a volume's phase.
func (c *cluster) setPhase(ctx context.Context, v *corev1.PersistentVolume, phase corev1.PersistentVolumePhase) error {
	v.Status.Phase = phase
	if _, err := c.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, v, asBinder); err != nil {
		return fmt.Errorf("writing a volume's status: %w", err)
	}
	return nil
}

// bind does the four writes, or the three that are left where the volume names the claim already.
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
