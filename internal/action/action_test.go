package action

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
)

const finalizer = "tarn.dev/test"

func world(t *testing.T) (context.Context, *Runner, *tarnv1.PavVolume) {
	t.Helper()
	record := &tarnv1.PavVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1", UID: "u1"}}
	c := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithStatusSubresource(record).WithObjects(record).Build()
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(record), record); err != nil {
		t.Fatal(err)
	}
	return t.Context(), &Runner{Client: c, Events: events.NewFakeRecorder(10), Live: c}, record
}

func with(record *tarnv1.PavVolume, change func(*tarnv1.PavVolume)) *tarnv1.PavVolume {
	record = record.DeepCopy()
	change(record)
	return record
}

func TestWritesOfOnePlanFollowEachOther(t *testing.T) {
	ctx, r, record := world(t)
	read := record.DeepCopy()
	err := r.Do(ctx,
		AddFinalizer{record, finalizer},
		Patch{record, with(record, func(o *tarnv1.PavVolume) { o.Labels = map[string]string{"a": "b"} })},
		PatchStatus{From: record, To: with(record, func(o *tarnv1.PavVolume) { o.Status.Phase = tarnv1.VolumeCreating })},
	)
	if err != nil {
		t.Fatal(err)
	}
	live := &tarnv1.PavVolume{}
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(record), live); err != nil {
		t.Fatal(err)
	}
	if len(live.Finalizers) != 1 || live.Labels["a"] != "b" || live.Status.Phase != tarnv1.VolumeCreating {
		t.Errorf("got %v, %v, %+v", live.Finalizers, live.Labels, live.Status)
	}
	if record.ResourceVersion != read.ResourceVersion || record.Finalizers != nil || record.Labels != nil {
		t.Error("the object of the view was changed")
	}
	if err := r.Do(ctx, RemoveFinalizer{live, finalizer}, Delete{Object: live, Unchanged: true}); err != nil {
		t.Fatal(err)
	}
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(record), live); !apierrors.IsNotFound(err) {
		t.Errorf("the record is still there: %v", err)
	}
}

func TestAnActionIsRefusedWhereTheObjectIsAnother(t *testing.T) {
	changed := func(o *tarnv1.PavVolume) { o.Labels = map[string]string{"a": "b"} }
	for name, of := range map[string]func(stale *tarnv1.PavVolume) Action{
		"patch":         func(o *tarnv1.PavVolume) Action { return Patch{o, with(o, changed)} },
		"status":        func(o *tarnv1.PavVolume) Action { return PatchStatus{From: o, To: o} },
		"update":        func(o *tarnv1.PavVolume) Action { return Update{o} },
		"whole status":  func(o *tarnv1.PavVolume) Action { return UpdateStatus{To: o} },
		"add finalizer": func(o *tarnv1.PavVolume) Action { return AddFinalizer{o, finalizer} },
		"remove finalizer": func(o *tarnv1.PavVolume) Action {
			o.Finalizers = []string{finalizer}
			return RemoveFinalizer{o, finalizer}
		},
		"delete": func(o *tarnv1.PavVolume) Action { return Delete{Object: o, Unchanged: true} },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, r, record := world(t)
			if err := r.Do(ctx, Patch{record, with(record, func(o *tarnv1.PavVolume) { o.Labels = map[string]string{"other": "writer"} })}); err != nil {
				t.Fatal(err)
			}
			after := Emit{About: record, Type: corev1.EventTypeNormal, Reason: "Done", Doing: "Test"}
			err := r.Do(ctx, of(record), after)
			if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "PavVolume pvc-1") {
				t.Errorf("got %v, want a conflict that names the object", err)
			}
			if len(r.Events.(*events.FakeRecorder).Events) > 0 {
				t.Error("the actions after one that failed are done")
			}
		})
	}
}

func TestARunGoesOnAfterAnActionThatFailedExceptWithinTogether(t *testing.T) {
	ctx, r, record := world(t)
	stale := with(record, func(o *tarnv1.PavVolume) { o.ResourceVersion = "1" })
	labelled := func(label string) Action {
		return Patch{record, with(record, func(o *tarnv1.PavVolume) { o.Labels = map[string]string{label: "yes"} })}
	}
	run := r.Begin()
	refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "pavvolumes"}, "pvc-2", errors.New("exceeded quota"))
	run.Client = interceptor.NewClient(r.Client.(client.WithWatch), interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return refusal },
	})
	err := run.Try(ctx, Create{with(record, func(o *tarnv1.PavVolume) { o.Name, o.ResourceVersion = "pvc-2", "" })},
		Together{PatchStatus{From: stale, To: stale}, labelled("never")}, labelled("once"))
	if !errors.Is(err, refusal) || !strings.Contains(err.Error(), "writing the status of PavVolume pvc-1") || !errors.Is(run.Refused, refusal) {
		t.Errorf("got %v, and as the refusal %v, want both failures", err, run.Refused)
	}
	if err := run.Try(ctx, AddFinalizer{record, finalizer}); err != nil {
		t.Errorf("a later write of the run: %v", err)
	}
	live := &tarnv1.PavVolume{}
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(record), live); err != nil {
		t.Fatal(err)
	}
	if len(live.Labels) != 1 || live.Labels["once"] == "" || len(live.Finalizers) != 1 {
		t.Errorf("got %v, %v", live.Labels, live.Finalizers)
	}
}

func TestWhatIsDoneAlreadyIsNoError(t *testing.T) {
	ctx, r, record := world(t)
	gone := with(record, func(o *tarnv1.PavVolume) { o.Name = "gone"; o.Finalizers = []string{finalizer} })
	err := r.Do(ctx, Create{with(record, func(o *tarnv1.PavVolume) { o.ResourceVersion = "" })}, Delete{Object: gone}, RemoveFinalizer{gone, finalizer},
		RemoveFinalizer{record, finalizer}, Patch{gone, with(gone, func(o *tarnv1.PavVolume) { o.Finalizers = nil })}, PatchStatus{From: gone, To: gone})
	if err != nil {
		t.Fatal(err)
	}
}

// Nothing that cannot be undone may follow.
func TestACacheThatIsBehindEndsThePlan(t *testing.T) {
	gone := func(o *tarnv1.PavVolume) *tarnv1.PavVolume {
		return with(o, func(o *tarnv1.PavVolume) { o.Name = "gone" })
	}
	older := func(o *tarnv1.PavVolume) *tarnv1.PavVolume {
		return with(o, func(o *tarnv1.PavVolume) { o.ResourceVersion = "1" })
	}
	for name, c := range map[string]struct {
		of   func(o *tarnv1.PavVolume) Action
		want bool
	}{
		"confirmed":                     {func(o *tarnv1.PavVolume) Action { return Confirm{o} }, false},
		"to be confirmed, in a version": {func(o *tarnv1.PavVolume) Action { return Confirm{older(o)} }, true},
		"to be confirmed, and gone":     {func(o *tarnv1.PavVolume) Action { return Confirm{gone(o)} }, true},
		"absent":                        {func(o *tarnv1.PavVolume) Action { return ConfirmAbsent{gone(o)} }, false},
		"to be absent, and there":       {func(o *tarnv1.PavVolume) Action { return ConfirmAbsent{o} }, true},
		"to be deleted, and gone":       {func(o *tarnv1.PavVolume) Action { return Delete{Object: gone(o), Present: true} }, true},
		"to be patched, and gone":       {func(o *tarnv1.PavVolume) Action { return PatchStatus{From: gone(o), To: gone(o), Present: true} }, true},
	} {
		ctx, r, record := world(t)
		if err := r.Do(ctx, c.of(record)); errors.Is(err, kube.ErrStale) != c.want || !c.want && err != nil {
			t.Errorf("an object %s: %v, want kube.ErrStale: %t", name, err, c.want)
		}
	}
}

func TestALongNoteIsCutToWhatTheAPITakes(t *testing.T) {
	ctx, r, record := world(t)
	if err := r.Do(ctx, Emit{About: record, Type: corev1.EventTypeWarning, Reason: "Failed", Doing: "Test", Note: strings.Repeat("é", 2000)}); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimPrefix(<-r.Events.(*events.FakeRecorder).Events, "Warning Failed "); len(got) > 1024 || !strings.HasSuffix(got, "é...") {
		t.Errorf("got %d bytes", len(got))
	}
}
