package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

// follower prints a line for each step of the demo's objects.
type follower struct {
	live client.Client
	out  io.Writer
	news
	// last is the last printed line, by object.
	last map[string]string
	// troubles are the warnings seen, for the report when the demo fails.
	troubles []string

	began, claimMade, podMade time.Time
	claimBound, podIsReady    time.Duration
}

// news holds the changes from the watches that the follower has not processed yet. It has no limit,
// so that the watches never block. A used cluster has more objects than the demo could process in
// time.
type news struct {
	mu    sync.Mutex
	kept  []change
	keeps bool
	// came receives an element when anything has arrived since the last receive, kept or not.
	came chan struct{}
}

// keep starts to keep changes. Earlier ones do not matter, because the demo's objects did not exist
// yet.
func (n *news) keep() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keeps = true
}

func (n *news) put(c change) {
	n.mu.Lock()
	if n.keeps {
		n.kept = append(n.kept, c)
	}
	n.mu.Unlock()
	select {
	case n.came <- struct{}{}:
	default:
	}
}

// take returns the kept changes and clears them.
func (n *news) take() []change {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := n.kept
	n.kept = nil
	return taken
}

// change is an object that a watch delivered, or an action in words.
type change struct {
	object client.Object
	done   string
	at     time.Time
}

// OnAdd, OnUpdate and OnDelete are called by an informer.
func (f *follower) OnAdd(o any, _ bool)   { f.pass(o) }
func (f *follower) OnUpdate(_ any, o any) { f.pass(o) }
func (f *follower) OnDelete(o any) {
	if unknown, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = unknown.Obj
	}
	f.pass(o)
}

func (f *follower) pass(o any) {
	if object, ok := o.(client.Object); ok {
		f.put(change{object: object, at: time.Now()})
	}
}

// until takes changes until done holds of one.
func (f *follower) until(ctx context.Context, what string, done func(change) (bool, error)) error {
	for {
		for _, c := range f.take() {
			f.note(c)
			if ended, err := done(c); ended || err != nil {
				return err
			}
		}
		if err := f.wait(ctx, what); err != nil {
			return err
		}
	}
}

// wait returns when something has arrived since the last call.
func (f *follower) wait(ctx context.Context, until string) error {
	select {
	case <-f.came:
		return nil
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return fmt.Errorf("waited %s until %s; the latest messages:\n  %s", patience, until, strings.Join(f.troubles, "\n  "))
		}
		return ctx.Err()
	}
}

// note prints a line if the object is the demo's and has made progress.
func (f *follower) note(c change) {
	if c.done != "" {
		f.say(c.at, "%s", c.done)
		return
	}
	o := c.object
	if o.GetCreationTimestamp().Add(time.Second).Before(f.began) {
		return
	}
	if e, ok := o.(*corev1.Event); ok {
		if e.Type == corev1.EventTypeWarning && e.InvolvedObject.Name == name {
			f.troubles = append(f.troubles, e.Reason+": "+e.Message)
		}
		return
	}
	what, state := f.state(c)
	if state == "" || f.last[what] == state {
		return
	}
	f.last[what] = state
	f.say(c.at, "%s: %s", what, state)
}

// say prints a line with the time since the beginning.
func (f *follower) say(at time.Time, format string, args ...any) {
	fmt.Fprintf(f.out, "  %5.2fs  %s\n", at.Sub(f.began).Seconds(), fmt.Sprintf(format, args...))
}

// state names an object of the demo and describes its state. Both are empty for other objects.
func (f *follower) state(c change) (what, state string) {
	switch o := c.object.(type) {
	case *pav.PavProvisioner:
		if o.Name == name && meta.IsStatusConditionTrue(o.Status.Conditions, pav.ConditionAccepted) {
			return "PavProvisioner " + name, "Accepted"
		}
	case *corev1.PersistentVolumeClaim:
		if o.Name != name || o.Namespace != corev1.NamespaceDefault {
			return "", ""
		}
		if o.Status.Phase == corev1.ClaimBound && f.claimBound == 0 {
			f.claimBound = c.at.Sub(f.claimMade)
		}
		return "PersistentVolumeClaim " + name, string(o.Status.Phase)
	case *tarn.PavVolume:
		if o.Spec.Provisioner.Name == name {
			return "PavVolume " + o.Name, string(o.Status.Phase)
		}
	case *tarn.PavStage:
		if o.Spec.Provisioner.Name == name {
			return "PavStage " + o.Name, together(string(o.Status.Node.Phase), string(o.Status.Pod.Phase))
		}
	case *corev1.Pod:
		if o.Name == name && o.Namespace == corev1.NamespaceDefault {
			if isReady(o) {
				return "Pod " + name, "Ready"
			}
			return "Pod " + name, string(o.Status.Phase)
		}
		if o.Labels[tarn.LabelProvisioner] == name {
			return o.Labels[tarn.LabelStep] + " pod", string(o.Status.Phase)
		}
	}
	return "", ""
}

// together joins the two sides of a stage.
func together(node, pod string) string {
	switch {
	case pod == "":
		return node
	case node == "":
		return "pod " + pod
	}
	return node + ", pod " + pod
}

// podReady reports whether the object is the demo's pod of this run, and Ready.
func (f *follower) podReady(c change) (bool, error) {
	pod, ok := c.object.(*corev1.Pod)
	if !ok || pod.Name != name || pod.Namespace != corev1.NamespaceDefault || pod.CreationTimestamp.Add(time.Second).Before(f.began) {
		return false, nil
	}
	if pod.Status.Phase == corev1.PodFailed {
		return false, fmt.Errorf("the pod failed: %s", pod.Status.Message)
	}
	if !isReady(pod) {
		return false, nil
	}
	f.podIsReady = c.at.Sub(f.podMade)
	return true, nil
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// table prints how long things took and what the user can try next.
func (f *follower) table(kubeconfig string) {
	fmt.Fprintf(f.out, `
  claim Bound after  %5.2f s
  pod Ready after    %5.2f s

Try next:

  export KUBECONFIG=%s
  bin/kubectl get pav,pavvol,pavstage
  bin/kubectl exec hello-world -- cat /data/greeting
`, f.claimBound.Seconds(), f.podIsReady.Seconds(), kubeconfig)
}
