package reclaim

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
)

// ofNode is a world with a volume of node n1. The node exists only if it is among objects.
func ofNode(t *testing.T, phase tarnv1.VolumePhase, objects ...client.Object) *ending {
	t.Helper()
	record := goes(phase, "shelf-7")
	record.Status.NodeName, record.Finalizers = "n1", []string{tarnv1.FinalizerRecord}
	objects = append(objects, record, testkit.Provisioner("prov"))
	if phase == tarnv1.VolumeDeleting {
		vol := testkit.Volume(record)
		vol.Status.Phase, vol.Spec.CSI.VolumeHandle = corev1.VolumeReleased, "shelf-7"
		objects = append(objects, vol)
	}
	return endingOf(t, objects...)
}

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

// breakDeletion gives the provisioner a volumeDeletion that cannot be evaluated.
func breakDeletion(t *testing.T, e *ending) {
	t.Helper()
	broken := &pavv1.PavProvisioner{}
	if err := e.store.Get(t.Context(), client.ObjectKey{Name: "prov"}, broken); err != nil {
		t.Fatal(err)
	}
	broken.Spec.VolumeDeletion = testkit.Section(`{"podTemplate": "{% if %}"}`)
	if err := e.store.Update(t.Context(), broken); err != nil {
		t.Fatal(err)
	}
}

func TestWhatWasBeingMadeOnANodeThatIsGoneIsMadeElsewhere(t *testing.T) {
	e := ofNode(t, tarnv1.VolumeUndoing, node("n2"))
	if err := e.look(); err != nil {
		t.Fatal(err)
	}
	if status := e.status(); status.Phase != tarnv1.VolumePending || status.NodeName != "" || e.pods() > 0 {
		t.Errorf("the record is %s, of node %q, with %d pods, want it Pending, of none", status.Phase, status.NodeName, e.pods())
	}
	if told := <-e.events.Events; !strings.HasPrefix(told, "Warning "+eventUndoSkipped+` node "n1" is gone`) {
		t.Errorf("told %q", told)
	}
	e = ofNode(t, tarnv1.VolumeUndoing)
	breakDeletion(t, e)
	if err := e.look(); err != nil || e.status().Phase != tarnv1.VolumePending {
		t.Errorf("where nothing can be undone: %v, the record is %s, want it Pending", err, e.status().Phase)
	}
	there := ofNode(t, tarnv1.VolumeUndoing, node("n1"))
	if err := there.look(); err != nil || there.status().Phase != tarnv1.VolumeUndoing || there.pods() != 1 {
		t.Errorf("with its node there: %v, %s, %d pods, want it undone", err, there.status().Phase, there.pods())
	}
}

func TestAVolumeOfANodeThatIsGoneWaitsForItOrAWord(t *testing.T) {
	e := ofNode(t, tarnv1.VolumeDeleting)
	for range 2 {
		if err := e.look(); err != nil {
			t.Fatal(err)
		}
	}
	said := meta.FindStatusCondition(e.status().Conditions, tarnv1.ConditionDeletable)
	if e.status().Phase != tarnv1.VolumeDeleting || e.pods() > 0 || said == nil || said.Reason != steppod.ReasonNodeGone || !strings.Contains(said.Message, "kubectl delete pavvolume pvc-u1") {
		t.Errorf("status %+v with %d pods, want it to wait, and the command", e.status(), e.pods())
	}
	if told := len(e.events.Events); told != 2 { // one about the volume, one about the record
		t.Errorf("%d Events", told)
	}

	back := node("n1")
	if err := e.store.Create(t.Context(), back); err != nil {
		t.Fatal(err)
	}
	if woken := e.mapNode(t.Context(), back); len(woken) != 1 || woken[0].Name != "pvc-u1" || len(e.mapNode(t.Context(), node("n2"))) > 0 {
		t.Errorf("the node wakes %v", woken)
	}
	unseen := node("n1")
	unseen.UID = "of the one before"
	for name, c := range map[string]struct{ got, want bool }{
		"a node that comes":                         {newNodes().Create(event.CreateEvent{Object: back}), true},
		"a node that was there at the start":        {newNodes().Create(event.CreateEvent{Object: back, IsInInitialList: true}), false},
		"a node that tells of itself":               {newNodes().Update(event.UpdateEvent{ObjectOld: back, ObjectNew: back}), false},
		"a node whose predecessor's end was missed": {newNodes().Update(event.UpdateEvent{ObjectOld: unseen, ObjectNew: back}), true},
	} {
		if c.got != c.want {
			t.Errorf("%s wakes: %t", name, c.got)
		}
	}
	if err := e.look(); err != nil || e.pods() != 1 {
		t.Errorf("the node is back: %v, %d pods, want the deletion pod", err, e.pods())
	}

	for section, prepare := range map[string]func(*testing.T, *ending){
		"as it was":                func(*testing.T, *ending) {},
		"that cannot be evaluated": breakDeletion,
	} {
		t.Run("the word, with a section "+section, func(t *testing.T) {
			e := ofNode(t, tarnv1.VolumeDeleting)
			prepare(t, e)
			theWordIsTaken(t, e)
		})
	}
}

// theWordIsTaken deletes the record of a volume whose node is gone, and checks that the record is
// removed.
func theWordIsTaken(t *testing.T, e *ending) {
	t.Helper()
	record := &tarnv1.PavVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-u1"}}
	if err := e.store.Delete(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	if err := e.look(); err != nil {
		t.Fatal(err)
	}
	record, err := kube.Get(t.Context(), e.store, client.ObjectKey{Name: "pvc-u1"}, &tarnv1.PavVolume{})
	if err != nil || record != nil {
		t.Errorf("the word was given, and the record is there: %+v, %v", record, err)
	}
	if told := <-e.events.Events; !strings.Contains(told, `its storage, with handle "shelf-7", is assumed to be gone with the node`) {
		t.Errorf("told %q", told)
	}
	vol, err := kube.Get(t.Context(), e.store, client.ObjectKey{Name: "pvc-u1"}, &corev1.PersistentVolume{})
	if err != nil || vol != nil {
		t.Errorf("the word was given, and the volume is there: %+v, %v", vol, err)
	}
}
