package pavvolume

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

func TestAForgottenVolumeGoesAndItsStorageIsTold(t *testing.T) {
	for name, withIt := range map[string]bool{"with its PersistentVolume": true, "after its PersistentVolume, as after a crash": false} {
		t.Run(name, func(t *testing.T) {
			v := endingOf(tarnv1.VolumeDeleting, withVolume(corev1.VolumeReleased, corev1.PersistentVolumeReclaimDelete), forgotten)
			v.Record.Finalizers, v.Record.Status.Handle = []string{tarnv1.FinalizerRecord}, "shelf-7"
			v.Volume.Finalizers = []string{volume.FinalizerExternal}
			objects := []client.Object{v.Record, v.Provisioner}
			if withIt {
				objects = append(objects, v.Volume)
			}
			w := newWorld(t, objects...)
			w.look("u1")
			if w.record("u1") != nil || w.volume("u1") != nil {
				t.Errorf("record %v, volume %v", w.record("u1"), w.volume("u1"))
			}
			if told := <-w.events.Events; !strings.Contains(told, eventForgotten) || !strings.Contains(told, `handle "shelf-7"`) {
				t.Errorf("told %q", told)
			}
		})
	}
}

func TestAnUndoingThatIsRetriedHasTheClassAsItIsNow(t *testing.T) {
	class := func(provisioner, endpoint string) *storagev1.StorageClass {
		return testkit.Class("prov", func(c *storagev1.StorageClass) {
			c.Provisioner, c.Parameters = provisioner, map[string]string{"endpoint": endpoint}
		})
	}
	for _, c := range []struct {
		name  string
		phase tarnv1.VolumePhase
		class *storagev1.StorageClass
		// after is the attempt that the annotation names. The current one is 1 and has failed.
		after int32
		want  string
	}{
		{"once", tarnv1.VolumeUndoing, class("prov", "right"), 1, "right"},
		{"not after a later attempt", tarnv1.VolumeUndoing, class("prov", "right"), 0, "wrong"},
		{"not where data may be", tarnv1.VolumeDeleting, class("prov", "right"), 1, "wrong"},
		{"not where the class is of another provisioner", tarnv1.VolumeUndoing, class("other", "right"), 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := endingOf(c.phase)
			old, err := steppod.SnapshotClass(class("prov", "wrong"))
			if err != nil {
				t.Fatal(err)
			}
			v.Record.Spec.ClassSnapshot.Raw = old
			v.Record.Status.DeletionAttempts, v.Record.Status.NextDeletionTime = 1, &metav1.Time{Time: now}
			v.Record.Annotations = map[string]string{tarnv1.AnnotationRetry: steppod.RetryAfter(tarnv1.StepDeletion, c.after, true)}
			v.Provisioner.Spec.VolumeDeletion = testkit.Section(`{"podTemplate": {"spec": {"containers": [{"name": "c", "image": "{{ params.endpoint }}"}]}}}`)
			w := newWorld(t, v.Record, v.Provisioner, c.class)
			w.look("u1")
			pods := w.pods()
			if c.want == "" {
				if last := w.status().LastError; len(pods) > 0 || last == nil || !strings.Contains(last.Message, "without --current-class") {
					t.Errorf("%d pods, last error %+v", len(pods), last)
				}
				return
			}
			if len(pods) != 1 || pods[0].Spec.Containers[0].Image != c.want {
				t.Errorf("pods %+v, want one with %q", pods, c.want)
			}
		})
	}
}
