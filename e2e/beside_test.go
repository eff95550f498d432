//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// beside is a test's own cluster, beside the suite's: without a node, and with controllers set up
// differently.
type beside struct {
	machine
	t      *testing.T
	live   client.WithWatch
	cached cache.Cache
	news   *news
}

// startBeside starts a cluster with the arguments given, and removes it when the test ends.
func startBeside(t *testing.T, label string, args ...string) *beside {
	t.Helper()
	if !suite.machine.here() {
		t.Skip("no tarn-cluster to start a cluster with: TARN_CLUSTER_BINARY and TARN_CLUSTER_NAME are not set")
	}
	b := &beside{t: t, news: newNews(), machine: machine{binary: suite.machine.binary, name: suite.machine.name + "-" + label, kills: &killing{}}}
	b.must("down") // an interrupted run may have left one
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range []string{controller, standby, "etcd", "supervisor"} {
				t.Logf("end of the log of %s:\n%s", name, b.log(name, 40))
			}
		}
		b.must("down")
	})
	b.must(append([]string{"up", "--without-node"}, args...)...)
	config, err := clientcmd.BuildConfigFromFlags("", strings.TrimSpace(b.must("kubeconfig")))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = -1, -1
	if b.live, err = client.NewWithWatch(config, client.Options{Scheme: suite.live.Scheme()}); err != nil {
		t.Fatal(err)
	}
	if b.cached, err = cache.New(config, cache.Options{Scheme: suite.live.Scheme()}); err != nil {
		t.Fatal(err)
	}
	b.follow()
	return b
}

// follow starts the watches and returns when their first lists are complete.
func (b *beside) follow() {
	b.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	b.t.Cleanup(stop)
	for _, kind := range []client.Object{&corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}, &tarn.PavVolume{}, &coordinationv1.Lease{}} {
		informer, err := b.cached.GetInformer(ctx, kind)
		if err != nil {
			b.t.Fatalf("following %T: %v", kind, err)
		}
		if _, err := informer.AddEventHandler(b.news); err != nil {
			b.t.Fatal(err)
		}
	}
	go func() { _ = b.cached.Start(ctx) }() // returns when ctx ends
	if !b.cached.WaitForCacheSync(ctx) {
		b.t.Fatal("the initial lists did not arrive")
	}
}

// must runs tarn-cluster and gives its output.
func (b *beside) must(args ...string) string {
	b.t.Helper()
	out, err := b.run(args...)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// makeAll makes many objects, some in parallel. The channel receives the result when all are made.
func (b *beside) makeAll(objects []client.Object) <-chan error {
	const makers = 16
	done, work, results := make(chan error, 1), make(chan client.Object), make(chan error, len(objects))
	for range makers {
		go func() {
			for o := range work {
				results <- b.live.Create(b.t.Context(), o)
			}
		}()
	}
	go func() {
		for _, o := range objects {
			work <- o
		}
		close(work)
		var failed error
		for range objects {
			failed = errors.Join(failed, <-results)
		}
		done <- failed
	}()
	return done
}

// made waits until makeAll has made all objects.
func (b *beside) made(done <-chan error) {
	b.t.Helper()
	if err := <-done; err != nil {
		b.t.Fatal(err)
	}
}

// until polls for changes without events, such as those of processes.
func (b *beside) until(what string, check func() (bool, string)) {
	b.t.Helper()
	over, again := time.NewTimer(soon), time.NewTicker(50*time.Millisecond)
	defer over.Stop()
	defer again.Stop()
	for {
		done, state := check()
		if done {
			return
		}
		select {
		case <-again.C:
		case <-over.C:
			b.t.Fatalf("waited %s for %s: %s", soon, what, state)
		}
	}
}

// await waits for a state of the cluster, and fails the test at the deadline.
func (b *beside) await(what string, within time.Duration, check func() (bool, string)) {
	b.t.Helper()
	if !b.news.await(b.t, what, within, check) {
		b.t.FailNow()
	}
}

// claims and volumes are those in the cache. The caller must not change them.
func (b *beside) claims() []corev1.PersistentVolumeClaim {
	b.t.Helper()
	var list corev1.PersistentVolumeClaimList
	if err := b.cached.List(b.t.Context(), &list, client.UnsafeDisableDeepCopy); err != nil {
		b.t.Fatal(err)
	}
	return list.Items
}

func (b *beside) volumes() []corev1.PersistentVolume {
	b.t.Helper()
	var list corev1.PersistentVolumeList
	if err := b.cached.List(b.t.Context(), &list, client.UnsafeDisableDeepCopy); err != nil {
		b.t.Fatal(err)
	}
	return list.Items
}

// bound gives how many claims are Bound.
func (b *beside) bound() int {
	b.t.Helper()
	n := 0
	for _, claim := range b.claims() {
		if claim.Status.Phase == corev1.ClaimBound {
			n++
		}
	}
	return n
}

// inPhase gives how many volumes have a phase.
func (b *beside) inPhase(phase corev1.PersistentVolumePhase) int {
	b.t.Helper()
	n := 0
	for _, volume := range b.volumes() {
		if volume.Status.Phase == phase {
			n++
		}
	}
	return n
}

// pairedOneToOne fails the test unless each claim names a volume of its own that names it back. It
// reads from the API server.
func (b *beside) pairedOneToOne() {
	b.t.Helper()
	var claims corev1.PersistentVolumeClaimList
	var volumes corev1.PersistentVolumeList
	for _, list := range []client.ObjectList{&claims, &volumes} {
		if err := b.live.List(b.t.Context(), list); err != nil {
			b.t.Fatal(err)
		}
	}
	byName, taken := map[string]corev1.PersistentVolume{}, 0
	for _, volume := range volumes.Items {
		byName[volume.Name] = volume
		if volume.Spec.ClaimRef != nil {
			taken++
		}
	}
	for _, claim := range claims.Items {
		volume, there := byName[claim.Spec.VolumeName]
		if !there {
			b.t.Errorf("claim %s names volume %q, which is not there or another claim's", claim.Name, claim.Spec.VolumeName)
			continue
		}
		delete(byName, volume.Name)
		if claim.Status.Phase != corev1.ClaimBound || volume.Status.Phase != corev1.VolumeBound || volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID {
			b.t.Errorf("claim %s is %s with volume %s, which is %s and of %+v", claim.Name, claim.Status.Phase, volume.Name, volume.Status.Phase, volume.Spec.ClaimRef)
		}
	}
	if taken != len(claims.Items) {
		b.t.Errorf("%d volumes are taken by %d claims", taken, len(claims.Items))
	}
}

// metric gives the lines of a component's metrics that begin with a name.
func (b *beside) metric(component, name string) []string {
	b.t.Helper()
	c, err := b.component(component)
	if err != nil {
		b.t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, "http://"+c.Metrics+"/metrics", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil // the process is being restarted
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, name) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// staticVolume is a volume that any claim without a class may use.
func staticVolume(i int) *corev1.PersistentVolume {
	name := fmt.Sprintf("static-%04d", i)
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size("1Mi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "e2e.invalid", VolumeHandle: name}},
		},
	}
}

// claimOf asks for a volume of a class; the static volumes have the empty one.
func claimOf(class, name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(class), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources: corev1.VolumeResourceRequirements{Requests: size("1Mi")},
		},
	}
}
