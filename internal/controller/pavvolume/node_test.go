package pavvolume

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

func TestCase119ANodeThatWasGivenBackIsNotTriedAgainByACacheThatIsBehind(t *testing.T) {
	chosen := func(node string) *corev1.PersistentVolumeClaim {
		return testkit.Claim("ns", "data", "u1", "prov", func(c *corev1.PersistentVolumeClaim) {
			if node != "" {
				c.Annotations[volume.AnnSelectedNode] = node
			}
		})
	}
	record := testkit.Record(chosen(""), "prov", tarnv1.VolumePending, func(r *tarnv1.PavVolume) { r.Spec.WaitsForNode = true })
	p := testkit.Provisioner("prov", func(p *pavv1.PavProvisioner) { p.Spec.Topology = pavv1.TopologyNode })
	for now, want := range map[string]int{"": 0, "n2": 0, "n1": 1} {
		w := newWorld(t, chosen(now), record, p, testkit.Class("prov"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		w.remembering(chosen("n1"), w.record("u1"), p, testkit.Class("prov"))
		w.look("u1")
		if pods := w.pods(); len(pods) != want {
			t.Errorf("the claim says node %q and the cache n1: %d pods, want %d", now, len(pods), want)
		}
	}
}

func TestCase119ANodeThatTheClassDoesNotAllowIsRefusedAndGivenBack(t *testing.T) {
	inZone := func(name, zone string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
	}
	class := testkit.Class("prov", func(c *storagev1.StorageClass) {
		c.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{
			Key: corev1.LabelTopologyZone, Values: []string{"a"},
		}}}}
	})
	claim := func(node string) *corev1.PersistentVolumeClaim {
		return testkit.Claim("ns", "data", "u1", "prov", func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = node })
	}
	snapshot, err := steppod.SnapshotClass(class)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		node     string
		wantPods int
		wantFor  string
		wantWhy  string
	}{
		{"allowed", 1, "", ""},
		{"forbidden", 0, reasonNodeRefused, "is not in allowedTopologies of StorageClass prov"},
		{"gone", 0, steppod.ReasonNodeGone, "of the claim selects, is gone"},
	} {
		t.Run(c.node, func(t *testing.T) {
			record := testkit.Record(claim(c.node), "prov", tarnv1.VolumePending, func(r *tarnv1.PavVolume) {
				r.Spec.WaitsForNode, r.Spec.ClassSnapshot.Raw = true, snapshot
			})
			p := testkit.Provisioner("prov", func(p *pavv1.PavProvisioner) { p.Spec.Topology = pavv1.TopologyNode })
			w := newWorld(t, claim(c.node), record, p, class, inZone("allowed", "a"), inZone("forbidden", "b"))
			w.look("u1")
			if pods := w.pods(); len(pods) != c.wantPods {
				t.Fatalf("%d pods, want %d", len(pods), c.wantPods)
			}
			if c.wantPods > 0 {
				return
			}
			last := w.record("u1").Status.LastError
			if last == nil || last.Reason != c.wantFor {
				t.Fatalf("last error %+v, want reason %s", last, c.wantFor)
			}
			told := <-w.events.Events
			for _, want := range []string{eventFailed, `node "` + c.node + `"`, c.wantWhy} {
				if !strings.Contains(told, want) {
					t.Errorf("the claim is told %q, want %s", told, want)
				}
			}
			w.look("u1")
			live := claim("")
			w.must(w.store.Get(t.Context(), client.ObjectKeyFromObject(live), live))
			if now := w.record("u1").Status; live.Annotations[volume.AnnSelectedNode] != "" || now.NodeName != "" || now.Phase != tarnv1.VolumePending {
				t.Errorf("the claim says node %q, the record node %q in %s, want neither, in Pending", live.Annotations[volume.AnnSelectedNode], now.NodeName, now.Phase)
			}
		})
	}
}

func TestAnAttemptWhoseNodeIsGoneIsGivenUp(t *testing.T) {
	claim := testkit.Claim("ns", "data", "u1", "prov", func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n1" })
	p := testkit.Provisioner("prov", func(p *pavv1.PavProvisioner) {
		p.Spec.Topology, p.Spec.VolumeValidation = pavv1.TopologyNode, p.Spec.VolumeCreation.DeepCopy()
	})
	for phase, want := range map[tarnv1.VolumePhase]tarnv1.VolumePhase{
		tarnv1.VolumeValidating: tarnv1.VolumePending, tarnv1.VolumeCreating: tarnv1.VolumeUndoing,
	} {
		for _, node := range []string{"n1", "n2"} {
			record := testkit.Record(claim, "prov", phase, func(r *tarnv1.PavVolume) {
				r.Spec.WaitsForNode, r.Status.NodeName, r.Status.Attempts = true, "n1", 1
			})
			w := newWorld(t, claim, record, p, testkit.Class("prov"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
			w.look("u1")
			status := w.record("u1").Status
			if node == "n1" {
				if status.Phase != phase || len(w.pods()) != 1 {
					t.Errorf("%s, and its node is there: it is %s with %d pods, want one", phase, status.Phase, len(w.pods()))
				}
				continue
			}
			if status.Phase != want || len(w.pods()) > 0 || status.LastError == nil || status.LastError.Reason != steppod.ReasonNodeGone {
				t.Errorf("%s, and its node is gone: it is %s with %d pods, last error %+v, want %s and none", phase, status.Phase, len(w.pods()), status.LastError, want)
			}
		}
	}
}

func TestNoCreationBeginsOnANodeThatWentDuringTheValidation(t *testing.T) {
	claim := testkit.Claim("ns", "data", "u1", "prov", func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n1" })
	p := testkit.Provisioner("prov", func(p *pavv1.PavProvisioner) {
		p.Spec.Topology, p.Spec.VolumeValidation = pavv1.TopologyNode, p.Spec.VolumeCreation.DeepCopy()
	})
	record := testkit.Record(claim, "prov", tarnv1.VolumeValidating, func(r *tarnv1.PavVolume) {
		r.Spec.WaitsForNode, r.Status.NodeName, r.Status.Attempts = true, "n1", 1
	})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	w := newWorld(t, claim, record, p, testkit.Class("prov"), node)
	w.look("u1")
	validation := w.pods()[0]
	metav1.SetMetaDataAnnotation(&validation.ObjectMeta, tarnv1.AnnotationResult, `{"succeeded": true}`)
	w.must(w.store.Update(t.Context(), &validation))
	w.must(w.store.Delete(t.Context(), node))
	w.look("u1")
	status := w.record("u1").Status
	if status.Phase != tarnv1.VolumePending || status.LastError == nil || status.LastError.Reason != steppod.ReasonNodeGone {
		t.Errorf("it is %s, last error %+v, want Pending for its node", status.Phase, status.LastError)
	}
	for _, pod := range w.pods() {
		if pod.Labels[tarnv1.LabelStep] == string(tarnv1.StepCreation) {
			t.Errorf("creation pod %s is made", pod.Name)
		}
	}
}

// ofNode is a world with a volume of node n1. The node exists only if it is among objects.
func ofNode(t *testing.T, phase tarnv1.VolumePhase, objects ...client.Object) *world {
	t.Helper()
	record := ending(phase, "shelf-7")
	record.Status.NodeName, record.Finalizers = "n1", []string{tarnv1.FinalizerRecord}
	objects = append(objects, record, testkit.Provisioner("prov"))
	if phase == tarnv1.VolumeDeleting {
		vol := testkit.Volume(record)
		vol.Status.Phase, vol.Spec.CSI.VolumeHandle = corev1.VolumeReleased, "shelf-7"
		objects = append(objects, vol)
	}
	return newWorld(t, objects...)
}

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

// breakDeletion gives the provisioner a volumeDeletion that cannot be evaluated.
func breakDeletion(w *world) {
	w.t.Helper()
	broken := &pavv1.PavProvisioner{}
	w.must(w.store.Get(w.t.Context(), client.ObjectKey{Name: "prov"}, broken))
	broken.Spec.VolumeDeletion = testkit.Section(`{"podTemplate": "{% if %}"}`)
	w.must(w.store.Update(w.t.Context(), broken))
}

func TestWhatWasBeingMadeOnANodeThatIsGoneIsMadeElsewhere(t *testing.T) {
	w := ofNode(t, tarnv1.VolumeUndoing, node("n2"))
	w.look("u1")
	if status := w.status(); status.Phase != tarnv1.VolumePending || status.NodeName != "" || len(w.pods()) > 0 {
		t.Errorf("the record is %s, of node %q, with %d pods, want it Pending, of none", status.Phase, status.NodeName, len(w.pods()))
	}
	if told := <-w.events.Events; !strings.HasPrefix(told, "Warning "+eventUndoSkipped+` node "n1" is gone`) {
		t.Errorf("told %q", told)
	}
	w = ofNode(t, tarnv1.VolumeUndoing)
	breakDeletion(w)
	if w.look("u1"); w.status().Phase != tarnv1.VolumePending {
		t.Errorf("where nothing can be undone the record is %s, want it Pending", w.status().Phase)
	}
	w = ofNode(t, tarnv1.VolumeUndoing, node("n1"))
	if w.look("u1"); w.status().Phase != tarnv1.VolumeUndoing || len(w.pods()) != 1 {
		t.Errorf("with its node there: %s, %d pods, want it undone", w.status().Phase, len(w.pods()))
	}
}

func TestAVolumeOfANodeThatIsGoneWaitsForItOrAWord(t *testing.T) {
	w := ofNode(t, tarnv1.VolumeDeleting)
	w.look("u1")
	w.look("u1")
	if said := w.deletable(); w.status().Phase != tarnv1.VolumeDeleting || len(w.pods()) > 0 || said.Reason != steppod.ReasonNodeGone || !strings.Contains(said.Message, "kubectl delete pavvolume pvc-u1") {
		t.Errorf("status %+v with %d pods, want it to wait, and the command", w.status(), len(w.pods()))
	}
	if told := len(w.events.Events); told != 2 { // one about the volume, one about the record
		t.Errorf("%d Events", told)
	}

	back := node("n1")
	w.must(w.store.Create(t.Context(), back))
	if woken := w.r.mapNode(t.Context(), back); len(woken) != 1 || woken[0].Name != "pvc-u1" || len(w.r.mapNode(t.Context(), node("n2"))) > 0 {
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
	if w.look("u1"); len(w.pods()) != 1 {
		t.Errorf("the node is back: %d pods, want the deletion pod", len(w.pods()))
	}

	for section, prepare := range map[string]func(*world){"as it was": func(*world) {}, "that cannot be evaluated": breakDeletion} {
		t.Run("the word, with a section "+section, func(t *testing.T) {
			w := ofNode(t, tarnv1.VolumeDeleting)
			prepare(w)
			w.must(w.store.Delete(t.Context(), w.record("u1")))
			w.look("u1")
			if w.record("u1") != nil || w.volume("u1") != nil {
				t.Errorf("the word was given, and there are record %v, volume %v", w.record("u1"), w.volume("u1"))
			}
			if told := <-w.events.Events; !strings.Contains(told, `its storage, with handle "shelf-7", is assumed to be gone with the node`) {
				t.Errorf("told %q", told)
			}
		})
	}
}
