//go:build e2e && nodes

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

func TestOnThreeNodesTheOthersNoticeNothingWhenOneIs(t *testing.T) {
	shelf := t.TempDir()
	s, nodes := onThreeNodes(t, "one-of-3")
	s.create(s.provisioner(shelved(shelf)))
	s.class(corev1.PersistentVolumeReclaimDelete)
	var pods []*corev1.Pod
	var claims, data []string
	for i := range nodes {
		claim := s.bound(s.claim(fmt.Sprintf("data-%d", i)))
		record := &tarn.PavVolume{ObjectMeta: named(claim.Spec.VolumeName)}
		if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(record), record); err != nil {
			t.Fatal(err)
		}
		claims, data = append(claims, claim.Name), append(data, filepath.Join(shelf, record.Status.Handle))
	}
	for i, node := range nodes {
		pods = append(pods, s.writer(fmt.Sprintf("writer-%d", i), claims[i], node))
	}
	const victim = 1
	m, name := suite.machine.on(nodes[victim]), nodes[victim]
	all := func() {
		t.Helper()
		for i, pod := range pods {
			s.writesOn(pod, data[i])
		}
		s.stagedOn(nodes...)
	}
	all()
	began := suite.news.of(s.name)
	for _, component := range []string{nodeAgent, "kubelet", "containerd"} {
		if err := m.kill(component); err != nil {
			t.Fatal(err)
		}
		s.nodeBecomes(name, "ready after "+component+" was killed", isReadyNode)
		all()
		late := s.consumer("late", claims[victim], "cd /data; sha256sum -c sum", onNode(name))
		s.succeeded(late)
		s.remove(late)
	}
	if now := suite.news.of(s.name); now.stages != began.stages || now.pods[tarn.StepStaging] != began.pods[tarn.StepStaging] {
		t.Errorf("killing components has made %d stages and %d staging pods", now.stages-began.stages, now.pods[tarn.StepStaging]-began.pods[tarn.StepStaging])
	}

	others := func() {
		t.Helper()
		for i, pod := range pods {
			if i != victim {
				s.writesOn(pod, data[i])
			}
		}
	}
	again := func() {
		t.Helper()
		pods[victim] = s.writer(fmt.Sprintf("writer-%d", victim), claims[victim], name)
		if text := s.printed(pods[victim]); !strings.Contains(text, "blob: OK") {
			t.Errorf("the pod has not found its data, and says:\n%s", text)
		}
		all()
	}
	s.kubectl("drain", name, "--ignore-daemonsets", "--force", "--timeout=120s")
	others()
	s.stagedOn(nodes[0], nodes[2])
	s.unstagedOn(shelf, name)
	s.cleanNode(name)
	s.kubectl("uncordon", name)
	again()

	s.kubectl("delete", "node", name)
	s.gone(pods[victim])
	others()
	// A kubelet registers its node when it starts. The agent's token follows within two minutes.
	if _, err := suite.machine.run("restart", "kubelet", "--node", name); err != nil {
		t.Fatal(err)
	}
	s.nodeBecomes(name, "ready again", isReadyNode)
	again()
	if now := suite.news.of(s.name); now.pods[tarn.StepCreation] != 3 || len(s.records()) != 3 {
		t.Errorf("there were %d creation pods, and there are %d volumes, want 3 and 3", now.pods[tarn.StepCreation], len(s.records()))
	}
}
