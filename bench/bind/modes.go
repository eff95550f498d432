package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// patienceFor is how long a number of claims may take. The slowest peer binds five per second, and
// each claim takes several steps.
func patienceFor(n int) time.Duration { return 2*time.Minute + time.Duration(n)*400*time.Millisecond }

// bindings does one run of a mode with a binder.
func (c *cluster) bindings(ctx context.Context, s settings, one planned) (result, error) {
	found := result{Subject: one.subject.name, Mode: one.mode, Claims: one.n, Turn: one.turn}
	if one.mode == modePrebound {
		found.Rate = s.rate
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var watchers []func(*corev1.PersistentVolumeClaim)
	if one.subject.process == thisProgram {
		binder, err := c.newIdeal(ctx, one.n, fail)
		if err != nil {
			return found, err
		}
		watchers = append(watchers, func(waiting *corev1.PersistentVolumeClaim) { binder.seeClaim(ctx, waiting) })
	}
	if err := c.prepare(ctx, s, one); err != nil {
		return found, err
	}
	if one.mode == modeDynamic {
		watchers = append(watchers, c.newProvisioner(ctx, one.n, fail).see)
	}
	seen, err := c.watchClaims(ctx, one.n, func(waiting *corev1.PersistentVolumeClaim) {
		for _, see := range watchers {
			see(waiting)
		}
	})
	if err != nil {
		return found, err
	}
	before, err := c.usage(ctx)
	if err != nil {
		return found, err
	}
	profiled := c.profile(ctx, s.profiles, one)
	err = c.load(ctx, s, one, seen)
	made := time.Now()
	if err == nil {
		err = seen.awaitAll(ctx, patienceFor(one.n))
	}
	after, usageErr := c.usage(ctx)
	found.fill(seen, made)
	if err == nil {
		err = usageErr
	}
	if err == nil {
		err = <-profiled
	}
	if err != nil {
		return found, err
	}
	found.spent(before, after, c.subject.process)
	if err := c.awaitVolumes(ctx, kindFree, one.n, corev1.VolumeBound, patienceFor(one.n)); err != nil {
		return found, err
	}
	if err := c.agree(ctx, one.n); err != nil {
		return found, err
	}
	found.Agree = true
	return found, nil
}

// prepare makes the objects that must exist before the first claim.
func (c *cluster) prepare(ctx context.Context, s settings, one planned) error {
	switch one.mode {
	case modeMatch:
		return c.makeVolumes(ctx, one.n, patienceFor(one.n))
	case modeNoise:
		if err := c.makeNoise(ctx, s.noise, patienceFor(s.noise)); err != nil {
			return err
		}
		return c.makeVolumes(ctx, one.n, patienceFor(one.n))
	case modeDynamic:
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: dynamicClass}, Provisioner: driver}
		if _, err := c.client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("making the class: %w", err)
		}
	}
	return nil
}

// load makes the claims.
func (c *cluster) load(ctx context.Context, s settings, one planned, seen *claims) error {
	switch one.mode {
	case modePrebound:
		return c.makePairs(ctx, seen, one.n, s.rate)
	case modeDynamic:
		return c.makeClaims(ctx, seen, one.n, dynamicClass)
	}
	return c.makeClaims(ctx, seen, one.n, "")
}

// ownWrites are the writes of this program for each binding of a mode, and binderWrites the fewest
// a binder needs. A binder writes volume, its status, claim and its status. A dynamic volume names
// its claim already; there the binder writes the claim's annotations instead of the volume.
func ownWrites(mode string) map[string]int {
	switch mode {
	case modePrebound, modeDynamic:
		return map[string]int{"POST persistentvolumeclaims": 1, "POST persistentvolumes": 1}
	}
	return map[string]int{"POST persistentvolumeclaims": 1}
}

const binderWrites = 4

// writesPerBinding is the total of the API server's writes for one binding.
func writesPerBinding(mode string) int {
	total := binderWrites
	for _, n := range ownWrites(mode) {
		total += n
	}
	return total
}
