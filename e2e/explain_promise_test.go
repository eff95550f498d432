//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A file in place of the directory can be neither used nor removed.
func TestExplainSaysWhyAPromisedFolderCannotBeUndone(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-promise")
	s.needsHostPath()
	s.folders(waitsForPods)
	claim := s.claim("data")
	taken := filepath.Join(suite.machine.hostPathRoot(), "pvc-"+string(claim.UID))
	put(t, taken)
	t.Cleanup(func() { _ = os.Remove(taken) }) // also where the case fails before it removes it
	pod := s.consumer("web", claim.Name, stays)
	s.told(claim, "ProvisioningCleanupFailed", taken)
	s.explainsClaim(claim.Name, "is Pending: provisioner "+hostPath+" cannot make its volume: "+taken+" is not the directory that")
	s.remove(pod)
	s.delete(claim)
	e := s.explainsClaim(claim.Name, "is Terminating: what may have been made for it cannot be undone: "+taken+" is not the directory that")
	if last := e.last(); last.Reason != "ProvisioningCleanupFailed" || last.Next != "when that is fixed; Tarn retries" || len(e.commands()) > 0 {
		t.Errorf("the chain ends with %+v, and the commands are %q", last, e.commands())
	}
	if err := os.Remove(taken); err != nil {
		t.Fatal(err)
	}
	s.gone(claim)
}

// The node of a failed attempt is given back, and the scheduler chooses another only for a pod.
func TestExplainSaysThatTheNextAttemptWaitsForAPod(t *testing.T) {
	t.Parallel()
	shelf := t.TempDir()
	s := begin(t, "explain-podless")
	s.needsThisMachine()
	s.tied(fields{
		"volumeCreation": script{text: "[ -e /host/go ]", hostDir: shelf}.section(asRequested),
		"volumeStaging":  greeting,
	}, waitsForPods)
	claim := s.claim("data")
	pod := s.consumer("first", claim.Name, stays)
	s.explainsClaim(claim.Name, "is Pending: its volume could not be made, attempt ")
	if err := suite.live.Delete(s.ctx, pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	s.gone(pod)
	const next = "when the scheduler has selected a node again, which needs a pod that uses the claim"
	s.explainsThat(os.Getenv("KUBECONFIG"), "claim", s.name+"/"+claim.Name, fmt.Sprintf("the next attempt to come %q, and no command", next), func(e explanation) bool {
		for _, l := range e.Links {
			if strings.Contains(l.Next, next) {
				return strings.Contains(e.Verdict, "its volume could not be made, attempt ") && len(e.commands()) == 0
			}
		}
		return false
	})
	put(t, filepath.Join(shelf, "go"))
	s.ready(s.consumer("second", claim.Name, stays))
	s.bound(claim)
}
