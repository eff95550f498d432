package provisioner

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// measuring is a provisioner whose nodes are measured.
func measuring() *pavv1.PavProvisioner {
	p := asWritten()
	p.Spec.Topology, p.Spec.NodeCapacity = pavv1.TopologyNode, &pavv1.NodeCapacity{Path: "{{ params.folder }}", Reserve: "2%"}
	return p
}

func class(name, provisioner string, mode storagev1.VolumeBindingMode, folder string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &mode, Parameters: map[string]string{"folder": folder}}
}

func machine(name, hostname string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: hostname}}}
}

// capacities words the objects of a world, sorted by class and node.
func capacities(w *world) map[string]string {
	w.t.Helper()
	var list storagev1.CSIStorageCapacityList
	w.must(w.client.List(context.Background(), &list, client.InNamespace(tarnv1.SystemNamespace)))
	found := map[string]string{}
	for _, c := range list.Items {
		much := fmt.Sprint(c.Capacity.Value())
		if c.Capacity.Value() == math.MaxInt64 {
			much = "unlimited"
		}
		if c.Annotations["example.com/note"] != "" {
			much += ", noted"
		}
		found[c.StorageClassName+" on "+c.Annotations[tarnv1.AnnotationNode]] = fmt.Sprintf("%s: %s less %s, %s",
			c.NodeTopology.MatchLabels[corev1.LabelHostname], c.Annotations[tarnv1.AnnotationCapacityPath], c.Annotations[tarnv1.AnnotationCapacityReserve], much)
	}
	return found
}

func (w *world) capacity() bool {
	w.t.Helper()
	d := w.driver()
	return d != nil && ptr.Deref(d.Spec.StorageCapacity, false)
}

const late = storagev1.VolumeBindingWaitForFirstConsumer

// roomy is what there is before a provisioner that has its nodes measured.
func roomy() []client.Object {
	return []client.Object{
		machine("n1", "one"), machine("n2", "n2"), class("fast", "slow", late, "/fast"), class("odd", "slow", late, "odd"),
		class("early", "slow", storagev1.VolumeBindingImmediate, "/early"), class("other", "else", late, "/other"),
	}
}

func TestEachNodeAndClassThatTheSchedulerAsksAboutHasItsCapacity(t *testing.T) {
	w := newWorld(t, append(roomy(), measuring())...)
	w.settle()
	want := map[string]string{
		"fast on n1": "one: /fast less 2%, unlimited", "fast on n2": "n2: /fast less 2%, unlimited",
		"odd on n1": "one:  less , unlimited", "odd on n2": "n2:  less , unlimited",
	}
	if diff := cmp.Diff(want, capacities(w)); diff != "" || !w.capacity() {
		t.Errorf("storageCapacity is %t, and the objects (-want +got):\n%s", w.capacity(), diff)
	}
	close(w.events.Events)
	var events []string
	for e := range w.events.Events {
		events = append(events, e)
	}
	if len(events) != 1 || !strings.Contains(events[0], `Warning CapacityInvalid StorageClass odd: spec.nodeCapacity.path: "odd" is not an absolute path`) {
		t.Errorf("the Events are %q, want one about class odd", events)
	}
}

// roomyLife is a life in which a node is measured, the class gets another directory, a node and a
// class go, and the section is removed in the end. It gives what there was.
func roomyLife(w *world) []any {
	ctx := context.Background()
	w.settle()
	seen := []any{capacities(w), w.capacity()}
	var list storagev1.CSIStorageCapacityList
	w.must(w.client.List(ctx, &list))
	for i := range list.Items {
		list.Items[i].Capacity = resource.NewQuantity(7, resource.BinarySI)
		list.Items[i].Annotations["example.com/note"] = "of another program"
		w.must(w.client.Update(ctx, &list.Items[i]))
	}
	w.settle()
	seen = append(seen, capacities(w))
	w.must(w.client.Delete(ctx, class("fast", "", late, "")))
	w.must(w.client.Create(ctx, class("fast", "slow", late, "/faster")))
	w.must(w.client.Delete(ctx, machine("n2", "")))
	w.must(w.client.Delete(ctx, class("odd", "", late, "")))
	w.settle()
	seen = append(seen, capacities(w), w.capacity())
	p := w.provisioner()
	p.Spec.NodeCapacity = nil
	w.must(w.client.Update(ctx, p))
	w.settle()
	return append(seen, capacities(w), w.capacity())
}

func TestCapacitiesFollowNodesClassesAndTheirProvisionerWhateverFails(t *testing.T) {
	plain := newWorld(t, append(roomy(), measuring())...)
	want := roomyLife(plain)
	words := []any{
		map[string]string{
			"fast on n1": "one: /fast less 2%, unlimited", "fast on n2": "n2: /fast less 2%, unlimited",
			"odd on n1": "one:  less , unlimited", "odd on n2": "n2:  less , unlimited",
		}, true,
		map[string]string{"fast on n1": "one: /fast less 2%, 7, noted", "fast on n2": "n2: /fast less 2%, 7, noted", "odd on n1": "one:  less , 7, noted", "odd on n2": "n2:  less , 7, noted"},
		map[string]string{"fast on n1": "one: /faster less 2%, unlimited, noted"}, true,
		map[string]string{}, false,
	}
	if diff := cmp.Diff(words, want); diff != "" {
		t.Fatalf("the life (-want +got):\n%s", diff)
	}
	for n := 1; n <= plain.writes; n++ {
		for _, made := range []bool{false, true} {
			w := newWorld(t, append(roomy(), measuring())...)
			w.fail = func(i int, done bool) error { return errIf(i == n && done == made, errKilled) }
			if diff := cmp.Diff(want, roomyLife(w)); diff != "" {
				t.Errorf("killed at write %d (done: %t) it ends otherwise (-want +got):\n%s", n, made, diff)
			}
		}
	}
}

func TestTheSchedulerIsToldOfCapacitiesOnlyWhileEachObjectExists(t *testing.T) {
	w := newWorld(t, append(roomy(), measuring())...)
	w.fail = func(int, bool) error {
		if n := len(capacities(w)); w.capacity() && n != 4 {
			t.Errorf("the driver says storageCapacity, and there are %d objects of 4", n)
		}
		return nil
	}
	w.settle()
	p := w.provisioner()
	p.Spec.NodeCapacity = nil
	w.must(w.client.Update(context.Background(), p))
	w.settle()
	if n := len(capacities(w)); n != 0 {
		t.Errorf("%d objects stay", n)
	}
}

func TestCapacitiesOfAnUnacceptedProvisionerStayWhileTheirClassDoes(t *testing.T) {
	ctx := context.Background()
	for name, reject := range map[string]func(*world){
		"invalid": func(w *world) {
			p := w.provisioner()
			p.Spec.Topology = pavv1.TopologyCluster
			w.must(w.client.Update(ctx, p))
		},
		"invalid, without the section": func(w *world) {
			p := w.provisioner()
			p.Spec.VolumeStaging, p.Spec.NodeCapacity = &apiextensionsv1.JSON{Raw: []byte(`{"podTemplate":"{{"}`)}, nil
			w.must(w.client.Update(ctx, p))
		},
		"being deleted": func(w *world) {
			w.must(w.client.Create(ctx, ptr.To(record("held", tarnv1.VolumeCreating))))
			w.must(w.client.Delete(ctx, w.provisioner()))
		},
	} {
		w := newWorld(t, append(roomy(), measuring())...)
		w.settle()
		want := capacities(w)
		reject(w)
		w.settle()
		if diff := cmp.Diff(want, capacities(w)); diff != "" || !w.capacity() {
			t.Errorf("%s: storageCapacity is %t, and the objects have changed (-want +got):\n%s", name, w.capacity(), diff)
		}
		w.must(w.client.Delete(ctx, class("fast", "", late, "")))
		w.must(w.client.Create(ctx, class("fast", "else", late, "/fast")))
		w.settle()
		delete(want, "fast on n1")
		delete(want, "fast on n2")
		if diff := cmp.Diff(want, capacities(w)); diff != "" || w.provisioner() == nil {
			t.Errorf("%s, and a class made again for another driver (-want +got):\n%s", name, diff)
		}
	}
}

func TestAnEarlierProvisionersCapacitiesAreMadeAnew(t *testing.T) {
	w := newWorld(t, append(roomy(), measuring())...)
	w.settle()
	p := w.provisioner()
	w.must(w.client.Delete(context.Background(), p))
	w.settle()
	next := measuring()
	next.UID = "the next"
	w.must(w.client.Create(context.Background(), next))
	w.settle()
	var list storagev1.CSIStorageCapacityList
	w.must(w.client.List(context.Background(), &list))
	for _, c := range list.Items {
		if !ownedBy(&c, next) {
			t.Errorf("object of class %s belongs to %v, want the new provisioner", c.StorageClassName, c.OwnerReferences)
		}
	}
	if len(list.Items) != 4 {
		t.Errorf("there are %d objects, want 4", len(list.Items))
	}
}

func TestEventsOfNodesClassesAndCapacitiesNameTheirProvisioner(t *testing.T) {
	w := newWorld(t, measuring())
	ctx := context.Background()
	for name, c := range map[string]struct {
		old, current client.Object
		want         int
	}{
		"a new node":     {nil, machine("n1", "n1"), 1},
		"a lost node":    {machine("n1", "n1"), nil, 1},
		"a renamed node": {machine("n1", "n1"), machine("n1", "other"), 1},
		"a heartbeat":    {machine("n1", "n1"), machine("n1", "n1"), 0},
	} {
		if got := w.r.measured(ctx, c.old, c.current); len(got) != c.want {
			t.Errorf("%s concerns %v, want %d", name, got, c.want)
		}
	}
	made := room{class: "fast", node: "n1", path: "/x"}.object(measuring())
	measured, moved := made.DeepCopy(), made.DeepCopy()
	measured.Capacity = resource.NewQuantity(7, resource.BinarySI)
	moved.Annotations[tarnv1.AnnotationCapacityPath] = "/y"
	for name, c := range map[string]struct {
		change change
		want   int
	}{"made": {change{nil, made}, 1}, "gone": {change{made, nil}, 1}, "moved": {change{made, moved}, 1}, "measured": {change{made, measured}, 0}} {
		if got := ofCapacity(c.change); len(got) != c.want {
			t.Errorf("a capacity that is %s concerns %v, want %d", name, got, c.want)
		}
	}
	if got := ofClass(ctx, class("fast", "slow", late, "/x")); len(got) != 1 || got[0].Name != "slow" {
		t.Errorf("a class concerns %v", got)
	}
}
