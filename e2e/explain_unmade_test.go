//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// Not parallel: no other case can go on meanwhile. A step is written down and its pod is
// made right after it; with the controller stopped and the pod taken away the two are
// apart for long enough to ask.
func TestExplainSaysWhichPodOfAStepIsNotMade(t *testing.T) {
	shelf := t.TempDir() // until the last pod of the case is gone
	s := begin(t, "explain-unmade")
	s.needsThisMachine()
	waits := func(claim, then string) fields { // the pod of one claim waits until the shelf has a file
		text := "[ {{ pvc.metadata.name }} != " + claim + " ] || until [ -e /host/go ]; do sleep 1; done\n" + then
		return script{text: text, hostDir: shelf}.section(nil)
	}
	s.create(s.provisioner(fields{
		"volumeValidation": waits("checked", "true"), "volumeCreation": asRequested, "volumeDeletion": waits("going", "true"),
		"volumeExpansion": waits("growing", "true"), "volumeStaging": waits("staged", "mkdir -p /pav/volume"),
	}))
	s.lonely()
	class := ofClass(s.classWith("", s.name, func(class *storagev1.StorageClass) { class.AllowVolumeExpansion = new(true) }))
	going, growing, staged := s.bound(s.claimWith("going", class)), s.bound(s.claimWith("growing", class)), s.bound(s.claimWith("staged", class))
	checked := s.claimWith("checked", class)
	s.delete(going)
	s.ask(growing, "8Mi")
	pod := s.consumer("user", staged.Name, stays)

	said := map[tarn.Step]silence{
		tarn.StepValidation: {kind: "claim", name: s.name + "/" + checked.Name, want: []string{"its claim is being validated"}},
		tarn.StepDeletion:   {kind: "volume", name: going.Spec.VolumeName, want: []string{"its storage is being destroyed, attempt 1"}},
		tarn.StepExpansion:  {kind: "claim", name: s.name + "/" + growing.Name, want: []string{"it is to grow from 2Mi to 8Mi"}},
		tarn.StepStaging:    {kind: "pod", name: s.name + "/" + pod.Name, want: []string{"its staging pod has made no /pav/volume yet"}},
	}
	for step := range said {
		s.await("a "+string(step)+" pod to run", func() (bool, string) {
			pods := s.stepPods(step)
			return len(pods) == 1 && pods[0].Status.Phase == corev1.PodRunning, fmt.Sprint(names(pods))
		})
	}
	goOn := s.stops(controller)
	for step, c := range said {
		missing := s.stepPods(step)[0]
		if err := suite.live.Delete(s.ctx, &missing, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
		e := s.explains(c.kind, c.name, c.want...)
		shown := false
		for _, l := range e.Links {
			shown = shown || l.Object.Kind == "Pod" && l.Object.Name == missing.Name && l.State == "missing"
		}
		if !shown {
			t.Errorf("%s: no link tells that %s pod %s is missing: %+v", c.name, step, missing.Name, e.Links)
		}
	}
	put(t, filepath.Join(shelf, "go"))
	goOn()
	s.ready(pod)
	s.bound(checked)
	s.gone(&corev1.PersistentVolume{ObjectMeta: named(going.Spec.VolumeName)})
	s.explainsClaim("growing", "is Bound")
}

// lonely asks for a claim in a cluster that has no volume, as others of its cases have
// taken theirs away.
func (s *scenario) lonely() {
	s.t.Helper()
	s.await("the volumes of earlier cases to be gone", func() (bool, string) {
		volumes := &corev1.PersistentVolumeList{}
		err := suite.live.List(s.ctx, volumes)
		return err == nil && len(volumes.Items) == 0, fmt.Sprintf("there are %d (%v)", len(volumes.Items), err)
	})
	claim := s.claimWith("lonely", ofClass(""))
	e := s.explainsClaim(claim.Name, "is Pending: ")
	if last := e.Links[len(e.Links)-1]; last.Message != "there is no PersistentVolume at all" {
		s.t.Errorf("the chain of a claim in a cluster without volumes ends with %+v", last)
	}
	for _, c := range []struct {
		reason, told string
		edit         func(*corev1.PersistentVolume)
	}{
		{"Taken", "belongs to claim " + s.name + "/to-come", func(vol *corev1.PersistentVolume) {
			vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: s.name, Name: "to-come"}
		}},
		{"BeingDeleted", "is being deleted", func(*corev1.PersistentVolume) {}},
	} { // what ranks behind all volumes of other cases
		vol := s.byHand(strings.ToLower(c.reason), c.edit)
		if c.reason == "BeingDeleted" {
			s.hold(vol)
			s.delete(vol)
		}
		e := s.explainsClaim(claim.Name, "is Pending: ")
		if last := e.last(); last.Reason != c.reason || last.Message != fmt.Sprintf("came nearest: volume %q %s", vol.Name, c.told) || len(e.commands()) > 0 {
			s.t.Errorf("of a volume that %s it says %+v", c.told, e)
		}
	}
	s.remove(claim)
}
