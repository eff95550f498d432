//go:build e2e

package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// stores writes a claim into etcd directly, without validation by the API server. After an upgrade,
// etcd may contain claims that an earlier API server accepted and the present one would reject.
func (s *scenario) stores(claim *corev1.PersistentVolumeClaim) {
	s.t.Helper()
	claim = claim.DeepCopy()
	claim.APIVersion, claim.Kind, claim.ResourceVersion = "v1", "PersistentVolumeClaim", ""
	value, err := json.Marshal(claim)
	if err != nil {
		s.t.Fatal(err)
	}
	body, err := json.Marshal(map[string][]byte{"key": fmt.Appendf(nil, "/registry/persistentvolumeclaims/%s/%s", claim.Namespace, claim.Name), "value": value})
	if err != nil {
		s.t.Fatal(err)
	}
	pki := filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "pki")
	own, err := tls.LoadX509KeyPair(pki+"/apiserver-etcd.crt", pki+"/apiserver-etcd.key")
	if err != nil {
		s.t.Fatal(err)
	}
	authority, err := os.ReadFile(pki + "/etcd-ca.crt")
	if err != nil {
		s.t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority)
	etcd := &http.Client{Timeout: soon, Transport: &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{own}, RootCAs: trusted, MinVersion: tls.VersionTLS12}}}
	answer, err := etcd.Post(s.etcd()+"/v3/kv/put", "application/json", bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		s.t.Fatalf("etcd answers %s", answer.Status)
	}
}

// etcd is the address of the cluster's etcd, from its arguments.
func (s *scenario) etcd() string {
	s.t.Helper()
	c, err := suite.machine.component("etcd")
	if err != nil {
		s.t.Fatal(err)
	}
	arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c.PID))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, argument := range strings.Split(string(arguments), "\x00") {
		if url, found := strings.CutPrefix(argument, "--listen-client-urls="); found {
			return url
		}
	}
	s.t.Fatalf("etcd does not say where it answers: %q", arguments)
	return ""
}

func TestExplainSaysThatASelectorCannotBeRead(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-selector")
	s.needsThisMachine()
	claim := s.claimWith("old", func(claim *corev1.PersistentVolumeClaim) {
		ofClass(s.classWith("-by-hand", "kubernetes.io/no-provisioner"))(claim)
		claim.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "shelf", Operator: metav1.LabelSelectorOpIn, Values: []string{"seven"}}}}
	})
	s.explainsClaim("old", "is Pending: its class "+s.name+"-by-hand makes no volumes, and no free one fits")
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(claim), claim); err != nil {
		t.Fatal(err)
	}
	claim.Spec.Selector.MatchExpressions[0].Values = []string{"shelf 7"}
	s.stores(claim)
	e := s.explainsClaim("old", "is Pending: its selector is not valid")
	if last := e.Links[len(e.Links)-1]; !strings.Contains(last.Message, `"shelf 7"`) || last.Next != "when the claim is created again with a valid selector" {
		t.Errorf("the chain ends with %+v", last)
	}
}

// spoils makes the container runtime lose a container, like a fault of the disk that holds its
// state, until mend is called.
func (s *scenario) spoils(pod *corev1.Pod) (mend func()) {
	s.t.Helper()
	c, err := suite.machine.component("containerd")
	if err != nil {
		s.t.Fatal(err)
	}
	now := pod.DeepCopy()
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(pod), now); err != nil || len(now.Status.ContainerStatuses) == 0 {
		s.t.Fatalf("pod %s has no container (%v)", pod.Name, err)
	}
	_, id, _ := strings.Cut(now.Status.ContainerStatuses[0].ContainerID, "://")
	state := fmt.Sprintf("/proc/%d/root/run/containerd/runc/k8s.io/%s/state.json", c.PID, id)
	if err := os.Rename(state, state+".whole"); err != nil {
		s.t.Fatal(err)
	}
	mend = func() { _ = os.Rename(state+".whole", state) } // the state is gone with the container
	s.t.Cleanup(mend)
	if err := os.WriteFile(state, []byte("{"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return mend
}

func TestExplainSaysThatAContainerCannotBeEnded(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-stuck")
	s.needsThisMachine()
	pod := s.consumer("stuck", "", stays, func(pod *corev1.Pod) {
		pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	})
	s.ready(pod)
	mend := s.spoils(pod)
	s.delete(pod)
	e := s.explains("pod", s.name+"/stuck", "is Terminating: the kubelet on node ", " cannot stop it: error killing pod: ")
	if e.Links[0].Reason != "FailedKillPod" || e.Links[0].Next != "when its containers have ended and the kubelet has unmounted its volumes" {
		t.Errorf("the chain begins with %+v", e.Links[0])
	}
	mend()
	s.gone(pod)
}
