//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// podLists is how often clients have listed the pods of one namespace.
func (s *scenario) podLists() int {
	s.t.Helper()
	text, err := suite.logs.CoreV1().RESTClient().Get().AbsPath("/metrics").SetHeader("Accept", "text/plain").DoRaw(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	lists := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "apiserver_request_total{") || !containsAll(line, []string{`resource="pods"`, `scope="namespace"`, `verb="LIST"`}) {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
		if err != nil {
			s.t.Fatalf("%v in %s", err, line)
		}
		lists += int(n)
	}
	return lists
}

// silentNode makes a node without a kubelet. Pods that name it are placed there and never change.
func (s *scenario) silentNode() *corev1.Node {
	s.t.Helper()
	node := &corev1.Node{ObjectMeta: named(s.name), Spec: corev1.NodeSpec{Unschedulable: true}}
	s.create(node)
	s.t.Cleanup(func() { s.deleteIfThere(node) })
	return node
}

// claimsLeft are the claims of the case in the cache. The caller must not change them.
func (s *scenario) claimsLeft() []corev1.PersistentVolumeClaim {
	s.t.Helper()
	var list corev1.PersistentVolumeClaimList
	if err := suite.cached.List(s.ctx, &list, client.InNamespace(s.name), client.UnsafeDisableDeepCopy); err != nil {
		s.t.Fatal(err)
	}
	return list.Items
}

// Not parallel: it counts the API server's lists of pods, and other cases cause lists too.
// bench/protect does the same with a thousand claims.
func TestHundredsOfDeletionsShareAFewListsAndPodsKeepTheirClaims(t *testing.T) {
	const unused, running, placed = 300, 3, 47
	s := beginServed(t, "many")
	silent := s.silentNode()
	claims := make([]*corev1.PersistentVolumeClaim, running+placed+unused)
	var pods []*corev1.Pod
	for i := range claims {
		class := s.name
		if i >= running {
			class = "" // no provisioner makes volumes for these
		}
		claims[i] = claimOf(class, fmt.Sprintf("claim-%04d", i))
		claims[i].Namespace = s.name
	}
	each := func(do func(*corev1.PersistentVolumeClaim) error) {
		t.Helper()
		failed := make([]error, len(claims))
		workqueue.ParallelizeUntil(s.ctx, 16, len(claims), func(i int) { failed[i] = do(claims[i]) })
		if err := errors.Join(failed...); err != nil {
			t.Fatal(err)
		}
	}
	each(func(claim *corev1.PersistentVolumeClaim) error { return suite.live.Create(s.ctx, claim) })
	for i := range running + placed {
		edit := func(*corev1.Pod) {}
		if i >= running {
			edit = func(pod *corev1.Pod) { pod.Spec.NodeName = silent.Name }
		}
		pods = append(pods, s.consumer(fmt.Sprintf("pod-%02d", i), claims[i].Name, stays, edit))
	}
	for _, pod := range pods[:running] {
		s.ready(pod)
	}

	before, began := s.podLists(), time.Now()
	each(func(claim *corev1.PersistentVolumeClaim) error { return suite.live.Delete(s.ctx, claim.DeepCopy()) })
	asked := time.Since(began)
	s.wait("the claims that no pod uses to be gone", manyAtOnce, func() (bool, string) {
		left := len(s.claimsLeft())
		return left == running+placed, fmt.Sprintf("%d claims are left, want %d", left, running+placed)
	})
	took, lists := time.Since(began), s.podLists()-before
	t.Logf("%d claims asked to go in %.1f s, gone after %.1f s, with %d lists of pods", len(claims), asked.Seconds(), took.Seconds(), lists)
	// Lists are up to 2 s apart, so a slow machine may make more of them.
	if most := max(20, 6+int(took.Seconds())); lists > most && os.Getenv("PROTECTION") != "kubernetes" {
		t.Errorf("%d lists of pods in %.1f s, want at most %d", lists, took.Seconds(), most)
	}

	for _, claim := range s.claimsLeft() {
		if claim.DeletionTimestamp == nil || claim.Name > claims[running+placed-1].Name {
			t.Errorf("claim %s is left, to be deleted at %v", claim.Name, claim.DeletionTimestamp)
		}
	}
	for i, pod := range pods {
		if i < running {
			s.neverRestarted(pod)
		}
		if err := suite.live.Delete(s.ctx, pod, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	s.await("the claims that pods have used to be gone", func() (bool, string) {
		left := len(s.claimsLeft())
		return left == 0, fmt.Sprintf("%d claims are left", left)
	})
	s.clear("pods", &corev1.PodList{}, client.InNamespace(s.name))
}
