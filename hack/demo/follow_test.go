package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// cluster is an API server with the given objects of an earlier demo. It calls tell at each use.
type cluster struct {
	client.Client
	// asked is the number of reads that still find an object.
	asked int
	tell  func()
}

func (c *cluster) Create(context.Context, client.Object, ...client.CreateOption) error {
	c.tell()
	return nil
}

func (c *cluster) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	c.tell()
	return nil
}

func (c *cluster) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	defer c.tell()
	if c.asked--; c.asked < 0 {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
	return nil
}

// others sends a follower more changes than a limited queue could keep.
func others(f *follower) {
	for i := range 10_000 {
		f.OnAdd(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("other-%d", i), CreationTimestamp: metav1.Now()}}, true)
	}
}

// pod is the demo's pod, made now and Ready or not.
func pod(ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceDefault, Name: name, CreationTimestamp: metav1.Now()},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

func manifests(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	all, err := read("../../" + folder)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestAUsedClusterDoesNotStopTheDemo(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var out bytes.Buffer
	c := &cluster{asked: 2}
	f := follow(c, &out)
	c.tell = func() { others(f) }
	all := manifests(t)
	others(f)
	if err := f.clean(ctx, all); err != nil {
		t.Fatal(err)
	}
	others(f)
	if err := f.apply(ctx, all); err != nil {
		t.Fatal(err)
	}
	f.OnUpdate(nil, pod(corev1.ConditionFalse))
	f.OnUpdate(nil, pod(corev1.ConditionTrue))
	if err := f.untilReady(ctx); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"deleted what an earlier demo left", "Pod hello-world: created", "Pod hello-world: Running", "Pod hello-world: Ready"} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("%q is not there once in what it printed:\n%s", want, out.String())
		}
	}
}

func TestTheDemoEndsWhenItIsToldToOrItsTimeIsOver(t *testing.T) {
	told, stop := context.WithCancel(t.Context())
	stop()
	over, stop := context.WithDeadline(t.Context(), time.Now())
	defer stop()
	for _, c := range []struct {
		ctx  context.Context
		want string
	}{
		{told, context.Canceled.Error()},
		{over, "waited 2m0s until the pod is Ready; the latest messages:\n  ProvisioningFailed: no luck"},
	} {
		f := follow(&cluster{}, &bytes.Buffer{})
		f.began = time.Now()
		f.OnAdd(&corev1.Event{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Now()}, Type: corev1.EventTypeWarning, Reason: "ProvisioningFailed", Message: "no luck", InvolvedObject: corev1.ObjectReference{Name: name}}, false)
		err := f.untilReady(c.ctx)
		if err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

func TestTheDemoFailsWithItsPod(t *testing.T) {
	f := follow(&cluster{}, &bytes.Buffer{})
	f.began = time.Now()
	failed := pod(corev1.ConditionFalse)
	failed.Status.Phase, failed.Status.Message = corev1.PodFailed, "no luck"
	f.OnUpdate(nil, failed)
	err := f.untilReady(t.Context())
	if err == nil || errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "no luck") {
		t.Errorf("got %v, want the pod's message", err)
	}
}
