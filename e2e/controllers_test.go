//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

const (
	// standby is the second controller of a cluster that has two.
	standby = "tarn-controller-2"
	// manyAtOnce is how long hundreds of claims may take, whatever else the machine does.
	manyAtOnce = 5 * time.Minute
)

// Two controllers run, and the working one stops in each possible way.
func TestAnotherControllerTakesOver(t *testing.T) {
	t.Parallel()
	b := startBeside(t, "standby", "--binder=tarn", "--tarn-controllers=2")
	const n = 200
	b.made(b.makeAll([]client.Object{
		(&scenario{t: t, name: "e2e-standby"}).provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}),
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "e2e-standby"}, Provisioner: "e2e-standby"},
	}))
	var objects []client.Object
	for i := range n {
		objects = append(objects, staticVolume(i), claimOf("", fmt.Sprintf("static-%04d", i)), claimOf("e2e-standby", fmt.Sprintf("dynamic-%04d", i)))
	}
	b.within("killed in the middle of binding and provisioning, and nothing is lost or doubled", func(b *beside) {
		done := b.makeAll(objects)
		b.await("some claims to be Bound", manyAtOnce, func() (bool, string) {
			found := b.bound()
			return found >= n/4, fmt.Sprintf("%d are", found)
		})
		b.followed(b.leader())
		left := 2*n - b.bound()
		b.made(done)
		b.await("all claims to be Bound", manyAtOnce, func() (bool, string) {
			return b.bound() == 2*n && b.inPhase(corev1.VolumeBound) == 2*n, fmt.Sprintf("%d claims and %d volumes are", b.bound(), b.inPhase(corev1.VolumeBound))
		})
		t.Logf("%d claims were left to the new leader", left)
		b.pairedOneToOne()
		b.records(n)
	})
	b.within("told to end, and gives its lease back", func(b *beside) {
		held, leader := b.lease(), b.leader()
		b.must("restart", leader)
		if _, next := b.handover(held); holder(next) != "" {
			t.Errorf("the lease went from %s to %s without having been given back", holder(held), holder(next))
		}
		b.await("another to hold the lease", soon, func() (bool, string) {
			return holder(b.lease()) != "" && holder(b.lease()) != holder(held), "it is held by " + holder(b.lease())
		})
	})
	b.within("robbed of its lease, and ends", func(b *beside) {
		leader := b.leader()
		was, err := b.component(leader)
		if err != nil {
			t.Fatal(err)
		}
		stolen := b.lease().DeepCopy()
		now := metav1.NowMicro()
		stolen.Spec.HolderIdentity, stolen.Spec.AcquireTime, stolen.Spec.RenewTime = ptr.To("thief"), &now, &now
		if err := b.live.Patch(t.Context(), stolen, client.MergeFrom(b.lease())); err != nil {
			t.Fatal(err)
		}
		b.await("the lease to be a controller's again", soon, func() (bool, string) {
			return holder(b.lease()) != "" && holder(b.lease()) != "thief", "it is held by " + holder(b.lease())
		})
		b.until("the robbed leader to have ended by itself", func() (bool, string) {
			is, err := b.component(leader)
			return err == nil && is.PID != was.PID && is.LastExit == "exit status 1", fmt.Sprintf("process %d is %d, its last end: %q", was.PID, is.PID, is.LastExit)
		})
	})
	b.within("killed in the middle of deleting, and nothing is left", func(b *beside) {
		for _, o := range objects {
			if claim, ok := o.(*corev1.PersistentVolumeClaim); ok && *claim.Spec.StorageClassName != "" {
				if err := b.live.Delete(t.Context(), claim); err != nil {
					t.Fatal(err)
				}
			}
		}
		b.must("restart", "--kill", b.leader()) // the other may have taken over just now
		b.await("no dynamic volume to be left", manyAtOnce, func() (bool, string) {
			volumes := len(b.volumes())
			return volumes == n && b.recordsLeft() == 0, fmt.Sprintf("%d volumes, %d static among them, and %d records", volumes, n, b.recordsLeft())
		})
	})
}

// Case 159: Kubernetes' binder and Tarn's both run, as by mistake.
func TestTwoBindersAtOnceBindOneToOne(t *testing.T) {
	t.Parallel()
	b := startBeside(t, "two-binders", "--binder=kubernetes", "--protection=kubernetes", "--tarn-controller-arg=--controllers=*,-protect")
	const n, spare = 1000, 50
	var volumes, claims []client.Object
	for i := range n + spare {
		volumes = append(volumes, staticVolume(i))
	}
	for i := range n {
		claims = append(claims, claimOf("", fmt.Sprintf("static-%04d", i)))
	}
	b.made(b.makeAll(volumes))
	b.made(b.makeAll(claims))
	b.await("all claims to be Bound, and the rest to be Available", manyAtOnce, func() (bool, string) {
		bound, taken, free := b.bound(), b.inPhase(corev1.VolumeBound), b.inPhase(corev1.VolumeAvailable)
		return bound == n && taken == n && free == spare, fmt.Sprintf("%d claims and %d volumes are Bound, %d volumes Available", bound, taken, free)
	})
	b.pairedOneToOne()
	for _, claim := range b.claims() {
		if claim.Status.Phase == corev1.ClaimLost {
			t.Errorf("claim %s is Lost", claim.Name)
		}
	}
	written := b.metric(controller, "tarn_bind_foreign_writes_total")
	t.Logf("what Tarn's binder has counted of the other: %q", written)
	if len(written) == 0 {
		t.Error("Tarn's binder has counted nothing that the other wrote")
	}
	b.until("the binder to tell what it has bound, in which time, and what is free", func() (bool, string) {
		lines := b.metric(controller, "tarn_bind_")
		matches, times := valueOf(lines, `tarn_bind_matches_total{match="free"}`), valueOf(lines, `tarn_bind_duration_seconds_count{match="free"}`)
		free, made := valueOf(lines, `tarn_bind_free_volumes{class=""}`), valueOf(lines, "tarn_bind_provision_duration_seconds_count")
		return matches > 0 && matches <= n && times > 0 && free == spare && made == 0, "it tells\n" + strings.Join(lines, "\n")
	})
	b.until("the controller to run on half of the processors at most, and to have a limit of memory", func() (bool, string) {
		lines := b.metric(controller, "go_")
		processors, memory := valueOf(lines, "go_sched_gomaxprocs_threads"), valueOf(lines, "go_gc_gomemlimit_bytes")
		return processors > 0 && processors <= float64(max(1, runtime.NumCPU()/2)) && memory > 0 && memory < math.MaxInt64/2,
			fmt.Sprintf("it runs on %g of %d, and its limit is %g bytes", processors, runtime.NumCPU(), memory)
	})
	if log := b.log(controller, 100_000); !strings.Contains(log, "another binder runs beside this one") {
		t.Error("Tarn's binder has not told of the other in its log")
	}
}

// valueOf is the value of the metric line with a name, -1 if there is none.
func valueOf(lines []string, name string) float64 {
	for _, line := range lines {
		if text, found := strings.CutPrefix(line, name+" "); found {
			if value, err := strconv.ParseFloat(text, 64); err == nil {
				return value
			}
		}
	}
	return -1
}

// takeover is how soon another controller must begin after a leader's death, beside the API
// server's answer time. It is a second more than docs/operations/high-availability.md promises,
// because a busy machine may delay the standby.
const takeover = 6 * time.Second

// expiry is when a lease is taken over at the latest after its last renewal, beside the API
// server's answer time. It is the lease's duration of 4 s, and twice 2.2 retries of 0.2 s. In these
// the standby first sees that renewal, and then that none came after.
const expiry = 4900 * time.Millisecond

// followed kills the leading controller and waits until the standby leads. The lease records when
// that was, so it does not matter when the test learns of it.
//
// The standby must see the last renewal, which the API server may have stored after the death. It
// must see that the lease is unchanged, and write its own. On a busy machine each answer is
// delayed, and so is this test. Requests that take longer than a second are made twice.
func (b *beside) followed(leader string) {
	b.t.Helper()
	before, slowest := b.lease(), answers(b.t, b.live)
	killed := time.Now()
	b.must("restart", "--kill", leader)
	last, next := b.handover(before)
	if last.Spec.RenewTime.After(killed) { // a request takes a moment to be stored
		killed = last.Spec.RenewTime.Time
	}
	took, since, answer := next.Spec.AcquireTime.Sub(killed), next.Spec.AcquireTime.Sub(last.Spec.RenewTime.Time), slowest(last.Spec.RenewTime.Time)
	b.t.Logf("the lease was taken %s after the kill, and %s after its last renewal; the slowest of the API server's answers took %s", took, since, answer)
	if at := takeover + 8*answer; took > at {
		b.t.Errorf("another controller held the lease %s after the kill, want at most %s where an answer takes up to %s", took, at, answer)
	}
	if at := expiry + 8*answer; since > at {
		b.t.Errorf("another controller took the lease %s after its last renewal, want at most %s where an answer takes up to %s", since, at, answer)
	}
}

// answers requests the controller's lease from an API server repeatedly, as a standby does. The
// returned function stops that, and gives the longest answer time since a moment.
func answers(t *testing.T, live client.Reader) (slowest func(since time.Time) time.Duration) {
	ctx, stop := context.WithCancel(t.Context())
	type answer struct {
		at   time.Time
		took time.Duration
	}
	all := make(chan []answer, 1)
	go func() {
		var had []answer
		again := time.NewTicker(100 * time.Millisecond)
		defer again.Stop()
		for ctx.Err() == nil {
			asked := time.Now()
			_ = live.Get(ctx, client.ObjectKey{Namespace: "tarn-system", Name: controller}, &coordinationv1.Lease{}) // an error is an answer too
			had = append(had, answer{time.Now(), time.Since(asked)})
			select {
			case <-again.C:
			case <-ctx.Done():
			}
		}
		all <- had
	}()
	return func(since time.Time) (longest time.Duration) {
		stop()
		for _, a := range <-all {
			if a.at.After(since) {
				longest = max(longest, a.took)
			}
		}
		return longest
	}
}

// within runs a part of a test on the same cluster.
func (b *beside) within(name string, part func(*beside)) {
	if b.t.Failed() {
		return // later parts would only fail for the same reason
	}
	b.t.Run(name, func(t *testing.T) {
		inner := *b
		inner.t = t
		part(&inner)
	})
}

// leader is the name of the working controller.
func (b *beside) leader() string {
	b.t.Helper()
	var leader string
	b.until("a controller that says it leads", func() (bool, string) {
		for _, name := range []string{controller, standby} {
			if slices.Contains(b.metric(name, "leader_election_master_status"), `leader_election_master_status{name="tarn-controller"} 1`) {
				leader = name
			}
		}
		return leader != "", "neither does"
	})
	return leader
}

// lease is the controllers' lease, as last seen.
func (b *beside) lease() *coordinationv1.Lease {
	b.t.Helper()
	lease := &coordinationv1.Lease{}
	if err := b.cached.Get(b.t.Context(), client.ObjectKey{Namespace: "tarn-system", Name: controller}, lease); err != nil {
		b.t.Fatal(err)
	}
	return lease
}

func holder(lease *coordinationv1.Lease) string { return ptr.Deref(lease.Spec.HolderIdentity, "") }

// handover gives the last state of a lease under its holder, and the first state after that.
func (b *beside) handover(was *coordinationv1.Lease) (last, next *coordinationv1.Lease) {
	b.t.Helper()
	ctx, stop := context.WithTimeout(b.t.Context(), soon)
	defer stop()
	// The API server may end a watch; this one resumes there.
	changes, err := watchtools.NewRetryWatcherWithContext(ctx, was.ResourceVersion, &toolscache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = "metadata.name=" + was.Name
			return b.live.Watch(ctx, &coordinationv1.LeaseList{}, &client.ListOptions{Namespace: was.Namespace, Raw: &o})
		},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	last = was
	for event := range changes.ResultChan() {
		lease, ok := event.Object.(*coordinationv1.Lease)
		switch {
		case ok && holder(lease) != holder(was):
			return last, lease
		case ok:
			last = lease
		}
	}
	b.t.Fatalf("waited %s for the lease to leave %s: %v", soon, holder(was), ctx.Err())
	return nil, nil
}

// records fails the test unless there are n records, each created once.
func (b *beside) records(n int) {
	b.t.Helper()
	var list tarn.PavVolumeList
	if err := b.live.List(b.t.Context(), &list); err != nil {
		b.t.Fatal(err)
	}
	if len(list.Items) != n {
		b.t.Errorf("%d records, want %d", len(list.Items), n)
	}
	for _, record := range list.Items {
		if record.Status.Phase != tarn.VolumeCreated {
			b.t.Errorf("record %s is %s, want it Created", record.Name, record.Status.Phase)
		}
	}
}

func (b *beside) recordsLeft() int {
	b.t.Helper()
	var list tarn.PavVolumeList
	if err := b.cached.List(b.t.Context(), &list, client.UnsafeDisableDeepCopy); err != nil {
		b.t.Fatal(err)
	}
	return len(list.Items)
}
