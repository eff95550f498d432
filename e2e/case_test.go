//go:build e2e

package e2e

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

const (
	// namePrefix begins the names of all objects of the cases.
	namePrefix = "e2e-"
	// soon is how long a single step may take on a slow machine with twelve cases in parallel. It
	// ends a wait in vain, and does not measure speed.
	soon = 3 * time.Minute
)

// scenario is one case. Its name is also that of its namespace, provisioner and class.
type scenario struct {
	t    *testing.T
	ctx  context.Context
	name string
	// step is how long a single step may take; 0 means soon.
	step time.Duration
}

func (s *scenario) limit() time.Duration { return cmp.Or(s.step, soon) }

// begin makes the namespace of a case and registers its cleanup.
func begin(t *testing.T, label string) *scenario {
	t.Helper()
	// Not the test's own context, which ends before its cleanup runs.
	s := &scenario{t: t, ctx: context.Background(), name: fmt.Sprintf("%s%s-%05x", namePrefix, label, rand.IntN(1<<20))}
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}})
	t.Cleanup(func() {
		failed := t.Failed()
		if failed {
			s.story()
		}
		s.end()
		if t.Failed() && !failed {
			s.story()
		}
	})
	return s
}

// end deletes the remaining objects of the case, each kind with its own timeout, and proves that
// nothing is left.
func (s *scenario) end() {
	ours := client.InNamespace(s.name)
	for _, kind := range []struct {
		what string
		list client.ObjectList
	}{
		{"pods", &corev1.PodList{}},
		{"claims", &corev1.PersistentVolumeClaimList{}},
	} {
		s.clear(kind.what, kind.list, ours)
	}
	s.deleteIfThere(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: s.name}})
	provisioner := &pav.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	s.deleteIfThere(provisioner)
	s.gone(provisioner)
	s.deleteIfThere(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}})
	if err := s.nothingLeft(); err != nil {
		s.t.Errorf("the case has left something behind: %v", err)
	}
}

// clear deletes all objects of a list and waits until they are gone.
func (s *scenario) clear(what string, list client.ObjectList, options ...client.ListOption) {
	if err := suite.live.List(s.ctx, list, options...); err != nil {
		s.t.Errorf("listing %s: %v", what, err)
		return
	}
	objects := items(list)
	for _, o := range objects {
		s.deleteIfThere(o)
	}
	for _, o := range objects {
		s.gone(o)
	}
}

// items gives the objects of a list, for the kinds that the cases make.
func items(list client.ObjectList) []client.Object {
	var found []client.Object
	switch l := list.(type) {
	case *corev1.PodList:
		for i := range l.Items {
			found = append(found, &l.Items[i])
		}
	case *corev1.PersistentVolumeClaimList:
		for i := range l.Items {
			found = append(found, &l.Items[i])
		}
	case *corev1.PersistentVolumeList:
		for i := range l.Items {
			found = append(found, &l.Items[i])
		}
	case *tarn.PavVolumeList:
		for i := range l.Items {
			found = append(found, &l.Items[i])
		}
	case *tarn.PavStageList:
		for i := range l.Items {
			found = append(found, &l.Items[i])
		}
	}
	return found
}

// create makes an object and fails the case if the API server rejects it.
func (s *scenario) create(o client.Object) {
	s.t.Helper()
	if err := suite.live.Create(s.ctx, o); err != nil {
		s.t.Fatalf("creating %s: %v", describe(o), err)
	}
}

// delete requests the deletion of an object that must exist.
func (s *scenario) delete(o client.Object) {
	s.t.Helper()
	if err := suite.live.Delete(s.ctx, o); err != nil {
		s.t.Fatalf("deleting %s: %v", describe(o), err)
	}
}

// deleteIfThere requests the deletion of an object that may not exist.
func (s *scenario) deleteIfThere(o client.Object) {
	if err := client.IgnoreNotFound(suite.live.Delete(s.ctx, o)); err != nil {
		s.t.Errorf("deleting %s: %v", describe(o), err)
	}
}

// remove deletes an object and fails the case unless it is gone soon.
func (s *scenario) remove(o client.Object) {
	s.t.Helper()
	s.delete(o)
	if !s.gone(o) {
		s.t.FailNow()
	}
}

// gone reports whether an object is gone, or another object has its name.
func (s *scenario) gone(o client.Object) bool {
	s.t.Helper()
	uid := o.GetUID()
	last := o.DeepCopyObject().(client.Object)
	return s.wait(describe(o)+" to be gone", s.limit(), func() (bool, string) {
		err := suite.cached.Get(s.ctx, client.ObjectKeyFromObject(o), last)
		if err == nil && (uid == "" || last.GetUID() == uid) {
			return false, fmt.Sprintf("still there, finalizers %q", last.GetFinalizers())
		}
		// The cache may be missing an object that exists.
		err = suite.live.Get(s.ctx, client.ObjectKeyFromObject(o), last)
		return apierrors.IsNotFound(err) || err == nil && uid != "" && last.GetUID() != uid, "still there"
	})
}

// await waits for a state of the cluster, and fails the case at the deadline.
func (s *scenario) await(what string, check func() (bool, string)) {
	s.t.Helper()
	if !s.wait(what, s.limit(), check) {
		s.t.FailNow()
	}
}

// wait calls check after each change until it holds. Its second result describes the state, for the
// message at the deadline.
func (s *scenario) wait(what string, within time.Duration, check func() (bool, string)) bool {
	s.t.Helper()
	return suite.news.await(s.t, what, within, check)
}

// ran checks how many pods of a step there have been. A watch may report the last pod a moment
// after its effects are seen elsewhere.
func (s *scenario) ran(step tarn.Step, want int) {
	s.t.Helper()
	seen := func() int { return suite.news.of(s.name).pods[step] }
	s.await(fmt.Sprintf("%d %s pods to have been seen", want, step), func() (bool, string) {
		return seen() >= want, fmt.Sprintf("there were %d", seen())
	})
	if n := seen(); n != want {
		s.t.Errorf("saw %d %s pods, want %d", n, step, want)
	}
}

// get reads an object from the cache. Its error is the state to report.
func (s *scenario) get(o client.Object) error {
	return suite.cached.Get(s.ctx, client.ObjectKeyFromObject(o), o)
}

// bound waits until a claim is Bound and gives it.
func (s *scenario) bound(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	now := claim.DeepCopy()
	s.await("claim "+claim.Name+" to be Bound", func() (bool, string) {
		if err := s.get(now); err != nil {
			return false, err.Error()
		}
		return now.Status.Phase == corev1.ClaimBound, "it is " + string(now.Status.Phase)
	})
	return now
}

// succeeded waits until a pod has Succeeded.
func (s *scenario) succeeded(pod *corev1.Pod) {
	s.t.Helper()
	now := pod.DeepCopy()
	var state string
	s.await("pod "+pod.Name+" to have Succeeded", func() (bool, string) {
		if err := s.get(now); err != nil {
			return false, err.Error()
		}
		state = "it is " + string(now.Status.Phase)
		return now.Status.Phase == corev1.PodSucceeded || now.Status.Phase == corev1.PodFailed, state
	})
	if now.Status.Phase == corev1.PodFailed {
		s.t.Fatalf("pod %s failed, and has printed:\n%s", pod.Name, s.printed(now))
	}
}

// ready waits until a pod is Ready.
func (s *scenario) ready(pod *corev1.Pod) {
	s.t.Helper()
	now := pod.DeepCopy()
	s.await("pod "+pod.Name+" to be Ready", func() (bool, string) {
		if err := s.get(now); err != nil {
			return false, err.Error()
		}
		return isReadyPod(now), "it is " + string(now.Status.Phase)
	})
}

func isReadyPod(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// printed gives the output of a pod's containers.
func (s *scenario) printed(pod *corev1.Pod) string {
	var text strings.Builder
	for _, c := range pod.Spec.Containers {
		out, err := suite.logs.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: c.Name}).DoRaw(s.ctx)
		if err != nil {
			fmt.Fprintf(&text, "(%v)\n", err)
		}
		text.Write(out)
	}
	return text.String()
}

// prints reads the output of a pod's only container until it contains a last line. It gives all of
// it.
func (s *scenario) prints(pod *corev1.Pod, last string) string {
	s.t.Helper()
	ctx, stop := context.WithTimeout(s.ctx, s.limit())
	defer stop()
	stream, err := suite.logs.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		s.t.Fatalf("the log of pod %s: %v", pod.Name, err)
	}
	defer stream.Close()
	var text strings.Builder
	lines := bufio.NewScanner(stream)
	for lines.Scan() {
		text.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), last) {
			return text.String()
		}
	}
	s.t.Fatalf("pod %s has not printed %q (%v), but:\n%s", pod.Name, last, lines.Err(), text.String())
	return ""
}

// told waits for an Event about an object with the given reason whose message contains every text.
func (s *scenario) told(about client.Object, reason string, texts ...string) {
	s.t.Helper()
	s.await(fmt.Sprintf("an Event %s about %s with %q", reason, describe(about), texts), func() (bool, string) {
		events := s.events(about.GetNamespace(), about.GetName())
		for _, e := range events {
			if e.Reason == reason && containsAll(e.Message, texts) {
				return true, ""
			}
		}
		return false, fmt.Sprintf("there are %d: %s", len(events), eventLines(events))
	})
}

// events gives the Events about the object of a name.
func (s *scenario) events(namespace, name string) []corev1.Event {
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	var list corev1.EventList
	if err := suite.cached.List(s.ctx, &list, client.InNamespace(namespace)); err != nil {
		return []corev1.Event{{Message: err.Error()}}
	}
	var found []corev1.Event
	for _, e := range list.Items {
		if e.InvolvedObject.Name == name {
			found = append(found, e)
		}
	}
	return found
}

func containsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// describe names an object for messages.
func describe(o client.Object) string {
	if kind := o.GetObjectKind().GroupVersionKind().Kind; kind != "" {
		return kind + " " + o.GetName()
	}
	kind := strings.TrimPrefix(fmt.Sprintf("%T", o), "*")
	if _, after, found := strings.Cut(kind, "."); found {
		kind = after
	}
	return kind + " " + o.GetName()
}

// needsThisMachine skips a case whose cluster is elsewhere.
func (s *scenario) needsThisMachine() {
	s.t.Helper()
	if !suite.machine.here() {
		s.t.Skip("the cluster is not on this machine: TARN_CLUSTER_BINARY and TARN_CLUSTER_NAME are not set")
	}
}

// refused fails the case unless err is a rejection by the API server that contains every text.
func (s *scenario) refused(err error, texts ...string) {
	s.t.Helper()
	var status apierrors.APIStatus
	switch {
	case err == nil:
		s.t.Errorf("it was accepted, want a refusal with %q", texts)
	case !errors.As(err, &status):
		s.t.Errorf("got %v, want the API server's refusal with %q", err, texts)
	case !containsAll(err.Error(), texts):
		s.t.Errorf("refused with %q, want %q in it", err, texts)
	}
}
