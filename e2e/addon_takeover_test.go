//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// succession is a case in which one controller takes over from another.
type succession struct {
	*scenario
	// on gives access to the suite's own cluster.
	on    *beside
	shelf string
	// late is the least time by which a takeover missed its deadline. Other work of the machine
	// only increases it.
	late *time.Duration
}

// This covers the chart's two replicas, and each way in which the leader may stop. Not parallel:
// every other case needs the leader.
func TestAddOnAnotherControllerTakesOver(t *testing.T) {
	needsAddOn(t)
	s, shelf := begin(t, "takeover"), t.TempDir()
	s.needsThisMachine()
	s.step = 4 * soon // the kubelet doubles its pause after each restart of a container
	sections := shelved(shelf)
	sections["volumeCreation"] = script{hostDir: shelf, text: `set -e
mkdir /host/{{ defaultHandle|tobash }}
echo {{ defaultHandle|tobash }} >> /host/made
case {{ pvc.metadata.name|tobash }} in late-*) until [ -e /host/go ]; do sleep 0.1; done;; esac`}.section(asRequested)
	s.create(s.provisioner(sections))
	s.class(corev1.PersistentVolumeReclaimDelete)
	all := &succession{scenario: s, on: s.besideItself(), shelf: shelf, late: ptr.To(time.Hour)}
	t.Cleanup(s.tarnAgain)
	for _, c := range []struct {
		name string
		run  func(*succession)
	}{
		{"killed in the middle of making volumes, and none is lost or made twice", (*succession).whileItMakes},
		{"told to end, and gives its lease back", (*succession).toldToEnd},
		{"robbed of its lease, and ends", (*succession).robbed},
		{"killed in the middle of destroying volumes, and none is left", (*succession).whileItDestroys},
	} {
		if t.Failed() {
			return // later parts would only fail for the same reason
		}
		t.Run(c.name, func(t *testing.T) {
			inner, on, sub := *all, *all.on, *s
			on.t, sub.t = t, t
			inner.on, inner.scenario = &on, &sub
			inner.standsBy()
			c.run(&inner)
		})
	}
	for more := 3; *all.late > 0 && more > 0 && !t.Failed(); more-- {
		all.standsBy()
		all.dies(func(leader *corev1.Pod) error { return suite.machine.ends(s.ctx, leader) })
	}
	if *all.late > 0 && !t.Failed() {
		t.Errorf("each time another controller held the lease %s later than it should, or more", *all.late)
	}
}

// standsBy waits until a standby controller is ready.
func (s *succession) standsBy() {
	s.t.Helper()
	s.await("a controller to stand by", func() (bool, string) {
		pods, err := podsOf(s.ctx, "controller")
		pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || !isReadyPod(&p) })
		return len(pods) == 2, fmt.Sprintf("%d controllers are ready (%v)", len(pods), err)
	})
}

// besideItself is the suite's own cluster in the form that cases use for their own clusters.
func (s *scenario) besideItself() *beside {
	s.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		s.t.Fatal(err)
	}
	config.QPS, config.Burst = -1, -1
	live, err := client.NewWithWatch(config, client.Options{Scheme: suite.live.Scheme()})
	if err != nil {
		s.t.Fatal(err)
	}
	return &beside{machine: suite.machine, t: s.t, live: live, cached: suite.cached, news: suite.news}
}

// dies ends the leader without warning and waits until the other controller leads. The lease
// records how long that took, so it does not matter when the case learns of it.
func (s *succession) dies(end func(*corev1.Pod) error) {
	s.t.Helper()
	before, leader := s.leader()
	slowest := answers(s.on.t, s.on.live)
	if err := end(leader); err != nil {
		s.t.Fatal(err)
	}
	last, next := s.on.handover(before)
	took, answer := next.Spec.AcquireTime.Sub(last.Spec.RenewTime.Time), slowest(last.Spec.RenewTime.Time)
	s.t.Logf("%s took the lease %s after the last renewal by %s; the slowest of the API server's answers took %s", holder(next), took, holder(before), answer)
	if holder(next) == "" {
		s.t.Errorf("the lease of a controller that was killed was given back")
	}
	*s.late = min(*s.late, took-takeover-4*answer)
}

// whileItMakes ends the leader's machine while volumes are being made. Some creation pods run until
// another controller leads, and no controller has seen some of the claims.
func (s *succession) whileItMakes() {
	var claims []*corev1.PersistentVolumeClaim
	for i := range 12 {
		claims = append(claims, s.claim(fmt.Sprintf("data-%d", i)))
	}
	var late []string
	for i := range 3 {
		claims = append(claims, s.claim(fmt.Sprintf("late-%d", i)))
		late = append(late, "pvc-"+string(claims[len(claims)-1].UID))
	}
	bound := func() (n int) {
		for _, claim := range claims {
			now := claim.DeepCopy()
			if s.get(now) == nil && now.Status.Phase == corev1.ClaimBound {
				n++
			}
		}
		return n
	}
	s.await("some claims to be Bound, and others to be waited for", func() (bool, string) {
		text, err := os.ReadFile(filepath.Join(s.shelf, "made"))
		return err == nil && bound() >= 3 && containsAll(string(text), late), fmt.Sprintf("%d are, of %q (%v)", bound(), text, err)
	})
	s.dies(func(leader *corev1.Pod) error {
		defer func() { claims = append(claims, s.claim("unseen-0"), s.claim("unseen-1")) }()
		return suite.machine.ends(s.ctx, leader)
	})
	s.t.Logf("%d claims were left to the new leader", len(claims)-bound())
	put(s.t, filepath.Join(s.shelf, "go"))
	s.await("all claims to be Bound", func() (bool, string) {
		n := bound()
		return n == len(claims), fmt.Sprintf("%d are", n)
	})
	var want []string
	for _, claim := range claims {
		want = append(want, "pvc-"+string(claim.UID))
	}
	made := strings.Fields(s.onShelf(s.shelf, "made"))
	for _, sorted := range [][]string{want, made} {
		slices.Sort(sorted)
	}
	if !slices.Equal(made, want) {
		s.t.Errorf("made were %q, want each of %q once", made, want)
	}
	if volumes, records := s.made(); volumes != len(want) || records != len(want) {
		s.t.Errorf("there are %d volumes and %d records, want %d of each", volumes, records, len(want))
	}
}

// made counts the case's volumes and their records.
func (s *succession) made() (volumes, records int) {
	s.t.Helper()
	var all corev1.PersistentVolumeList
	var written tarn.PavVolumeList
	if err := errors.Join(suite.live.List(s.ctx, &all), suite.live.List(s.ctx, &written)); err != nil {
		s.t.Fatal(err)
	}
	for _, v := range all.Items {
		if v.Spec.CSI != nil && v.Spec.CSI.Driver == s.name {
			volumes++
		}
	}
	for _, r := range written.Items {
		if r.Spec.Provisioner.Name == s.name {
			records++
		}
	}
	return volumes, records
}

// toldToEnd deletes the leader's pod, as a drain or a rollout does.
func (s *succession) toldToEnd() {
	before, leader := s.leader()
	s.delete(leader)
	if _, next := s.on.handover(before); holder(next) != "" {
		s.t.Errorf("the lease went from %s to %s without having been given back", holder(before), holder(next))
	}
	s.ledBy("another", func(now string) bool { return now != holder(before) })
}

// leader gives the current lease, and the pod of its holder.
func (s *succession) leader() (*coordinationv1.Lease, *corev1.Pod) {
	s.t.Helper()
	lease := &coordinationv1.Lease{}
	if err := suite.live.Get(s.ctx, client.ObjectKey{Namespace: tarnSystem, Name: controller}, lease); err != nil {
		s.t.Fatal(err)
	}
	held, pod, err := leads(s.ctx)
	if err != nil || held != holder(lease) {
		s.t.Fatalf("the lease is held by %q, and then by %q (%v)", holder(lease), held, err)
	}
	return lease, pod
}

// ledBy waits until a controller that meets the condition holds the lease.
func (s *succession) ledBy(who string, wanted func(string) bool) {
	s.t.Helper()
	s.await(who+" to hold the lease", func() (bool, string) {
		now, _, err := leads(s.ctx)
		return err == nil && wanted(now), fmt.Sprintf("it is held by %s (%v)", now, err)
	})
}

// robbed takes the lease from the leader. The leader then ends by itself, and its container is
// restarted as a standby.
func (s *succession) robbed() {
	before, leader := s.leader()
	stolen, now := before.DeepCopy(), metav1.NowMicro()
	stolen.Spec.HolderIdentity, stolen.Spec.AcquireTime, stolen.Spec.RenewTime = ptr.To("thief"), &now, &now
	if err := suite.live.Patch(s.ctx, stolen, client.MergeFrom(before)); err != nil {
		s.t.Fatal(err)
	}
	s.ledBy("a controller", func(now string) bool { return now != "thief" })
	was := leader.Status.ContainerStatuses[0].RestartCount
	s.await("the robbed leader to have ended by itself", func() (bool, string) {
		if err := s.get(leader); err != nil || len(leader.Status.ContainerStatuses) == 0 {
			return false, fmt.Sprintf("its pod tells of no container (%v)", err)
		}
		c := leader.Status.ContainerStatuses[0]
		last := c.LastTerminationState.Terminated
		return c.RestartCount > was && last != nil && last.ExitCode == 1, fmt.Sprintf("it was started %d times anew, and ended by %+v", c.RestartCount-was, last)
	})
}

// whileItDestroys kills only the leader's process. Its pod stays, and the kubelet restarts it.
func (s *succession) whileItDestroys() {
	there, _ := s.made()
	if err := suite.live.DeleteAllOf(s.ctx, &corev1.PersistentVolumeClaim{}, client.InNamespace(s.name)); err != nil {
		s.t.Fatal(err)
	}
	s.await("a volume to be gone", func() (bool, string) {
		n, _ := s.made()
		return n < there, fmt.Sprintf("all %d are there", n)
	})
	s.dies(func(leader *corev1.Pod) error { return suite.machine.signal(leader, syscall.SIGKILL) })
	_, left := s.made()
	s.t.Logf("%d records were left to the new leader", left)
	s.await("no volume to be left", func() (bool, string) {
		volumes, records := s.made()
		return volumes == 0 && records == 0, fmt.Sprintf("%d volumes and %d records are", volumes, records)
	})
	for _, handle := range strings.Fields(s.onShelf(s.shelf, "made")) {
		if _, err := os.Lstat(filepath.Join(s.shelf, handle)); !errors.Is(err, os.ErrNotExist) {
			s.t.Errorf("volume %s is gone, its folder is not (%v)", handle, err)
		}
	}
}
