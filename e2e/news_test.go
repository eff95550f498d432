//go:build e2e

package e2e

import (
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// news receives every change in the cluster. It notifies waiting callers. It also records, by
// provisioner, everything that ever existed, because many objects exist for a moment only.
type news struct {
	mu      sync.Mutex
	changed chan struct{}
	traces  map[string]*trace
}

// trace is everything seen of one provisioner's objects.
type trace struct {
	// pods counts the pods seen for a step.
	pods map[tarn.Step]int
	// onNodes are the steps for which a pod had a node, so it may have run.
	onNodes map[tarn.Step]bool
	// volumePhases, nodePhases and podPhases are those seen on a PavVolume and on both sides of a
	// PavStage.
	volumePhases map[tarn.VolumePhase]bool
	nodePhases   map[tarn.StageNodePhase]bool
	podPhases    map[tarn.StagePodPhase]bool
	// stages counts the PavStages seen.
	stages int
	// uids are the uids of all these objects.
	uids map[types.UID]bool
}

func newNews() *news {
	return &news{changed: make(chan struct{}), traces: map[string]*trace{}}
}

// next gives a channel that is closed at the next change.
func (n *news) next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

// await calls check after each change, and each second for changes without an event, until it
// holds. The second result of check describes the state, for the message at the deadline.
func (n *news) await(t *testing.T, what string, within time.Duration, check func() (bool, string)) bool {
	t.Helper()
	began := time.Now()
	over, again := time.NewTimer(within), time.NewTicker(time.Second)
	defer over.Stop()
	defer again.Stop()
	for {
		change := n.next()
		done, state := check()
		if done {
			t.Logf("%5.1fs %s", time.Since(began).Seconds(), what)
			return true
		}
		select {
		case <-change:
		case <-again.C:
		case <-over.C:
			t.Errorf("waited %s for %s: %s", within, what, state)
			return false
		}
	}
}

// of gives a copy of what was seen of a provisioner.
func (n *news) of(provisioner string) trace {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.trace(provisioner)
	seen := newTrace()
	for k, v := range t.pods {
		seen.pods[k] = v
	}
	for k := range t.onNodes {
		seen.onNodes[k] = true
	}
	for k := range t.volumePhases {
		seen.volumePhases[k] = true
	}
	for k := range t.nodePhases {
		seen.nodePhases[k] = true
	}
	for k := range t.podPhases {
		seen.podPhases[k] = true
	}
	for k := range t.uids {
		seen.uids[k] = true
	}
	seen.stages = t.stages
	return *seen
}

func newTrace() *trace {
	return &trace{
		pods: map[tarn.Step]int{}, onNodes: map[tarn.Step]bool{}, volumePhases: map[tarn.VolumePhase]bool{},
		nodePhases: map[tarn.StageNodePhase]bool{}, podPhases: map[tarn.StagePodPhase]bool{}, uids: map[types.UID]bool{},
	}
}

func (n *news) trace(provisioner string) *trace {
	if n.traces[provisioner] == nil {
		n.traces[provisioner] = newTrace()
	}
	return n.traces[provisioner]
}

// OnAdd, OnUpdate and OnDelete are called by an informer.
func (n *news) OnAdd(object any, _ bool)   { n.tell(object) }
func (n *news) OnUpdate(_ any, object any) { n.tell(object) }
func (n *news) OnDelete(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	n.tell(object)
}

func (n *news) tell(object any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch o := object.(type) {
	case *corev1.Pod:
		if provisioner := o.Labels[tarn.LabelProvisioner]; provisioner != "" {
			t, step := n.trace(provisioner), tarn.Step(o.Labels[tarn.LabelStep])
			if !t.uids[o.UID] {
				t.pods[step]++
			}
			if o.Spec.NodeName != "" {
				t.onNodes[step] = true
			}
			t.uids[o.UID] = true
		} else {
			n.consumer(o)
		}
	case *tarn.PavVolume:
		t := n.trace(o.Spec.Provisioner.Name)
		t.volumePhases[o.Status.Phase] = true
		t.uids[o.UID] = true
	case *tarn.PavStage:
		t := n.trace(o.Spec.Provisioner.Name)
		if !t.uids[o.UID] {
			t.stages++
		}
		t.nodePhases[o.Status.Node.Phase] = true
		t.podPhases[o.Status.Pod.Phase] = true
		t.uids[o.UID] = true
	}
	close(n.changed)
	n.changed = make(chan struct{})
}

// consumer records the pods of a case's namespace, which has its provisioner's name. Their mounts
// must disappear as well.
func (n *news) consumer(p *corev1.Pod) {
	if strings.HasPrefix(p.Namespace, namePrefix) {
		n.trace(p.Namespace).uids[p.UID] = true
	}
}
