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

// follower prints a line for each step of the demo's objects. An informer keeps changes until its
// handler has taken them, so the follower needs no queue of its own.
type follower struct {
	live client.Client
	out  io.Writer
	// came receives an element when anything has arrived since the last receive.
	came chan struct{}

	// mu protects what follows: informers call from several goroutines.
	mu sync.Mutex
	// last is the last printed line, by object.
	last map[string]string
	// troubles are the warnings seen, for the report when the demo fails.
	troubles []string
	// began is zero until the demo makes its objects. Changes before that do not matter.
	began, claimMade, podMade time.Time
	claimBound, podIsReady    time.Duration
	// failed is why the demo's pod has ended.
	failed error
	// ended: nothing that comes now is printed.
	ended bool
}

// change is an object that a watch delivered.
type change struct {
	object client.Object
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
		f.mu.Lock()
		if !f.began.IsZero() && !f.ended {
			f.note(change{object, time.Now()})
		}
		f.mu.Unlock()
	}
	select {
	case f.came <- struct{}{}:
	default:
	}
}

// untilReady waits until the demo's pod is Ready.
func (f *follower) untilReady(ctx context.Context) error {
	for {
		f.mu.Lock()
		err := f.failed
		f.ended = f.podIsReady > 0 || err != nil
		ended := f.ended
		f.mu.Unlock()
		if ended {
			return err
		}
		if err := f.wait(ctx, "the pod is Ready"); err != nil {
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
			f.mu.Lock()
			defer f.mu.Unlock()
			return fmt.Errorf("waited %s until %s; the latest messages:\n  %s", patience, until, strings.Join(f.troubles, "\n  "))
		}
		return ctx.Err()
	}
}

// note prints a line if the object is the demo's and has made progress.
func (f *follower) note(c change) {
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
			return "Pod " + name, f.podState(o, c.at)
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

// podState describes the state of the demo's pod. It notes when the pod is Ready or has failed.
func (f *follower) podState(pod *corev1.Pod, at time.Time) string {
	switch {
	case pod.Status.Phase == corev1.PodFailed:
		f.failed = fmt.Errorf("the pod failed: %s", pod.Status.Message)
	case isReady(pod):
		if f.podIsReady == 0 {
			f.podIsReady = at.Sub(f.podMade)
		}
		return "Ready"
	}
	return string(pod.Status.Phase)
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
