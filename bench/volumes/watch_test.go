package main

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// asking is a request for a watch: a list's kind and a first version.
type asking struct {
	*watch.FakeWatcher
	kind, from string
}

// server has some objects in version 1 of its lists. The test sends events to its watches and ends
// them.
func server(there ...runtime.Object) (client.WithWatch, <-chan asking) {
	asked := make(chan asking)
	return interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			list.SetResourceVersion("1")
			return meta.SetList(list, there)
		},
		Watch: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			o := (&client.ListOptions{}).ApplyOptions(opts)
			one := asking{watch.NewFake(), fmt.Sprintf("%T", list), o.Raw.ResourceVersion}
			select {
			case asked <- one:
				return one, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	}), asked
}

// ended lets a watch report one change in version 2 and ends it. It gives the watch that replaces
// it.
func ended(t *testing.T, asked <-chan asking, first asking, change client.Object) asking {
	t.Helper()
	change.SetResourceVersion("2")
	first.Modify(change)
	first.Stop()
	next := <-asked
	if first.from != "1" || next.from != "2" || next.kind != first.kind {
		t.Errorf("a watch of %s from version %s goes on with %s from %s", first.kind, first.from, next.kind, next.from)
	}
	return next
}

func podIn(phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "3"}, Status: corev1.PodStatus{Phase: phase}}
}

func runs(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }

func TestAnObjectIsAwaitedThoughTheAPIServerEndsTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, asked := server(podIn(""))
		result := make(chan error)
		go func() {
			_, err := await(t.Context(), c, &corev1.PodList{}, "a", "", runs)
			result <- err
		}()
		next := ended(t, asked, <-asked, podIn(corev1.PodPending))
		next.Delete(podIn(corev1.PodRunning)) // as before its end
		synctest.Wait()
		select {
		case err := <-result:
			t.Fatalf("one that is gone is as wanted (%v)", err)
		default:
		}
		next.Modify(podIn(corev1.PodRunning))
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
}

func TestAnObjectThatIsAsWantedBeforeItIsWatchedIsNotAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := server(podIn(corev1.PodRunning))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := await(ctx, c, &corev1.PodList{}, "a", "", runs); err != nil {
			t.Error(err)
		}
	})
}

func TestTheEndOfTheProvisionerIsAwaitedThoughTheAPIServerEndsTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c, asked := server(p)
		result := make(chan error)
		go func() { result <- (&bench{client: c}).gone(t.Context()) }()
		next := ended(t, asked, <-asked, p.DeepCopy())
		next.Delete(&pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "3"}})
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
}

func TestAProvisionerThatIsGoneIsNotAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := server()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := (&bench{client: c}).gone(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestEverythingOnTheWayIsSeenThoughTheAPIServerEndsEachWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, asked := server()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := (&bench{client: c}).watch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		objects := map[string]client.Object{
			"*v1.EventList": &corev1.Event{}, "*v1.PodList": &corev1.Pod{}, "*v1.PersistentVolumeClaimList": &corev1.PersistentVolumeClaim{},
			"*v1.PersistentVolumeList": &corev1.PersistentVolume{}, "*v1alpha1.PavVolumeList": &tarnv1.PavVolume{}, "*v1alpha1.PavStageList": &tarnv1.PavStage{},
		}
		var first []asking
		for range objects {
			first = append(first, <-asked)
		}
		for _, one := range first {
			before, after := objects[one.kind], objects[one.kind].DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy
			before.SetName("before " + one.kind)
			after.SetName("after " + one.kind)
			after.SetResourceVersion("3")
			ended(t, asked, one, before).Delete(after)
		}
		synctest.Wait()
		told := map[string]bool{}
		for _, sight := range s.inOrder() {
			told[sight.object.GetName()] = sight.gone
		}
		for kind := range objects {
			if gone, ok := told["before "+kind]; !ok || gone {
				t.Errorf("%s: what was told before its watch was ended is not there", kind)
			}
			if gone, ok := told["after "+kind]; !ok || !gone {
				t.Errorf("%s: the end that was told after its watch was ended is not there", kind)
			}
		}
		if err := s.whole(); err != nil {
			t.Error(err)
		}
	})
}

func TestAWatchThatCannotGoOnIsNoWatchThatSawNothing(t *testing.T) {
	tooOld := &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old"}
	synctest.Test(t, func(t *testing.T) {
		c, asked := server()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := (&bench{client: c}).watch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		(<-asked).Error(tooOld)
		synctest.Wait()
		if err := s.whole(); !apierrors.IsResourceExpired(err) {
			t.Errorf("of what is on the way it says %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c, asked := server()
		result := make(chan error)
		go func() {
			_, err := await(t.Context(), c, &corev1.PodList{}, "a", "", runs)
			result <- err
		}()
		(<-asked).Error(tooOld)
		if err := <-result; !apierrors.IsResourceExpired(err) {
			t.Errorf("of an object that is awaited it says %v", err)
		}
	})
}
