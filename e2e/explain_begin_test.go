//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
)

// unplaced gives a section whose pod fits no node.
func unplaced(more fields) fields {
	section := script{text: "true"}.section(more)
	podSpec(section)["nodeSelector"] = fields{"no-such": "node"}
	return section
}

// againAs follows the advice for a pod that does not begin: it removes the section from the
// provisioner and deletes the pod.
func (s *scenario) againAs(provisioner, section string, e explanation) {
	s.t.Helper()
	edit, remove, found := strings.Cut(e.command(), " && ")
	if edit != "kubectl edit pavprovisioner "+provisioner || !found {
		s.t.Fatalf("the command is %q", e.command())
	}
	s.respecify(provisioner, fields{section: nil})
	s.does(remove + " --ignore-not-found") // the change alone may have deleted it
}

func TestExplainSaysWhyAStepOfAVolumeDoesNotBegin(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-steps")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeDeletion": unplaced(nil), "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	overdue := unplaced(asRequested)
	podSpec(overdue)["activeDeadlineSeconds"] = int64(1)
	hurries := s.another("-hurries", fields{"volumeCreation": overdue, "volumeStaging": greeting})
	late := s.claimWith("late", ofClass(hurries)) // meanwhile its deadline passes
	t.Run("a validation that finds no node", func(t *testing.T) {
		sub := s.part(t)
		checks := sub.another("-checks", fields{"volumeValidation": unplaced(nil), "volumeCreation": asRequested, "volumeStaging": greeting})
		claim := sub.claimWith("unchecked", ofClass(checks))
		sub.againAs(checks, "volumeValidation", sub.explainsClaim("unchecked", "is Pending: the validation pod tarn-volumes/pav-validation-", "is not scheduled: "))
		sub.bound(claim)
		sub.remove(claim)
	})
	t.Run("a deletion that finds no node", func(t *testing.T) {
		sub := s.part(t)
		claim := sub.bound(sub.claim("doomed"))
		sub.remove(claim)
		sub.againAs(s.name, "volumeDeletion", sub.explains("volume", claim.Spec.VolumeName, "is Released: the deletion pod tarn-volumes/pav-deletion-", "is not scheduled: "))
		sub.gone(&corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)})
	})
	t.Run("a creation whose time was up", func(t *testing.T) {
		sub := s.part(t)
		sub.explainsClaim("late", "is Pending: its volume could not be made, attempt ", "has not ended within 1s", "not scheduled: ")
		sub.remove(late)
	})
}

func TestExplainSaysThatWhatAnAttemptMayHaveLeftIsNotRemovedYet(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-undone")
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.claim("data")
	stage := s.stageKept(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(claim.UID), UID: types.UID(s.name)}}) // meanwhile no pod deletes anything
	s.create(s.provisioner(fields{"volumeCreation": fails(asRequested), "volumeDeletion": unplaced(nil), "volumeStaging": greeting}))
	const failed, not = "attempt 1 failed: ", "; now Tarn cannot yet remove what an attempt may have left: the volume is still staged on node "
	s.explainsClaim("data", "is Pending: "+failed, not+stage.Spec.NodeName)
	e := s.explains("volume", stage.Name, "is Undoing: "+failed, not+stage.Spec.NodeName)
	if slices.ContainsFunc(e.Links, func(l link) bool { return l.Object.Kind == "Pod" }) {
		t.Errorf("it tells of a pod, and there is none: %+v", e.Links)
	}
	s.respecify(s.name, fields{"volumeCreation": fields{"capacity": "{{ requestedMinCapacity }}", "podTemplate": nil}, "volumeDeletion": nil})
	s.unhold(stage)
	s.bound(claim)
	s.remove(claim)
}

func TestExplainSaysWhichProvisionerStagesNoVolume(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-unstageable")
	static := func(spec fields) { spec["provisioningModes"] = []any{"Static"} }
	broken := s.another("-broken", fields{"volumeStaging": fields{"podTemplate": "{{ oops | }}"}}, static)
	going := s.another("-going", fields{"volumeStaging": greeting}, static)
	p := &pav.PavProvisioner{ObjectMeta: named(going)}
	t.Cleanup(func() { s.unhold(p) })
	held := client.RawPatch(types.JSONPatchType, []byte(`[{"op":"add","path":"/metadata/finalizers","value":["tarn.dev/provisioner-in-use","example.org/audit"]}]`))
	if err := suite.live.Patch(s.ctx, p, held); err != nil {
		t.Fatal(err)
	}
	s.delete(p)
	for driver, want := range map[string]string{broken: " is not accepted: spec.volumeStaging.podTemplate: line 1", going: " is being deleted and makes no new volumes"} {
		name := strings.TrimPrefix(driver, s.name+"-")
		vol := s.byHand(name, func(vol *corev1.PersistentVolume) {
			vol.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: vol.Name}}
		})
		claim := s.bound(s.naming(name, vol.Name))
		pod := s.stuckOn(name, name)
		e := s.explains("pod", s.name+"/"+name, "is starting: PavProvisioner "+driver+want)
		if last := e.last(); last.Object.Kind != "PavProvisioner" || last.Object.Name != driver {
			t.Errorf("the chain ends with %+v", last)
		}
		s.remove(pod)
		s.remove(claim)
		s.remove(vol)
	}
}
