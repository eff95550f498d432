//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Not parallel: meanwhile no pod finds a node, so that no controller replaces the evicted one.
func TestAddOnTheLastControllerIsNotEvicted(t *testing.T) {
	needsAddOn(t)
	s := begin(t, "evicted")
	s.kubectl("-n", tarnSystem, "rollout", "status", "deployment/tarn-controller", "--timeout=180s")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": script{text: "mkdir /pav/volume"}.section(nil)}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	_, leader, err := leads(s.ctx)
	if err != nil {
		t.Fatal(err)
	}
	pods := slices.DeleteFunc(s.parts("controller"), func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || !isReadyPod(&p) || p.UID == leader.UID })
	if len(pods) != 1 {
		t.Fatalf("beside the one that leads there are %d controllers, want one", len(pods))
	}
	node := leader.Spec.NodeName
	t.Cleanup(func() {
		s.kubectl("-n", tarnSystem, "rollout", "status", "deployment/tarn-controller", "--timeout=180s")
	})
	t.Cleanup(func() { s.kubectl("uncordon", node) })
	s.kubectl("cordon", node)
	s.kubectl("-n", tarnSystem, "wait", "--for=jsonpath={.status.disruptionsAllowed}=1", "pdb/tarn-controller", "--timeout=180s")
	if err := s.evict(&pods[0]); err != nil {
		t.Fatalf("evicting one of two controllers: %v", err)
	}
	s.gone(&pods[0])
	s.kubectl("-n", tarnSystem, "wait", "--for=condition=Ready", "pod/"+leader.Name, "--timeout=180s") // a pod that is not Ready may always be evicted
	if err := s.evict(leader); !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "disruption budget") {
		t.Errorf("evicting the last controller: %v, want a refusal by the disruption budget", err)
	}
	s.bound(s.claim("served")) // the claim needs no pods
	if err := s.get(leader); err != nil || leader.DeletionTimestamp != nil {
		t.Errorf("the last controller was evicted: %v", err)
	}
}

// evict sends the eviction request of `kubectl drain`.
func (s *scenario) evict(pod *corev1.Pod) error {
	return suite.live.SubResource("eviction").Create(s.ctx, pod, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}})
}
