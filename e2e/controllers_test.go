//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
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
	// manyAtOnce is what hundreds of claims may take beside whatever else the machine
	// does.
	manyAtOnce = 5 * time.Minute
)

// Two controllers, and each way in which the one that works may stop.
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
		if next := b.nextHolder(held); next != "" {
			t.Errorf("the lease went from %s to %s without having been given back", holder(held), next)
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
		b.must("restart", "--kill", b.leader())
		b.await("no dynamic volume to be left", manyAtOnce, func() (bool, string) {
			volumes := len(b.volumes())
			return volumes == n && b.recordsLeft() == 0, fmt.Sprintf("%d volumes, %d static among them, and %d records", volumes, n, b.recordsLeft())
		})
	})
}

// Case 159: Kubernetes' binder and Tarn's are both on, as by mistake.
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
	if log := b.log(controller, 100_000); !strings.Contains(log, "another binder is at work") {
		t.Error("Tarn's binder has not told of the other in its log")
	}
}

// takeover is what the lease may show between a dead leader's last renewal and the next one's beginning: twice what docs/high-availability.md
// promises, as each look at the lease waits for an API server that binds hundreds of claims.
const takeover = 10 * time.Second

// followed kills the controller that leads and waits until another does. How long that took is in the lease, so it does not matter when the test hears of it.
func (b *beside) followed(leader string) {
	b.t.Helper()
	before := b.lease()
	killed := time.Now()
	b.must("restart", "--kill", leader)
	dead := before.DeepCopy()
	b.await("another to hold the lease", soon, func() (bool, string) {
		lease := b.lease()
		if holder(lease) == holder(before) {
			dead = lease.DeepCopy()
		}
		return holder(lease) != "" && holder(lease) != holder(before), "it is held by " + holder(lease)
	})
	next := b.lease()
	took := next.Spec.AcquireTime.Sub(dead.Spec.RenewTime.Time)
	b.t.Logf("the lease was taken %s after the kill, and %s after its last renewal", next.Spec.AcquireTime.Sub(killed), took)
	if took > takeover {
		b.t.Errorf("another controller held the lease %s after the dead one's last renewal, want at most %s", took, takeover)
	}
}

// within runs a part of a test on the same cluster.
func (b *beside) within(name string, part func(*beside)) {
	if b.t.Failed() {
		return // what follows would only fail for the same reason
	}
	b.t.Run(name, func(t *testing.T) {
		inner := *b
		inner.t = t
		part(&inner)
	})
}

// leader is the name of the controller that works.
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

// nextHolder is the first holder of the lease after the one that it had.
func (b *beside) nextHolder(was *coordinationv1.Lease) string {
	b.t.Helper()
	ctx, stop := context.WithTimeout(b.t.Context(), soon)
	defer stop()
	// The API server may end a watch; this one goes on where that stopped.
	changes, err := watchtools.NewRetryWatcherWithContext(ctx, was.ResourceVersion, &toolscache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = "metadata.name=" + was.Name
			return b.live.Watch(ctx, &coordinationv1.LeaseList{}, &client.ListOptions{Namespace: was.Namespace, Raw: &o})
		},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	for event := range changes.ResultChan() {
		if lease, ok := event.Object.(*coordinationv1.Lease); ok && holder(lease) != holder(was) {
			return holder(lease)
		}
	}
	b.t.Fatalf("waited %s for the lease to leave %s: %v", soon, holder(was), ctx.Err())
	return ""
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
