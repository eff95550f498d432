//go:build e2e

package e2e

import (
	"os"
	"slices"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Not parallel: meanwhile no other case can make progress.
func TestExplainSaysThatTheNodeAgentDoesNotAnswer(t *testing.T) {
	s := begin(t, "explain-agent")
	s.needsThisMachine()
	gate := t.TempDir()
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	settles := s.another("-settles", fields{"volumeCreation": script{hostDir: gate, text: "until [ -e /host/open ]; do sleep 0.1; done"}.section(asRequested), "volumeStaging": greeting})
	settling := s.claimWith("settling", ofClass(settles))
	opens := func() { put(t, gate+"/open") }
	t.Cleanup(opens)
	claim, kept := s.bound(s.claim("data")), s.bound(s.claim("kept"))
	leaves := s.consumer("leaves", kept.Name, stays)
	s.ready(leaves)
	s.explainsClaim("settling", "is Pending: the creation pod tarn-volumes/pav-creation-", "has been running for")
	goOn := s.stops(nodeAgent)
	pod := s.consumer("web", claim.Name, stays)
	s.explains("pod", s.name+"/web", "is starting: volume "+claim.Spec.VolumeName+" is about to be staged on node ")
	s.delete(leaves)
	s.explains("pod", s.name+"/web", "Tarn's node agent on node ", "does not respond")
	opens()
	s.explainsClaim("settling", "is Pending: the creation pod tarn-volumes/pav-creation-", " has ended, and the node agent on ", " has not read what it left in /pav")
	s.explains("pod", s.name+"/leaves", "is Terminating: its containers have ended, and the kubelet has not unmounted its volumes")
	goOn()
	s.bound(settling)
	s.ready(pod)
	s.gone(leaves)
}

// stops halts one of Tarn's processes, like one that hangs, until the case ends. Where controllers
// are pods, it removes them meanwhile.
func (s *scenario) stops(name string) (goOn func()) {
	s.t.Helper()
	s.needsThisMachine()
	switch {
	case inPods() && name == controller:
		return s.withoutController()
	case inPods():
		return s.pausesAgent()
	}
	c, err := suite.machine.component(name)
	if err != nil || c.PID <= 1 {
		s.t.Fatalf("%s has pid %d: %v", name, c.PID, err)
	}
	if err := syscall.Kill(c.PID, syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	goOn = func() { _ = syscall.Kill(c.PID, syscall.SIGCONT) } // a process that has ended meanwhile does not need it
	s.t.Cleanup(goOn)
	return goOn
}

// runsNone is the answer's text where Tarn's controller is stopped. The cluster's only controller
// needs no lease, so there is none. Where controllers are pods, the last one has released it.
func runsNone() string {
	if inPods() {
		return "but no tarn controller runs"
	}
	return "but has not started; no lease shows whether a tarn controller runs"
}

// Not parallel: meanwhile no other case can make progress.
func TestExplainSaysThatTheControllerDoesNotAnswer(t *testing.T) {
	s := begin(t, "explain-silent")
	s.needsThisMachine()
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeDeletion": script{text: "true"}.section(nil), "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	unused, released := s.bound(s.claim("unused")), s.bound(s.claim("released"))
	goOn := s.stops(controller)
	s.delete(unused)
	s.delete(released)
	s.unhold(released) // else its protection would wait for the controller, too
	s.claim("more")
	s.claimWith("unjudged", ofClass(s.another("-unjudged", fields{"volumeCreation": asRequested, "volumeStaging": greeting})))
	if os.Getenv("PROTECTION") != "kubernetes" {
		s.explainsClaim("unused", "no pod uses it, but its protection controller does not remove the finalizer")
	}
	if os.Getenv("BINDER") == "kubernetes" {
		s.explainsClaim("more", "PavProvisioner "+s.name+" has to make its volume, "+runsNone())
		s.explains("volume", released.Spec.VolumeName, "is gone, and its storage has to be destroyed, "+runsNone())
	} else {
		s.explainsClaim("more", "PavProvisioner "+s.name+" has to be called, but no binder responds")
		s.explains("volume", released.Spec.VolumeName, "its claim "+s.name+"/released is gone, and no binder has reconciled it since")
	}
	e := s.explainsClaim("unjudged", "PavProvisioner "+s.name+"-unjudged has to be validated, "+runsNone())
	last := e.Links[len(e.Links)-1]
	if !slices.Contains([]string{"expired", "missing", "released"}, last.State) { // the cluster's only controller needs no lease
		t.Errorf("the chain ends with %+v", last)
	}
	if inPods() {
		s.does(last.Command)
	}
	goOn()
	s.explainsClaim("more", "is Bound")
	s.explainsClaim("unjudged", "is Bound")
	s.gone(unused)
	s.gone(&corev1.PersistentVolume{ObjectMeta: named(released.Spec.VolumeName)})
}
