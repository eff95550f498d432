package provisioner

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

func TestEventsNameTheProvisionersTheyConcern(t *testing.T) {
	created, deleting := record("v", tarnv1.VolumeCreated), record("v", tarnv1.VolumeDeleting)
	stage := &tarnv1.PavStage{Spec: tarnv1.PavStageSpec{Provisioner: tarnv1.ProvisionerReference{Name: "slow"}}}
	csi := func(phase corev1.PersistentVolumePhase, policy corev1.PersistentVolumeReclaimPolicy) *corev1.PersistentVolume {
		vol := pv(phase, policy, true)
		vol.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "slow"}
		return vol
	}
	bound := csi(corev1.VolumeBound, corev1.PersistentVolumeReclaimRetain)
	held, joins := bound.DeepCopy(), bound.DeepCopy()
	held.Annotations = map[string]string{tarnv1.AnnotationReclaimPolicy: "Delete"}
	joins.Annotations = map[string]string{tarnv1.AnnotationPoolFilling: "uid"}
	for _, c := range []struct {
		name      string
		concerned func(change) []string
		change    change
		want      []string
	}{
		{"a node that joins names its drivers", ofNode, change{current: node("n", "a", "b")}, []string{"a", "b"}},
		{"a node that changes names what came and what went", ofNode, change{node("n", "a", "b"), node("n", "b", "c")}, []string{"a", "c"}},
		{"a node that leaves names its drivers", ofNode, change{old: node("n", "a")}, []string{"a"}},
		{"a node that beats its heart names none", ofNode, change{node("n", "a"), node("n", "a")}, nil},
		{"a driver names itself", ofDriver, change{old: &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}, []string{"a"}},
		{"a new record names its provisioner", ofRecord, change{current: &created}, []string{"slow"}},
		{"a record in another phase does too", ofRecord, change{&created, &deleting}, []string{"slow"}},
		{"a record that is gone does too", ofRecord, change{old: &deleting}, []string{"slow"}},
		{"a record in the same phase does not", ofRecord, change{&created, &created}, nil},
		{"a stage that is gone names its provisioner", ofStage, change{old: stage}, []string{"slow"}},
		{"a stage that changes does not", ofStage, change{stage, stage}, nil},
		{"a volume that is released names its driver", ofVolume, change{bound, csi(corev1.VolumeReleased, corev1.PersistentVolumeReclaimRetain)}, []string{"slow"}},
		{"a volume whose policy changes does too", ofVolume, change{bound, csi(corev1.VolumeBound, corev1.PersistentVolumeReclaimDelete)}, []string{"slow"}},
		{"a volume whose retention is called off does too", ofVolume, change{held, bound}, []string{"slow"}},
		{"a volume that has joined its pool does too", ofVolume, change{joins, bound}, []string{"slow"}},
		{"a volume that is gone does too", ofVolume, change{old: bound}, []string{"slow"}},
		{"a volume that changes otherwise does not", ofVolume, change{bound, bound.DeepCopy()}, nil},
		{"a new volume does not", ofVolume, change{current: bound}, nil},
		{"a volume of no driver does not", ofVolume, change{old: pv(corev1.VolumeBound, corev1.PersistentVolumeReclaimRetain, true)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.concerned(c.change)
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestAThousandVolumesMakeOneLook(t *testing.T) {
	queue := &testkit.Delayed{}
	h := soon(ofRecord)
	for i := range 1000 {
		old, current := record(fmt.Sprint(i), tarnv1.VolumeCreating), record(fmt.Sprint(i), tarnv1.VolumeCreated)
		h.Create(context.Background(), event.CreateEvent{Object: &old}, queue)
		h.Update(context.Background(), event.UpdateEvent{ObjectOld: &old, ObjectNew: &current}, queue)
		h.Delete(context.Background(), event.DeleteEvent{Object: &current}, queue)
	}
	want := map[string]time.Duration{"slow": gatherTime}
	if !maps.Equal(queue.Added, want) {
		t.Errorf("got %v, want %v", queue.Added, want)
	}
}
