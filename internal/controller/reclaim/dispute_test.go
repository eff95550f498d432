package reclaim

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/podvol"
	"tarn.dev/tarn/internal/testkit"
)

// ending is the controller before an API server that has a record on its way out.
type ending struct {
	*reconciler
	t      *testing.T
	store  client.Client
	events *events.FakeRecorder
}

func endingOf(t *testing.T, objects ...client.Object) *ending {
	text := func(of func(client.Object) string) client.IndexerFunc {
		return func(o client.Object) []string { return []string{of(o)} }
	}
	volumeOf := text(func(o client.Object) string { return o.(*tarnv1.PavStage).Spec.VolumeName })
	store := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(objects...).WithStatusSubresource(&tarnv1.PavVolume{}).
		WithIndex(&corev1.PersistentVolume{}, kube.VolumesByHandle, kube.HandleOf).
		WithIndex(&corev1.PersistentVolumeClaim{}, kube.ClaimsByVolume, kube.VolumeNamed).
		WithIndex(&tarnv1.PavStage{}, indexStageVolume, volumeOf).
		WithIndex(&tarnv1.PavStage{}, "spec.volumeName", volumeOf).
		WithIndex(&tarnv1.PavVolume{}, "status.handle", text(func(o client.Object) string { return o.(*tarnv1.PavVolume).Status.Handle })).
		Build()
	e := &ending{t: t, store: store, events: events.NewFakeRecorder(100)}
	e.reconciler = &reconciler{
		client: store, reader: store, events: e.events, clock: testclock.NewFakePassiveClock(now),
		handles: kube.Handles{Cached: store, Live: store},
		claims:  kube.Claims{Cached: store, Live: store}, steps: &podvol.Steps{Client: store, Reader: store},
	}
	return e
}

func (e *ending) look() error {
	_, err := e.Reconcile(e.t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "pvc-u1"}})
	return err
}

func (e *ending) status() tarnv1.PavVolumeStatus {
	e.t.Helper()
	record := &tarnv1.PavVolume{}
	if err := e.store.Get(e.t.Context(), client.ObjectKey{Name: "pvc-u1"}, record); err != nil {
		e.t.Fatal(err)
	}
	return record.Status
}

func (e *ending) pods() int {
	e.t.Helper()
	pods := &corev1.PodList{}
	if err := e.store.List(e.t.Context(), pods); err != nil {
		e.t.Fatal(err)
	}
	return len(pods.Items)
}

// byHand is a volume written by hand.
func byHand(handle string) *corev1.PersistentVolume {
	vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}}
	vol.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "prov", VolumeHandle: handle}
	return vol
}

func goes(phase tarnv1.VolumePhase, handle string) *tarnv1.PavVolume {
	record := viewOf(phase).Record
	record.Status.Handle, record.Status.DeletionAttempts = handle, 1
	return record
}

func TestAFailedCreationUnderAnothersHandleIsNotUndone(t *testing.T) {
	for _, c := range []struct {
		name       string
		handle     string // of the record
		other      client.Object
		wantHolder string // empty where it is undone
	}{
		{"a volume written by hand has it", "shelf-7", byHand("shelf-7"), `PersistentVolume "by-hand"`},
		{"one has what would have been its own", "", byHand("pvc-u1"), `PersistentVolume "by-hand"`},
		{"nobody has it", "shelf-7", byHand("shelf-8"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := endingOf(t, goes(tarnv1.VolumeUndoing, c.handle), testkit.Provisioner("prov"), c.other)
			if err := e.look(); err != nil {
				t.Fatal(err)
			}
			status := e.status()
			if c.wantHolder == "" {
				if status.Phase != tarnv1.VolumeUndoing || e.pods() != 1 {
					t.Errorf("the record is %s, with %d pods", status.Phase, e.pods())
				}
				return
			}
			if status.Phase != tarnv1.VolumeDisputed || e.pods() > 0 {
				t.Fatalf("the record is %s, with %d pods", status.Phase, e.pods())
			}
			if last := status.LastError; last.Reason != podvol.ReasonHandleTaken || !strings.Contains(last.Message, c.wantHolder) {
				t.Errorf("its last error is %+v", last)
			}
			if told := <-e.events.Events; !strings.Contains(told, c.wantHolder) {
				t.Errorf("told %q", told)
			}
		})
	}
}

func TestAReleasedVolumeIsNotDeletedUnderAnotherOfItsHandle(t *testing.T) {
	record := goes(tarnv1.VolumeDeleting, "shelf-7")
	vol := testkit.Volume(record)
	vol.Status.Phase, vol.Spec.CSI.VolumeHandle = corev1.VolumeReleased, "shelf-7"
	other := byHand("shelf-7")
	e := endingOf(t, record, vol, other, testkit.Provisioner("prov"))
	for range 2 {
		if err := e.look(); err == nil {
			t.Error("nothing brings it back when the other is gone")
		}
	}
	status := e.status()
	condition := meta.FindStatusCondition(status.Conditions, tarnv1.ConditionDeletable)
	if status.Phase != tarnv1.VolumeDeleting || e.pods() > 0 || condition == nil || condition.Status != metav1.ConditionFalse ||
		condition.Reason != podvol.ReasonHandleTaken || !strings.Contains(condition.Message, `PersistentVolume "by-hand"`) {
		t.Errorf("the record is %s, %d pods, condition %+v", status.Phase, e.pods(), condition)
	}
	if told := len(e.events.Events); told != 2 { // once to the volume, once to the record
		t.Errorf("%d Events", told)
	}
	if err := e.store.Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if err := e.look(); err != nil || e.pods() != 1 {
		t.Errorf("after the other is gone: %v, %d deletion pods", err, e.pods())
	}
}
