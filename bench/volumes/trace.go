package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// trace makes one claim and pod and prints every change of their objects. Each line has the
// milliseconds since the first request and since the previous line. It also has the wall clock, so
// that it can be compared with the logs of components.
func (b *bench) trace(ctx context.Context, id string) error {
	watching, enough := context.WithCancel(ctx)
	defer enough()
	s, err := b.watch(watching)
	if err != nil {
		return err
	}
	began := time.Now()
	if _, _, err := b.volumePod(ctx, id, began); err != nil {
		return err
	}
	before, last := began, map[string]string{}
	for _, change := range s.inOrder() {
		key, what := fmt.Sprintf("%T %s", change.object, change.object.GetName()), describe(change)
		if what == "" || last[key] == what {
			continue
		}
		last[key] = what
		fmt.Printf("%s %5d %+5d  %s\n", change.at.Format("05.000"), change.at.Sub(began).Milliseconds(), change.at.Sub(before).Milliseconds(), what)
		before = change.at
	}
	return s.whole()
}

// describe gives an object's state as one line; "" for an object or state that does not matter
// here.
func describe(s seen) string {
	gone := ""
	if s.gone {
		gone = " gone"
	}
	switch o := s.object.(type) {
	case *corev1.PersistentVolumeClaim:
		asked := ""
		if o.Annotations["volume.kubernetes.io/storage-provisioner"] != "" {
			asked = " asked"
		}
		return fmt.Sprintf("claim   %s%s volume=%t%s", o.Status.Phase, asked, o.Spec.VolumeName != "", gone)
	case *corev1.PersistentVolume:
		return fmt.Sprintf("volume  %s%s", o.Status.Phase, gone)
	case *corev1.Pod:
		return "pod     " + short(o) + " " + stateOf(o) + gone
	case *tarnv1.PavVolume:
		return fmt.Sprintf("record  %s%s", o.Status.Phase, gone)
	case *tarnv1.PavStage:
		return fmt.Sprintf("stage   node %q pod %q targets %d%s", o.Status.Node.Phase, o.Status.Pod.Phase, len(o.Status.Node.Targets), gone)
	}
	return ""
}

func short(p *corev1.Pod) string {
	if step := p.Labels[tarnv1.LabelStep]; step != "" {
		return step
	}
	return "of the user"
}

func stateOf(p *corev1.Pod) string {
	parts := []string{string(p.Status.Phase)}
	if p.Spec.NodeName != "" {
		parts = append(parts, "scheduled")
	}
	for _, c := range p.Status.ContainerStatuses {
		switch {
		case c.State.Running != nil:
			parts = append(parts, "running")
		case c.State.Terminated != nil:
			parts = append(parts, "terminated")
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			parts = append(parts, "ready")
		}
	}
	if p.Annotations[tarnv1.AnnotationResult] != "" {
		parts = append(parts, "result")
	}
	if p.DeletionTimestamp != nil {
		parts = append(parts, "deleted")
	}
	return strings.Join(parts, " ")
}
