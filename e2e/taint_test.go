//go:build e2e

package e2e

import (
	"context"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// lostNode is how long Kubernetes may take to give up a node whose kubelet is silent: 50 s by
// default, and the time between checks.
const lostNode = soon + time.Minute

// nodeBecomes waits until a node is as wanted.
func (s *scenario) nodeBecomes(name, what string, is func(*corev1.Node) bool) {
	s.t.Helper()
	began := time.Now()
	ctx, stop := context.WithTimeout(s.ctx, lostNode)
	defer stop()
	nodes, only := suite.logs.CoreV1().Nodes(), "metadata.name="+name
	// The API server may end a watch; this lists and watches again.
	_, err := watchtools.UntilWithSync(ctx, &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = only
			return nodes.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = only
			return nodes.Watch(ctx, o)
		},
	}, &corev1.Node{}, nil, func(e watch.Event) (bool, error) {
		node, ok := e.Object.(*corev1.Node)
		return ok && e.Type != watch.Deleted && is(node), nil
	})
	if err != nil {
		s.t.Fatalf("waited %s for node %s to be %s: %v", lostNode, name, what, err)
	}
	s.t.Logf("%5.1fs node %s is %s", time.Since(began).Seconds(), name, what)
}

func isReadyNode(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func hasTaint(key string) func(*corev1.Node) bool {
	return func(node *corev1.Node) bool {
		return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key && t.Effect == corev1.TaintEffectNoExecute })
	}
}

// tolerates keeps a pod on a node with a taint for a number of seconds, or for ever.
func tolerates(key string, seconds *int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds,
		})
	}
}

// Not parallel: it taints the node, and stops its kubelet.
func TestWhenANodeIsTaintedOrSilentAVolumeInUseStays(t *testing.T) {
	s := begin(t, "tainted")
	s.needsThisMachine()
	shelf := shelfWithData(t)
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": bindsShelf(shelf, "false")}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	const own = "e2e.tarn.dev/leave"
	atOnce := int64(0)
	stays := s.consumer("stays", claim.Name, writes, tolerates(own, nil), tolerates(corev1.TaintNodeUnreachable, nil))
	goes := s.consumer("goes", claim.Name, `trap exit TERM; sleep 1d & wait`, tolerates(own, nil), tolerates(corev1.TaintNodeUnreachable, &atOnce))
	s.ready(stays)
	s.ready(goes)
	s.prints(stays, "wrote 3")
	staging := s.stepPods(tarn.StepStaging)[0]
	node := s.aNode().Name

	// A taint that evicts: pods without a toleration are evicted, but the staging pod is not.
	witness := s.consumer("witness", claim.Name, `trap exit TERM; sleep 1d & wait`)
	s.ready(witness)
	s.kubectl("taint", "node", node, own+"=now:NoExecute")
	untaint := func() { s.kubectl("taint", "node", node, own+"-") }
	if !s.gone(witness) {
		untaint()
		t.FailNow()
	}
	s.stillWrites(stays, shelf)
	untaint()
	s.tarnAgain() // controllers that are pods were evicted like the witness

	// The kubelet is silent until Kubernetes gives up the node.
	pid, err := suite.machine.kubelet()
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goOn := func() { _ = unix.Kill(pid, unix.SIGCONT) } // also where the case fails before
	defer goOn()
	s.nodeBecomes(node, "released", func(node *corev1.Node) bool { return !isReadyNode(node) })
	s.explains("pod", s.name+"/stays", "its node "+node+" is not ready")
	// Where the silent node is the only one, Kubernetes suspects the control plane and may not add
	// the taint.
	s.kubectl("taint", "--overwrite", "node", node, corev1.TaintNodeUnreachable+":NoExecute")
	s.await("the pod that does not tolerate it to be told to go", func() (bool, string) {
		err := s.get(goes)
		return err == nil && goes.DeletionTimestamp != nil, "it is not"
	})
	goOn()
	s.nodeBecomes(node, "ready again, its taint taken off by Kubernetes", func(node *corev1.Node) bool { return isReadyNode(node) && !hasTaint(corev1.TaintNodeUnreachable)(node) })
	s.gone(goes)
	s.stillWrites(stays, shelf)
	again := s.stepPods(tarn.StepStaging)
	if len(again) != 1 || again[0].UID != staging.UID || again[0].DeletionTimestamp != nil {
		t.Errorf("the staging pods are %v, want the one there was", names(again))
	}
	if seen := suite.news.of(s.name); seen.stages != 1 || seen.pods[tarn.StepStaging] != 1 {
		t.Errorf("there were %d stages and %d staging pods, want one of each", seen.stages, seen.pods[tarn.StepStaging])
	}
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(stays), stays); err != nil || stays.DeletionTimestamp != nil {
		t.Errorf("the consumer that tolerates all of it is being deleted: %v", err)
	}
}

func names(pods []corev1.Pod) []string {
	var all []string
	for _, p := range pods {
		all = append(all, p.Name+" "+string(p.UID))
	}
	return all
}
