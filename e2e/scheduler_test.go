//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// In these cases, the real scheduler places pods on nodes without kubelets. Scheduler and binder
// decide which volume a claim gets before a kubelet is involved. The numbers are those of the
// binder's behaviour in internal/controller/bind.

// scheduling is a cluster with a class for each case, whose volumes wait for a pod.
type scheduling struct {
	*beside
	// name is the name of the case, and of its class.
	name string
}

func TestTheSchedulerAndTheBinderAgree(t *testing.T) {
	t.Parallel()
	b := startBeside(t, "scheduler", "--without-node=false", "--binder=tarn",
		"--kube-controller-manager-arg=--node-monitor-grace-period=1h") // nobody goes on saying that its nodes are Ready // a scheduler comes with a node
	for _, node := range []string{"a", "b"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{corev1.LabelHostname: node}}}
		b.create(n)
		bare := n.DeepCopy()
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("100"), corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("8Gi")}
		n.Status.Capacity = n.Status.Allocatable
		if err := b.live.Status().Patch(t.Context(), n, client.MergeFrom(bare)); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []struct {
		name string
		run  func(*scheduling)
	}{
		{"89 two claims whose volumes are on two nodes are left alone, and on one node they are bound", (*scheduling).twoClaims},
		{"90 a claim that waits and one that does not are bound for one pod", (*scheduling).mixed},
		{"91 a pod whose claim nobody makes a volume for gets no node, and its claim waits", (*scheduling).unserved},
		{"92 a pod that may not go where its volume is gets no node, and its claim keeps its volume", (*scheduling).contradiction},
		{"93 a reservation that is taken away is made anew", func(s *scheduling) { s.reservedAnew(`{"spec":{"claimRef":null}}`) }},
		{"93 one whose uid is taken away is too", func(s *scheduling) { s.reservedAnew(`{"spec":{"claimRef":{"uid":null}}}`) }},
	} {
		b.within(c.name, func(b *beside) {
			s := &scheduling{beside: b, name: fmt.Sprintf("case-%s-%d", c.name[:2], i)}
			b.create(&storagev1.StorageClass{
				ObjectMeta: metav1.ObjectMeta{Name: s.name}, Provisioner: "kubernetes.io/no-provisioner",
				VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
			})
			c.run(s)
		})
	}
}

func (b *beside) create(o client.Object) {
	b.t.Helper()
	if err := b.live.Create(b.t.Context(), o); err != nil {
		b.t.Fatalf("creating %T %s: %v", o, o.GetName(), err)
	}
}

// volumeOn makes a volume that only one node can reach.
func (s *scheduling) volumeOn(node, class string, n int) *corev1.PersistentVolume {
	s.t.Helper()
	v := staticVolume(0)
	v.Name = fmt.Sprintf("%s-%s-%d", s.name, node, n)
	v.Spec.StorageClassName = class
	v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/mnt/" + v.Name}}
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
	}}}}
	s.create(v)
	return v
}

// claimFor makes a claim of the case.
func (s *scheduling) claimFor(class, name string) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	claim := claimOf(class, s.name+"-"+name)
	s.create(claim)
	return claim
}

// pod makes a pod that uses claims, on one node where one is given.
func (s *scheduling) pod(node string, claims ...*corev1.PersistentVolumeClaim) *corev1.Pod {
	s.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: s.name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "busybox:1.36"}}, AutomountServiceAccountToken: ptr.To(false)},
	}
	if node != "" {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	}
	for i, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("v%d", i), VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
		}})
	}
	s.create(pod)
	return pod
}

// unplaced waits until the scheduler has reported why a pod gets no node.
func (s *scheduling) unplaced(pod *corev1.Pod, why string) {
	s.t.Helper()
	s.podUntil(pod, "the scheduler to refuse the pod: "+why, func(now *corev1.Pod) (bool, string) {
		for _, c := range now.Status.Conditions {
			if c.Type == corev1.PodScheduled {
				return c.Status == corev1.ConditionFalse && strings.Contains(c.Message, why), c.Message
			}
		}
		return false, "it has said nothing yet"
	})
}

// placed waits until a pod has a node.
func (s *scheduling) placed(pod *corev1.Pod, node string) {
	s.t.Helper()
	s.podUntil(pod, "the pod to be on node "+node, func(now *corev1.Pod) (bool, string) {
		return now.Spec.NodeName == node, fmt.Sprintf("it is on %q: %+v", now.Spec.NodeName, now.Status.Conditions)
	})
}

func (s *scheduling) podUntil(pod *corev1.Pod, what string, check func(*corev1.Pod) (bool, string)) {
	s.t.Helper()
	s.await(what, soon, func() (bool, string) {
		var now corev1.Pod
		if err := s.live.Get(s.t.Context(), client.ObjectKeyFromObject(pod), &now); err != nil {
			return false, err.Error()
		}
		return check(&now)
	})
}

// boundTo waits until a claim and a volume name each other.
func (s *scheduling) boundTo(claim *corev1.PersistentVolumeClaim, volumes ...*corev1.PersistentVolume) {
	s.t.Helper()
	s.await("claim "+claim.Name+" to be Bound", soon, func() (bool, string) {
		for _, now := range s.claims() {
			if now.Name == claim.Name {
				for _, v := range volumes {
					if now.Spec.VolumeName == v.Name && now.Status.Phase == corev1.ClaimBound {
						return true, ""
					}
				}
				return false, fmt.Sprintf("it is %s with volume %q", now.Status.Phase, now.Spec.VolumeName)
			}
		}
		return false, "it is not in the cache"
	})
}

// nobodys fails the case if a claim has the volume or it is reserved for one.
func (s *scheduling) nobodys(v *corev1.PersistentVolume) {
	s.t.Helper()
	if err := s.live.Get(s.t.Context(), client.ObjectKeyFromObject(v), v); err != nil || v.Spec.ClaimRef != nil || v.Status.Phase != corev1.VolumeAvailable {
		s.t.Errorf("volume %s is %s and of %+v (%v), want it to be free", v.Name, v.Status.Phase, v.Spec.ClaimRef, err)
	}
}

func (s *scheduling) twoClaims() {
	one, other := s.claimFor(s.name, "one"), s.claimFor(s.name, "other")
	onA, onB := s.volumeOn("a", s.name, 1), s.volumeOn("b", s.name, 1)
	pod := s.pod("", one, other)
	s.unplaced(pod, "didn't find available persistent volumes to bind")
	s.nobodys(onA)
	s.nobodys(onB)
	second := s.volumeOn("a", s.name, 2)
	s.placed(pod, "a")
	s.boundTo(one, onA, second)
	s.boundTo(other, onA, second)
	s.nobodys(onB)
}

func (s *scheduling) mixed() {
	waits, atOnce := s.claimFor(s.name, "waits"), s.claimFor("immediate", "at-once")
	v, here := s.volumeOn("b", s.name, 1), s.volumeOn("b", "immediate", 2)
	s.boundTo(atOnce, here)
	pod := s.pod("", waits, atOnce)
	s.placed(pod, "b")
	s.boundTo(waits, v)
}

func (s *scheduling) contradiction() {
	v, there := s.volumeOn("a", s.name, 1), s.volumeOn("a", "elsewhere", 2)
	atOnce := s.claimFor("elsewhere", "at-once")
	s.boundTo(atOnce, there)
	pod := s.pod("b", s.claimFor(s.name, "waits"), atOnce)
	s.unplaced(pod, "didn't match")
	s.nobodys(v)
	s.boundTo(atOnce, there)
}

func (s *scheduling) unserved() {
	claim := s.claimFor(s.name, "data")
	s.unplaced(s.pod("", claim), "didn't find available persistent volumes to bind")
	if err := s.live.Get(s.t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil || claim.Spec.VolumeName != "" || claim.Status.Phase != corev1.ClaimPending {
		s.t.Errorf("the claim is %s on %q (%v), want it to wait", claim.Status.Phase, claim.Spec.VolumeName, err)
	}
}

// reservedAnew stops the binder once it is idle. The case can then remove the scheduler's writes on
// the volume before the binding is completed.
func (s *scheduling) reservedAnew(taken string) {
	v, claim := s.volumeOn("a", s.name, 1), s.claimFor(s.name, "data")
	s.await("the volume to be Available", soon, func() (bool, string) {
		return s.inPhase(corev1.VolumeAvailable) > 0 && s.volumeNamed(v.Name).Status.Phase == corev1.VolumeAvailable, "it is not"
	})
	binder, err := s.component(controller)
	if err != nil || binder.PID <= 1 {
		s.t.Fatalf("the binder has pid %d: %v", binder.PID, err)
	}
	if err := syscall.Kill(binder.PID, syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	goOn := func() { _ = syscall.Kill(binder.PID, syscall.SIGCONT) }
	s.t.Cleanup(goOn)
	pod := s.pod("", claim)
	s.await("the scheduler to reserve the volume", soon, func() (bool, string) {
		return s.volumeNamed(v.Name).Spec.ClaimRef != nil, "it is nobody's"
	})
	if err := s.live.Patch(s.t.Context(), v, client.RawPatch("application/merge-patch+json", []byte(taken))); err != nil {
		s.t.Fatal(err)
	}
	s.unplaced(pod, "ClaimRef got reset for pv")
	goOn()
	s.placed(pod, "a")
	s.boundTo(claim, v)
}

// volumeNamed gives a volume from the cache.
func (s *scheduling) volumeNamed(name string) corev1.PersistentVolume {
	s.t.Helper()
	for _, v := range s.volumes() {
		if v.Name == name {
			return v
		}
	}
	return corev1.PersistentVolume{}
}
