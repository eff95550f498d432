package provision

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
)

func TestCase119ANodeThatWasGivenBackIsNotTriedAgainByACacheThatIsBehind(t *testing.T) {
	chosen := func(node string) *corev1.PersistentVolumeClaim {
		return testkit.Claim("ns", "data", "u1", "prov", func(c *corev1.PersistentVolumeClaim) {
			if node != "" {
				c.Annotations[annSelectedNode] = node
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
		return testkit.Claim("ns", "data", "u1", "prov", func(c *corev1.PersistentVolumeClaim) { c.Annotations[annSelectedNode] = node })
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
			if now := w.record("u1").Status; live.Annotations[annSelectedNode] != "" || now.NodeName != "" || now.Phase != tarnv1.VolumePending {
				t.Errorf("the claim says node %q, the record node %q in %s, want neither, in Pending", live.Annotations[annSelectedNode], now.NodeName, now.Phase)
			}
		})
	}
}

func TestAnAttemptWhoseNodeIsGoneIsGivenUp(t *testing.T) {
	claim := testkit.Claim("ns", "data", "u1", "prov", func(c *corev1.PersistentVolumeClaim) { c.Annotations[annSelectedNode] = "n1" })
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
	claim := testkit.Claim("ns", "data", "u1", "prov", func(c *corev1.PersistentVolumeClaim) { c.Annotations[annSelectedNode] = "n1" })
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
