// Command volumes measures, on the cluster of $KUBECONFIG, how long a claim and a pod take with a
// volume made by pods: one creates it, one stages it. It compares that with a pod without a volume
// on the same cluster. It uses only the API.
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
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/bench/results"
)

const (
	name      = "bench-volumes"
	namespace = "default"
	image     = "busybox:1.36"
)

func main() {
	rounds := flag.Int("n", 10, "how often one claim and pod are timed, one at a time")
	batch := flag.Int("batch", 20, "how many claims and pods are made at once")
	window := flag.Int("window", 0, "of those at once, how many are made before another is Ready; 0 for all")
	folder := flag.String("results", "bench/results", "directory for the results; empty for none")
	program := flag.String("cluster", "bin/tarn-cluster", "the program tarn-cluster that the cluster is of, for the results")
	traced := flag.Bool("trace", false, "make one claim and pod alone, and print every change of an object on the way")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	r := report{Began: time.Now().UTC().Truncate(time.Second), Machine: results.ThisMachine(ctx, *program, "")}
	err := run(ctx, &r, *rounds, *batch, *window, *traced)
	if slices.ContainsFunc(r.Verdicts, func(v verdict) bool { return !v.Reached }) {
		err = errors.Join(err, results.ErrMissed)
	}
	if err = errors.Join(err, r.save(*folder)); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, r *report, rounds, batch, window int, traced bool) error {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("no way to a cluster: %w; set KUBECONFIG", err)
	}
	config.QPS, config.Burst = -1, -1
	s := runtime.NewScheme()
	if err := scheme.AddToScheme(s); err != nil {
		return err
	}
	if err := errors.Join(pavv1.AddToScheme(s), tarnv1.AddToScheme(s)); err != nil {
		return err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: s})
	if err != nil {
		return err
	}
	b := &bench{client: c, config: config, report: r}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	if traced {
		err = b.trace(ctx, name+"-trace")
	} else {
		err = b.measure(ctx, rounds, batch, window)
	}
	if cleanErr := b.clean(context.WithoutCancel(ctx)); err == nil {
		err = cleanErr
	}
	return err
}

type bench struct {
	client client.WithWatch
	config *rest.Config
	report *report
}

// prepare makes the provisioner and waits until a node serves it.
func (b *bench) prepare(ctx context.Context) error {
	section := func(command string) *apiextensionsv1.JSON {
		return &apiextensionsv1.JSON{Raw: fmt.Appendf(nil, `{"podTemplate": {"spec": {"restartPolicy": "Never", "containers": [
			{"name": "c", "image": %q, "command": ["sh", "-c", %q]}]}}}`, image, command)}
	}
	p := &pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: pavv1.PavProvisionerSpec{
		ProvisioningModes: []pavv1.ProvisioningMode{pavv1.ModeDynamic},
		VolumeCreation:    section("echo {{ requestedMinCapacity }} > /pav/capacity"),
		VolumeStaging:     section("mkdir /pav/volume && echo hello > /pav/volume/greeting"),
	}}
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: name}
	for _, o := range []client.Object{p, class} {
		if err := client.IgnoreAlreadyExists(b.client.Create(ctx, o)); err != nil {
			return err
		}
	}
	_, err := await(ctx, b.client, &pavv1.PavProvisionerList{}, name, "", func(p *pavv1.PavProvisioner) bool { return p.Status.Nodes > 0 })
	return err
}

func (b *bench) measure(ctx context.Context, rounds, batch, window int) error {
	if rounds > 0 {
		if err := b.timeOneByOne(ctx, rounds); err != nil {
			return err
		}
	}
	if batch == 0 {
		return nil
	}
	return b.timeAtOnce(ctx, batch, window)
}

// timeOneByOne times claims and pods one at a time, beside pods without a volume. It reports where
// the time was spent.
func (b *bench) timeOneByOne(ctx context.Context, rounds int) error {
	watching, enough := context.WithCancel(ctx)
	defer enough()
	s, err := b.watch(watching)
	if err != nil {
		return err
	}
	countBefore, tookBefore, err := sandboxes(ctx, b.client, b.config)
	if err != nil {
		return err
	}
	var bare, bound, ready []time.Duration
	var ways []round
	for i := range rounds {
		took, err := b.barePod(ctx, fmt.Sprintf("%s-bare-%d", name, i))
		if err != nil {
			return err
		}
		bare = append(bare, took)
		r := round{id: fmt.Sprintf("%s-%d", name, i), began: time.Now()}
		claimTook, podTook, err := b.volumePod(ctx, r.id, r.began)
		if err != nil {
			return err
		}
		r.bound, r.ready = r.began.Add(claimTook), r.began.Add(podTook)
		bound, ready, ways = append(bound, claimTook), append(ready, podTook), append(ways, r)
	}
	count, took, err := sandboxes(ctx, b.client, b.config)
	if err != nil {
		return err
	}
	fmt.Printf("one at a time, %d rounds\n", rounds)
	b.report.OneByOne = &oneByOne{Rounds: rounds, Bare: print3("pod without a volume: Ready", bare), Bound: print3("claim: Bound", bound), Ready: print3("pod with the volume: Ready", ready)}
	b.report.judge("claim Bound, p50", b.report.OneByOne.Bound.P50, askedBound)
	b.report.judge("pod Ready, p50", b.report.OneByOne.Ready.P50, askedReady)
	if err := s.whole(); err != nil {
		return err
	}
	b.report.OneByOne.Legs, b.report.OneByOne.InNoLeg = legs(ways, s.firsts(), time.Duration(float64(took-tookBefore)/max(count-countBefore, 1)))
	printWay(os.Stdout, b.report.OneByOne)
	return nil
}

// timeAtOnce makes claims and pods all at once, or at most a window of them that are not yet Ready.
// It times each from the start of all.
func (b *bench) timeAtOnce(ctx context.Context, batch, window int) error {
	type outcome struct {
		took time.Duration
		err  error
	}
	if window == 0 {
		window = batch
	}
	results, slots, began := make(chan outcome), make(chan struct{}, window), time.Now()
	for i := range batch {
		go func() {
			slots <- struct{}{}
			_, took, err := b.volumePod(ctx, fmt.Sprintf("%s-batch-%d", name, i), began)
			<-slots
			results <- outcome{took, err}
		}()
	}
	var ready []time.Duration
	var failed error
	for range batch {
		r := <-results
		if r.err != nil {
			failed = r.err
		}
		ready = append(ready, r.took)
	}
	if failed != nil {
		return failed
	}
	rate := float64(batch) / slices.Max(ready).Seconds()
	fmt.Printf("%d at once: %.2f a second\n", batch, rate)
	b.report.AtOnce = &atOnce{Claims: batch, Window: window, Rate: rate, Ready: print3("pod with the volume: Ready", ready)}
	if batch == askedBatch && window == batch {
		b.report.judge(fmt.Sprintf("%d at once, seconds for one", batch), 1/rate, 1/askedRate)
	}
	return nil
}

func (b *bench) barePod(ctx context.Context, id string) (time.Duration, error) {
	return b.start(ctx, pod(id), time.Now())
}

// volumePod makes a claim and its pod together. It gives when the claim was Bound and the pod
// Ready, both counted from began.
func (b *bench) volumePod(ctx context.Context, id string, began time.Time) (bound, ready time.Duration, err error) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: id},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To(name),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		},
	}
	if err := b.client.Create(ctx, claim); err != nil {
		return 0, 0, err
	}
	p := pod(id)
	p.Spec.Volumes = []corev1.Volume{{Name: "d", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: id},
	}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "d", MountPath: "/data"}}
	boundAt := make(chan time.Time, 1)
	go func() {
		at, _ := await(ctx, b.client, &corev1.PersistentVolumeClaimList{}, id, namespace, func(c *corev1.PersistentVolumeClaim) bool {
			return c.Status.Phase == corev1.ClaimBound
		})
		boundAt <- at
	}()
	ready, err = b.start(ctx, p, began)
	if err != nil {
		return 0, 0, err
	}
	return (<-boundAt).Sub(began), ready, b.client.Delete(ctx, claim)
}

// start makes a pod, waits until it is Ready, and removes it.
func (b *bench) start(ctx context.Context, p *corev1.Pod, began time.Time) (time.Duration, error) {
	if err := b.client.Create(ctx, p); err != nil {
		return 0, err
	}
	at, err := await(ctx, b.client, &corev1.PodList{}, p.Name, namespace, func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	})
	if err != nil {
		return 0, err
	}
	return at.Sub(began), b.client.Delete(ctx, p, client.GracePeriodSeconds(0))
}

func pod(id string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: id},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			Containers:                    []corev1.Container{{Name: "c", Image: image, Command: []string{"sleep", "1000"}}},
		},
	}
}

func (b *bench) clean(ctx context.Context) error {
	for _, o := range []client.Object{
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}},
		&pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: name}},
	} {
		if err := client.IgnoreNotFound(b.client.Delete(ctx, o)); err != nil {
			return err
		}
	}
	return b.gone(ctx)
}
