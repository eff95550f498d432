package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// sight is one change of an object, as a watch told it.
type sight struct {
	at   time.Time
	what string
}

// trace makes one claim and pod and prints every change of an object on the way, with
// the time since the first request and since the line before, in milliseconds. The
// wall clock stands beside it, so that the logs of components can be laid alongside.
func (b *bench) trace(ctx context.Context, id string) error {
	var mu sync.Mutex
	var seen []sight
	watching, enough := context.WithCancel(ctx)
	defer enough()
	for _, list := range []client.ObjectList{
		&corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}, &corev1.PodList{}, &tarnv1.PavVolumeList{}, &tarnv1.PavStageList{},
	} {
		w, err := b.client.Watch(watching, list)
		if err != nil {
			return err
		}
		go func() {
			last := map[string]string{}
			for e := range w.ResultChan() {
				at, what := time.Now(), describe(e)
				if o, ok := e.Object.(client.Object); ok && what != "" && last[o.GetName()] != what {
					last[o.GetName()] = what
					mu.Lock()
					seen = append(seen, sight{at, what})
					mu.Unlock()
				}
			}
		}()
	}
	began := time.Now()
	if _, _, err := b.volumePod(ctx, id, began); err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	slices.SortFunc(seen, func(x, y sight) int { return x.at.Compare(y.at) })
	before := began
	for _, s := range seen {
		fmt.Printf("%s %5d %+5d  %s\n", s.at.Format("05.000"), s.at.Sub(began).Milliseconds(), s.at.Sub(before).Milliseconds(), s.what)
		before = s.at
	}
	return nil
}

// describe says in a line what state an object is in; empty for what is no object.
func describe(e watch.Event) string {
	gone := ""
	if e.Type == watch.Deleted {
		gone = " gone"
	}
	switch o := e.Object.(type) {
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
