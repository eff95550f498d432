//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// runtime gives the path of the container runtime's socket in the kubelet's settings.
func (s *scenario) runtime() string {
	s.t.Helper()
	var kubelet struct {
		Config struct {
			Endpoint string `json:"containerRuntimeEndpoint"`
		} `json:"kubeletconfig"`
	}
	text := s.kubectlSays("get", "--raw", "/api/v1/nodes/"+s.aNode().Name+"/proxy/configz")
	if err := json.Unmarshal([]byte(text), &kubelet); err != nil {
		s.t.Fatal(err)
	}
	path, found := strings.CutPrefix(kubelet.Config.Endpoint, "unix://")
	if !found {
		s.t.Fatalf("the kubelet's containerRuntimeEndpoint is %q, want unix:///PATH", kubelet.Config.Endpoint)
	}
	return path
}

// hearsOfEndsFromTheRuntime wants a claim to be Bound while the kubelet is stopped and cannot
// report that the creation pod has ended. The node agent learns it from the runtime. No other case
// can make progress meanwhile.
func (s *scenario) hearsOfEndsFromTheRuntime(shelf string) {
	s.t.Helper()
	goes := filepath.Join(shelf, "go")
	waits := script{hostDir: shelf, text: "until [ -e /host/go ]; do usleep 20000; done"}
	class := s.another("-told", fields{"volumeCreation": waits.section(asRequested), "volumeStaging": greeting})
	claim := s.claimWith("told", ofClass(class))
	maker := &scenario{t: s.t, ctx: s.ctx, name: class}
	s.await("the creation pod to run", func() (bool, string) {
		pods := maker.stepPods(tarn.StepCreation)
		if len(pods) != 1 {
			return false, "there is none, or more"
		}
		return pods[0].Status.Phase == corev1.PodRunning, string(pods[0].Status.Phase)
	})
	pid, err := suite.machine.kubelet()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	goOn := func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
	s.t.Cleanup(goOn)
	if err := os.WriteFile(goes, nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.bound(claim)
	goOn()
	s.remove(claim)
}
