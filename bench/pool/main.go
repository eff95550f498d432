// Command pool measures, on the cluster of $KUBECONFIG, how soon claims served from a pool are
// bound, at a fixed rate, until the pool is empty. It also measures how fast the pool fills,
// compared with plain provisioning of the same class. It uses only the API.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

const (
	name      = "bench-pool"
	namespace = "default"

	// The goals: how soon a claim served by the pool must be Bound.
	askedP50, askedP99 = 30 * time.Millisecond, 200 * time.Millisecond
)

func main() {
	size := flag.Int("n", 200, "how many spare volumes there are at the start")
	rate := flag.Int("rate", 50, "how many claims are made in a second")
	class := flag.String("class", "local-path", "StorageClass of the pool")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := run(ctx, *size, *rate, *class); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type bench struct {
	client client.WithWatch
	class  string
}

func run(ctx context.Context, size, rate int, class string) error {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("no way to a cluster: %w; set KUBECONFIG", err)
	}
	config.QPS, config.Burst = -1, -1
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), tarnv1.AddToScheme(s)); err != nil {
		return err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: s})
	if err != nil {
		return err
	}
	b := &bench{client: c, class: class}
	err = b.measure(ctx, size, rate)
	return errors.Join(err, b.clean(context.WithoutCancel(ctx)))
}

// measure fills a pool and empties it at the rate without replacement, and fills it again. Then it
// empties it once more while the pool refills. Last it makes as many volumes without a pool.
func (b *bench) measure(ctx context.Context, size, rate int) error {
	set := b.set(size)
	began := time.Now()
	if err := b.client.Create(ctx, set); err != nil {
		return err
	}
	if err := b.filled(ctx, size); err != nil {
		return err
	}
	report(fmt.Sprintf("pool of %d: filled", size), time.Since(began), size)
	if err := b.draw(ctx, "drawn", "nothing made again", size, rate); err != nil {
		return err
	}
	began = time.Now()
	before := client.MergeFrom(set.DeepCopy())
	set.Spec.MaximumReplicas *= 3
	if err := b.client.Patch(ctx, set, before); err != nil {
		return err
	}
	if err := b.filled(ctx, size); err != nil {
		return err
	}
	report("pool: filled again", time.Since(began), size)
	if err := b.draw(ctx, "behind", "filling up behind", size, rate); err != nil {
		return err
	}
	if err := b.clean(ctx); err != nil {
		return err
	}
	began = time.Now()
	if _, err := b.claims(ctx, "plain", size, 1000); err != nil {
		return err
	}
	report(fmt.Sprintf("plain provisioning of %d", size), time.Since(began), size)
	return nil
}

// draw serves claims from the pool and prints how long they took.
func (b *bench) draw(ctx context.Context, prefix, how string, size, rate int) error {
	took, err := b.claims(ctx, prefix, size, rate)
	if err != nil {
		return err
	}
	slices.Sort(took)
	at := func(percent int) time.Duration {
		return took[min(len(took)*percent/100, len(took)-1)].Round(time.Millisecond)
	}
	fmt.Printf("claims from the pool, %d at %d a second, %s: Bound p50 %s, p99 %s, max %s\n", size, rate, how, at(50), at(99), took[len(took)-1].Round(time.Millisecond))
	within := "within"
	if at(50) > askedP50 || at(99) > askedP99 {
		within = "NOT within"
	}
	fmt.Printf("  %s the p50 of %s and p99 of %s that are asked for\n", within, askedP50, askedP99)
	return nil
}

func report(what string, took time.Duration, n int) {
	fmt.Printf("%s in %.1f s, %.1f a second\n", what, took.Seconds(), float64(n)/took.Seconds())
}

func storage() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
}

func (b *bench) set(size int) *tarnv1.PersistentVolumeSet {
	labels := map[string]string{"bench": name}
	return &tarnv1.PersistentVolumeSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: tarnv1.PersistentVolumeSetSpec{
			MinimumReplicas: int32(size), MaximumReplicas: int32(size), Selector: labels, //nolint:gosec // a flag of some hundreds
			Template: tarnv1.PersistentVolumeSetTemplate{
				Metadata: tarnv1.PersistentVolumeSetTemplateMetadata{Labels: labels},
				Spec: corev1.PersistentVolumeSpec{
					StorageClassName: b.class, Capacity: storage(), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				},
			},
		},
	}
}

// filled waits until the set has the given number of spares.
func (b *bench) filled(ctx context.Context, size int) error {
	w, err := b.client.Watch(ctx, &tarnv1.PersistentVolumeSetList{}, client.MatchingFields{"metadata.name": name})
	if err != nil {
		return err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if set, ok := event.Object.(*tarnv1.PersistentVolumeSet); ok && int(set.Status.UnboundReplicas) >= size {
			return nil
		}
	}
	return fmt.Errorf("the pool was not filled: %w", ctx.Err())
}

// claims makes claims at a rate and gives how long each took until Bound.
func (b *bench) claims(ctx context.Context, prefix string, n, rate int) ([]time.Duration, error) {
	w, err := b.client.Watch(ctx, &corev1.PersistentVolumeClaimList{}, client.InNamespace(namespace), client.MatchingLabels{"bench": name})
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	failed := make(chan error, 1)
	go func() { failed <- b.order(ctx, prefix, n, rate) }()
	made, took := map[string]time.Time{}, []time.Duration(nil)
	for len(took) < n {
		select {
		case err := <-failed:
			if err != nil {
				return nil, err
			}
			failed = nil
		case event, open := <-w.ResultChan():
			if !open {
				return nil, fmt.Errorf("%d of %d claims were bound: %w", len(took), n, ctx.Err())
			}
			claim, ok := event.Object.(*corev1.PersistentVolumeClaim)
			switch {
			case !ok:
			case event.Type == watch.Added:
				made[claim.Name] = time.Now()
			case claim.Status.Phase == corev1.ClaimBound && !made[claim.Name].IsZero():
				took = append(took, time.Since(made[claim.Name]))
				delete(made, claim.Name)
			}
		}
	}
	return took, nil
}

func (b *bench) order(ctx context.Context, prefix string, n, rate int) error {
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	for i := range n {
		err := b.client.Create(ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%s-%d", name, prefix, i), Labels: map[string]string{"bench": name}},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &b.class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: storage()},
			},
		})
		if err != nil {
			return err
		}
		<-ticker.C
	}
	return nil
}

// clean deletes the set and the claims. It waits until the claims and their volumes are gone.
func (b *bench) clean(ctx context.Context) error {
	set := &tarnv1.PersistentVolumeSet{ObjectMeta: metav1.ObjectMeta{Name: name}}
	claims := &corev1.PersistentVolumeClaim{}
	err := errors.Join(client.IgnoreNotFound(b.client.Delete(ctx, set)),
		b.client.DeleteAllOf(ctx, claims, client.InNamespace(namespace), client.MatchingLabels{"bench": name}))
	if err != nil {
		return err
	}
	w, err := b.client.Watch(ctx, &corev1.PersistentVolumeList{})
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		volumes, left := &corev1.PersistentVolumeList{}, 0
		if err := b.client.List(ctx, volumes); err != nil {
			return err
		}
		for i := range volumes.Items {
			if ref := volumes.Items[i].Spec.ClaimRef; volumes.Items[i].Labels["bench"] == name || ref != nil && ref.Namespace == namespace {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		select {
		case <-w.ResultChan():
		case <-ctx.Done():
			return fmt.Errorf("%d volumes are left: %w", left, ctx.Err())
		}
	}
}
