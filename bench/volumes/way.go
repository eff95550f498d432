package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// leg is a part of the way from a claim to its Ready pod. It ends with the first sight
// of something; from the end of one to the end of the next nothing is left out, so that
// they add up to what was measured.
type leg struct {
	end string
	// whose it is, and what is done.
	whose, what string
	// sandbox says that it is two things: the kubelet's wait for the pod's volumes, and
	// the runtime's work on the pod's sandbox. Objects do not tell them apart; how long
	// the runtime takes for a sandbox is the kubelet's own count.
	sandbox bool
}

const (
	boundEnd, readyEnd = "bound", "ready"
	pulled, started    = "Pulled", "Started" // reasons of the kubelet's Events
)

var way = []leg{
	{end: "asked", whose: "binder", what: "names the provisioner on the claim"},
	{end: "creation", whose: "provision", what: "record, creation pod"},
	{end: "creation scheduled", whose: "scheduler", what: "creation pod gets its node"},
	{end: "creation " + pulled, what: "creation pod", sandbox: true},
	{end: "creation " + started, whose: "runtime", what: "creation pod: container made and started"},
	{end: "creation result", whose: "runtime, node", what: "creation pod: runs, ends, result stored"},
	{end: "volume", whose: "provision", what: "record Created, volume"},
	{end: boundEnd, whose: "binder", what: "volume and claim bound"},
	{end: "user scheduled", whose: "scheduler", what: "pod gets its node"},
	{end: "stage", whose: "kubelet, node", what: "kubelet's volume loops until it asks; stage with its target"},
	{end: "staging", whose: "stage", what: "staging pod"},
	{end: "staging " + pulled, what: "staging pod", sandbox: true},
	{end: "staging " + started, whose: "runtime", what: "staging pod: container made and started"},
	{end: "staged", whose: "runtime, node", what: "staging pod: runs, ends; volume checked and mounted"},
	{end: "user " + pulled, what: "pod", sandbox: true},
	{end: "user " + started, whose: "runtime", what: "pod: container made and started"},
	{end: readyEnd, whose: "kubelet", what: "pod Ready"},
}

// round is one claim and its pod, by their name.
type round struct {
	id                  string
	began, bound, ready time.Time
}

// sights are objects, as watches told of them.
type sights struct {
	mu  sync.Mutex
	all []seen
}

type seen struct {
	at     time.Time
	object client.Object
}

// watch notes every change of what lies on the way until ctx ends.
func (b *bench) watch(ctx context.Context) (*sights, error) {
	s := &sights{}
	for _, list := range []client.ObjectList{
		&corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}, &corev1.PodList{}, &corev1.EventList{}, &tarnv1.PavVolumeList{}, &tarnv1.PavStageList{},
	} {
		w, err := b.client.Watch(ctx, list)
		if err != nil {
			return nil, err
		}
		go func() {
			for e := range w.ResultChan() {
				if o, ok := e.Object.(client.Object); ok {
					s.mu.Lock()
					s.all = append(s.all, seen{time.Now(), o})
					s.mu.Unlock()
				}
			}
		}()
	}
	return s, nil
}

// firsts gives when each end of a leg was first seen, as ID END, of the claims and pods
// with an id. What tells whose an object is may have come later than the object.
func (s *sights) firsts() map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := map[string]string{} // of records and stages by uid, of volumes by name, of pods by "pod NAME", with what they are
	first := map[string]time.Time{}
	see := func(at time.Time, id string, end ...string) {
		key := strings.Join(append([]string{id}, end...), " ")
		if was, ok := first[key]; !ok || at.Before(was) {
			first[key] = at
		}
	}
	for _, of := range []func(seen){
		func(s seen) { noteOwners(s, ids, see) }, func(s seen) { noteStage(s, ids, see) }, func(s seen) { notePod(s, ids, see) },
		func(s seen) {
			if e, ok := s.object.(*corev1.Event); ok && ids["pod "+e.InvolvedObject.Name] != "" {
				see(s.at, ids["pod "+e.InvolvedObject.Name], e.Reason)
			}
		},
	} {
		for _, sight := range s.all {
			of(sight)
		}
	}
	return first
}

type noting = func(at time.Time, id string, end ...string)

func noteOwners(s seen, ids map[string]string, see noting) {
	switch o := s.object.(type) {
	case *corev1.PersistentVolumeClaim:
		if o.Annotations["volume.kubernetes.io/storage-provisioner"] != "" {
			see(s.at, o.Name, "asked")
		}
	case *tarnv1.PavVolume:
		ids[string(o.UID)] = o.Spec.Claim.Name
	case *corev1.PersistentVolume:
		if ref := o.Spec.ClaimRef; ref != nil {
			ids[o.Name] = ref.Name
			see(s.at, ref.Name, "volume")
		}
	}
}

func noteStage(s seen, ids map[string]string, see noting) {
	o, ok := s.object.(*tarnv1.PavStage)
	if !ok {
		return
	}
	id := ids[o.Spec.VolumeName]
	ids[string(o.UID)] = id
	if len(o.Status.Node.Targets) > 0 {
		see(s.at, id, "stage")
	}
	if o.Status.Node.Phase == tarnv1.StageStaged {
		see(s.at, id, "staged")
	}
}

func notePod(s seen, ids map[string]string, see noting) {
	o, ok := s.object.(*corev1.Pod)
	if !ok {
		return
	}
	who := o.Name + " user"
	switch step := tarnv1.Step(o.Labels[tarnv1.LabelStep]); step {
	case "":
	case tarnv1.StepCreation:
		who = ids[o.Labels[tarnv1.LabelRecord]] + " " + string(step)
	case tarnv1.StepStaging:
		who = ids[o.Labels[tarnv1.LabelStage]] + " " + string(step)
	default:
		return
	}
	ids["pod "+o.Name] = who
	see(s.at, who)
	if o.Spec.NodeName != "" {
		see(s.at, who, "scheduled")
	}
	if o.Annotations[tarnv1.AnnotationResult] != "" {
		see(s.at, who, "result")
	}
}

// lengths gives how long each leg of a round took. They add up to its time until Ready,
// those until the claim's to that. An end of which no watch told, or told late, counts
// as reached together with its neighbour.
func lengths(r round, first map[string]time.Time) []time.Duration {
	took := make([]time.Duration, len(way))
	before, limit := r.began, r.bound
	for i, l := range way {
		at, ok := first[r.id+" "+l.end]
		switch {
		case l.end == boundEnd:
			at, limit = r.bound, r.ready
		case l.end == readyEnd:
			at = r.ready
		case !ok || at.Before(before):
			at = before
		case at.After(limit):
			at = limit
		}
		took[i] = at.Sub(before)
		before = at
	}
	return took
}

// legs are the legs on average over the rounds, so that they add up. sandbox is what the
// runtime takes for one.
func legs(rounds []round, first map[string]time.Time, sandbox time.Duration) []legTook {
	sums := make([]time.Duration, len(way))
	for _, r := range rounds {
		for i, took := range lengths(r, first) {
			sums[i] += took
		}
	}
	var all []legTook
	for i, l := range way {
		mean := sums[i] / time.Duration(len(rounds))
		if l.sandbox {
			work := min(sandbox, mean)
			all = append(all, legTook{Whose: "kubelet", What: l.what + ": the kubelet's loops until its volumes are mounted", Seconds: (mean - work).Seconds()},
				legTook{Whose: "runtime", What: l.what + ": sandbox", Seconds: work.Seconds()})
			continue
		}
		all = append(all, legTook{Whose: l.whose, What: l.what, Seconds: mean.Seconds(), Bound: l.end == boundEnd})
	}
	return all
}

// printWay prints the legs.
func printWay(all []legTook) {
	fmt.Printf("where the time goes, on average, in ms\n  %5s %6s  %s\n", "takes", "until", "whose")
	var until float64
	for _, l := range all {
		until += l.Seconds
		fmt.Printf("  %5.0f %6.0f  %-14s %s\n", 1000*l.Seconds, 1000*until, l.Whose, l.What)
		if l.Bound {
			fmt.Printf("  %12.0f  = claim: Bound, on average\n", 1000*until)
		}
	}
	fmt.Printf("  %12.0f  = pod with the volume: Ready, on average\n", 1000*until)
}

// sandboxes gives how many pods' sandboxes the cluster's runtimes have made, and the
// time that took, as the kubelets count it.
func sandboxes(ctx context.Context, c client.Client, config *rest.Config) (count float64, took time.Duration, err error) {
	nodes := &corev1.NodeList{}
	if err := c.List(ctx, nodes); err != nil {
		return 0, 0, err
	}
	caller, err := rest.HTTPClientFor(config)
	if err != nil {
		return 0, 0, err
	}
	for i := range nodes.Items {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/api/v1/nodes/"+nodes.Items[i].Name+"/proxy/metrics", http.NoBody)
		if err != nil {
			return 0, 0, err
		}
		answer, err := caller.Do(request)
		if err != nil {
			return 0, 0, err
		}
		page, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close() // it was only read
		if err != nil || answer.StatusCode != http.StatusOK {
			return 0, 0, fmt.Errorf("%s: %s: %w", request.URL, answer.Status, err)
		}
		const operation = `{operation_type="run_podsandbox"} `
		count += sample(string(page), "kubelet_runtime_operations_duration_seconds_count"+operation)
		took += time.Duration(sample(string(page), "kubelet_runtime_operations_duration_seconds_sum"+operation) * float64(time.Second))
	}
	return count, took, nil
}

// sample is the value of a metric on a page, 0 where it is not there.
func sample(page, metric string) float64 {
	for line := range strings.Lines(page) {
		if text, ok := strings.CutPrefix(line, metric); ok {
			value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err == nil {
				return value
			}
		}
	}
	return 0
}
