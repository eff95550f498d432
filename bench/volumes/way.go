package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// leg is a part of the way from a claim to its Ready pod. It ends when something is first seen, and
// the next leg begins there. The legs therefore add up to the total, if every end was seen.
type leg struct {
	end string
	// whose names the component at work, and what names its work.
	whose, what string
	// sandbox says that the leg has two parts: the kubelet's wait for the pod's volumes, and the
	// runtime's work on the pod's sandbox. Objects do not separate them. The kubelet's metrics say
	// how long the runtime takes.
	sandbox bool
}

const (
	boundEnd, readyEnd = "bound", "ready"
	pulled, started    = "Pulled", "Started" // reasons of the kubelet's Events
)

var way = []leg{
	{end: "asked", whose: "binder", what: "names the provisioner on the claim"},
	{end: "creation", whose: "pavvolume", what: "record, creation pod"},
	{end: "creation scheduled", whose: "scheduler", what: "creation pod gets its node"},
	{end: "creation " + pulled, what: "creation pod", sandbox: true},
	{end: "creation " + started, whose: "runtime", what: "creation pod: container made and started"},
	{end: "creation result", whose: "runtime, node", what: "creation pod: runs, ends, result stored"},
	{end: "volume", whose: "pavvolume", what: "record Created, volume"},
	{end: boundEnd, whose: "binder", what: "volume and claim bound"},
	{end: "user scheduled", whose: "scheduler", what: "pod gets its node"},
	{end: "user taken on", whose: "kubelet", what: "takes the pod on"},
	{end: "stage", whose: "stage", what: "stage begun ahead of the kubelet's call"},
	{end: "staging", whose: "stage", what: "staging pod"},
	{end: "staging " + pulled, what: "staging pod", sandbox: true},
	{end: "staging " + started, whose: "runtime", what: "staging pod: container made and started"},
	{end: "staged", whose: "runtime, node", what: "staging pod: runs, ends; volume checked and mounted"},
	{end: "user " + pulled, what: "pod", sandbox: true},
	{end: "user " + started, whose: "runtime", what: "pod: container made and started"},
	{end: readyEnd, whose: "kubelet", what: "pod Ready"},
}

// round is one claim and its pod, by their id.
type round struct {
	id                  string
	began, bound, ready time.Time
}

// sights are objects as watches reported them.
type sights struct {
	mu   sync.Mutex
	all  []seen
	lost error
}

type seen struct {
	at     time.Time
	object client.Object
	gone   bool
}

// watch records every change of the objects on the way until ctx ends.
func (b *bench) watch(ctx context.Context) (*sights, error) {
	s := &sights{}
	for _, list := range []client.ObjectList{
		&corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}, &corev1.PodList{}, &corev1.EventList{}, &tarnv1.PavVolumeList{}, &tarnv1.PavStageList{},
	} {
		w, err := follow(ctx, b.client, list)
		if err != nil {
			return nil, err
		}
		go s.note(w)
	}
	return s, nil
}

func (s *sights) note(w watch.Interface) {
	for e := range w.ResultChan() {
		at := time.Now()
		s.mu.Lock()
		if o, ok := e.Object.(client.Object); ok {
			s.all = append(s.all, seen{at, o, e.Type == watch.Deleted})
		} else {
			s.lost = apierrors.FromObject(e.Object)
		}
		s.mu.Unlock()
	}
}

// whole returns an error if a watch ended that cannot resume.
func (s *sights) whole() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil {
		return fmt.Errorf("a watch of what lies on the way ended: %w", s.lost)
	}
	return nil
}

// inOrder is everything reported until now, in order.
func (s *sights) inOrder() []seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedStableFunc(slices.Values(s.all), func(x, y seen) int { return x.at.Compare(y.at) })
}

// firsts gives when each end of a leg was first seen, with key ID END, for the claims and pods with
// an id. An object may be reported before the one that reveals its owner.
func (s *sights) firsts() map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := map[string]string{} // of records and stages by uid, of pods by uid with what they are, of volumes by name
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
			// By uid, because an earlier run had pods with the same names.
			if e, ok := s.object.(*corev1.Event); ok && ids[string(e.InvolvedObject.UID)] != "" {
				see(s.at, ids[string(e.InvolvedObject.UID)], e.Reason)
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
	see(s.at, id, "stage")
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
	ids[string(o.UID)] = who
	see(s.at, who)
	if o.Spec.NodeName != "" {
		see(s.at, who, "scheduled")
	}
	if o.Status.StartTime != nil {
		see(s.at, who, "taken on")
	}
	if o.Annotations[tarnv1.AnnotationResult] != "" {
		see(s.at, who, "result")
	}
}

// sandboxes gives how many pod sandboxes the cluster's runtimes have made, and the total time, as
// the kubelets count it.
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

// sample is the value of a metric on a page; 0 where it is missing.
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
