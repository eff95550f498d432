package provisioner

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
)

var errKilled = errors.New("killed")

// world is an API server and a controller whose writes can be made to fail.
type world struct {
	t      *testing.T
	client client.Client
	r      *Reconciler
	events *events.FakeRecorder
	// fail is called before and after each write with the number of the write, from 1. An error
	// before the write prevents it.
	fail   func(n int, made bool) error
	writes int
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	w := &world{t: t, events: events.NewFakeRecorder(1000)}
	b := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(objects...).
		WithStatusSubresource(&pavv1.PavProvisioner{}, &tarnv1.PavVolume{}, &tarnv1.PavStage{})
	for _, i := range indexes() {
		b = b.WithIndex(i.object, i.field, i.values)
	}
	w.client = b.Build()
	failing := interceptor.NewClient(w.client.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return w.write(func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return w.write(func() error { return c.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return w.write(func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return w.write(func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return w.write(func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	})
	w.r = &Reconciler{client: failing, live: w.client, runner: action.Runner{Client: failing, Events: w.events}, clock: testclock.NewFakePassiveClock(noon)}
	return w
}

func (w *world) write(do func() error) error {
	w.writes++
	n := w.writes
	if w.fail != nil {
		if err := w.fail(n, false); err != nil {
			return err
		}
	}
	if err := do(); err != nil || w.fail == nil {
		return err
	}
	return w.fail(n, true)
}

// settle reconciles until a reconcile succeeds without a write. It continues after a kill, and
// fails the test on any other error.
func (w *world) settle() {
	w.t.Helper()
	for range 20 {
		before := w.writes
		_, err := w.r.Reconcile(context.Background(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "slow"}})
		if err != nil && !errors.Is(err, errKilled) {
			w.t.Fatalf("reconcile: %v", err)
		}
		if err == nil && w.writes == before {
			return
		}
	}
	w.t.Fatal("20 reconciles did not settle")
}

func (w *world) provisioner() *pavv1.PavProvisioner {
	w.t.Helper()
	p := &pavv1.PavProvisioner{}
	if err := w.client.Get(context.Background(), client.ObjectKey{Name: "slow"}, p); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		w.t.Fatal(err)
	}
	return p
}

func (w *world) driver() *storagev1.CSIDriver {
	w.t.Helper()
	d := &storagev1.CSIDriver{}
	if err := w.client.Get(context.Background(), client.ObjectKey{Name: "slow"}, d); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		w.t.Fatal(err)
	}
	return d
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// asWritten is the provisioner as an administrator writes it.
func asWritten() *pavv1.PavProvisioner {
	return &pavv1.PavProvisioner{
		ObjectMeta: metav1.ObjectMeta{Name: "slow", UID: ownUID, Generation: 1},
		Spec: pavv1.PavProvisionerSpec{
			ProvisioningModes: []pavv1.ProvisioningMode{pavv1.ModeStatic},
			VolumeStaging:     &apiextensionsv1.JSON{Raw: []byte(`{"podTemplate":{"spec":{"containers":[]}}}`)},
		},
	}
}

func node(name string, drivers ...string) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, d := range drivers {
		n.Spec.Drivers = append(n.Spec.Drivers, storagev1.CSINodeDriver{Name: d, NodeID: name})
	}
	return n
}

func TestAProvisionerIsAcceptedCountedAndLetGo(t *testing.T) {
	kept := record("kept", tarnv1.VolumeCreated)
	other := record("other", tarnv1.VolumeCreating)
	other.Spec.Provisioner.UID = "an earlier one of the name"
	keptVolume := pv(corev1.VolumeReleased, corev1.PersistentVolumeReclaimRetain, true)
	keptVolume.Name = "kept"
	stage := &tarnv1.PavStage{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: tarnv1.PavStageSpec{Provisioner: kept.Spec.Provisioner}}
	w := newWorld(t, asWritten(), node("n1", "slow", "x"), node("n2", "x"), node("n3", "slow"), &kept, &other, keptVolume, stage)
	w.settle()
	p := w.provisioner()
	if !meta.IsStatusConditionTrue(p.Status.Conditions, "Accepted") || !meta.IsStatusConditionTrue(p.Status.Conditions, "Ready") || p.Status.Nodes != 2 || p.Status.Volumes != 1 {
		t.Fatalf("got status %+v", p.Status)
	}
	if c := meta.FindStatusCondition(p.Status.Conditions, "Ready"); c.Message != "2 nodes serve the driver" {
		t.Errorf("Ready says %q", c.Message)
	}
	if d := w.driver(); d == nil || *d.Spec.AttachRequired || !*d.Spec.PodInfoOnMount || d.OwnerReferences[0].UID != ownUID {
		t.Fatalf("got driver %+v", d)
	}
	w.must(w.client.Delete(context.Background(), p))
	w.settle()
	if c := meta.FindStatusCondition(w.provisioner().Status.Conditions, "Accepted"); c.Reason != ReasonDeleting || w.driver() == nil {
		t.Fatalf("while staged: got %+v", c)
	}
	w.must(w.client.Delete(context.Background(), stage))
	w.settle()
	if w.provisioner() != nil || w.driver() != nil {
		t.Errorf("nothing needs it, but %v and %v are left", w.provisioner(), w.driver())
	}
}

func TestAVolumeTheCacheHasNotShownYetKeepsItsProvisioner(t *testing.T) {
	w := newWorld(t, asWritten())
	w.settle()
	behind := w.r.client
	creating := record("v", tarnv1.VolumeCreating)
	w.must(w.client.Create(context.Background(), &creating))
	w.must(w.client.Delete(context.Background(), w.provisioner()))
	w.r.client = interceptor.NewClient(behind.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, ok := list.(*tarnv1.PavVolumeList); ok {
				return nil
			}
			return c.List(ctx, list, opts...)
		},
	})
	w.settle()
	if p := w.provisioner(); p == nil || w.driver() == nil {
		t.Fatal("it was let go while a volume is being made")
	} else if c := meta.FindStatusCondition(p.Status.Conditions, "Accepted"); c.Message != "deletion was requested; no new volumes are created or staged; waiting for the deletion of PavVolume v (Creating)" {
		t.Errorf("got %q", c.Message)
	}
}

func TestADriverOfSomebodyElseIsNeverTouched(t *testing.T) {
	theirs := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "slow", UID: "theirs"}}
	w := newWorld(t, asWritten(), theirs)
	w.settle()
	if c := meta.FindStatusCondition(w.provisioner().Status.Conditions, "Accepted"); c.Reason != ReasonDriverNameTaken {
		t.Fatalf("got %+v", c)
	}
	if got := <-w.events.Events; got != `Warning DriverNameTaken CSIDriver "slow" belongs to something else; remove that driver, or give this PavProvisioner another name` {
		t.Errorf("got Event %q", got)
	}
	w.must(w.client.Delete(context.Background(), w.provisioner()))
	w.settle()
	if w.provisioner() != nil || w.driver() == nil {
		t.Errorf("want the provisioner gone and the driver left, got %v and %v", w.provisioner(), w.driver())
	}
}

func TestADriverTheCacheStillShowsHoldsNothingUp(t *testing.T) {
	w := newWorld(t, asWritten())
	w.settle()
	shown := w.driver()
	w.must(w.client.Delete(context.Background(), shown))
	w.must(w.client.Delete(context.Background(), w.provisioner()))
	w.r.client = interceptor.NewClient(w.r.client.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if d, ok := o.(*storagev1.CSIDriver); ok {
				shown.DeepCopyInto(d)
				return nil
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	w.settle()
	if w.provisioner() != nil {
		t.Error("it is kept by a driver that is gone")
	}
}

// life takes a provisioner from its creation through a changed CSIDriver to its deletion. It
// returns the objects seen in between and at the end.
func life(w *world) []any {
	w.settle()
	ctx := context.Background()
	middle := w.driver()
	drifted := middle.DeepCopy()
	drifted.Spec.AttachRequired, drifted.Labels = nil, nil
	w.must(w.client.Update(ctx, drifted))
	w.settle()
	mended, status := w.driver(), w.provisioner().Status
	w.must(w.client.Delete(ctx, w.provisioner()))
	w.settle()
	return []any{middle, mended, status, w.provisioner(), w.driver()}
}

var ignoreVersions = cmpopts.IgnoreFields(metav1.ObjectMeta{}, "ResourceVersion")

func TestAnErrorAtAnyWriteChangesNothingInTheEnd(t *testing.T) {
	plain := newWorld(t, asWritten(), node("n", "slow"))
	want := life(plain)
	if plain.writes < 6 {
		t.Fatalf("the life has %d writes; it should at least hold, create, report, make anew, and let go", plain.writes)
	}
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "slow", errKilled)
	for n := 1; n <= plain.writes; n++ {
		for name, fail := range map[string]func(int, bool) error{
			"killed before it":        func(i int, made bool) error { return errIf(i == n && !made, errKilled) },
			"killed after it":         func(i int, made bool) error { return errIf(i == n && made, errKilled) },
			"refused with a conflict": func(i int, made bool) error { return errIf(i == n && !made, conflict) },
		} {
			t.Run(fmt.Sprintf("write %d %s", n, name), func(t *testing.T) {
				w := newWorld(t, asWritten(), node("n", "slow"))
				w.fail = fail
				if diff := cmp.Diff(want, life(w), ignoreVersions); diff != "" {
					t.Errorf("it ends otherwise (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func errIf(yes bool, err error) error {
	if yes {
		return err
	}
	return nil
}

func TestAConflictIsLookedAtAgainAndIsNoError(t *testing.T) {
	w := newWorld(t, asWritten())
	w.fail = func(int, bool) error {
		return apierrors.NewConflict(schema.GroupResource{Resource: "pavprovisioners"}, "slow", errKilled)
	}
	result, err := w.r.Reconcile(context.Background(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "slow"}})
	if err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > time.Second {
		t.Errorf("got %+v, %v", result, err)
	}
}
