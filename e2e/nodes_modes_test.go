//go:build e2e && nodes

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// deployment gives a Deployment of one pod on a node. The pod is Ready while the volume has the
// file "open-NODE".
func (s *scenario) deployment(claim, node string) *appsv1.Deployment {
	labels := map[string]string{"app": claim}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: ptr.To[int64](1),
		Containers: []corev1.Container{{Name: "main", Image: "busybox:1.36", Command: []string{"sh", "-c", stays},
			VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
				Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/data/open-" + node}},
			}},
		}},
		Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}},
	}}
	onNode(node)(pod)
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: claim, Namespace: s.name}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": claim, "for": node}}, Spec: pod.Spec},
	}}
}

// deployed waits for the one pod of a Deployment that is meant for a node.
func (s *scenario) deployed(claim, node string) *corev1.Pod {
	s.t.Helper()
	var list corev1.PodList
	s.await("a pod of "+claim+" for node "+node, func() (bool, string) {
		err := suite.cached.List(s.ctx, &list, client.InNamespace(s.name), client.MatchingLabels{"app": claim, "for": node})
		return err == nil && len(list.Items) == 1, fmt.Sprintf("there are %d: %v", len(list.Items), err)
	})
	return &list.Items[0]
}

// rollOut changes a Deployment so that its pod belongs on another node.
func (s *scenario) rollOut(of *appsv1.Deployment, node string, strategy appsv1.DeploymentStrategyType) {
	s.t.Helper()
	want := s.deployment(of.Name, node).Spec
	now := of.DeepCopy()
	now.Spec.Template = want.Template
	now.Spec.Strategy = appsv1.DeploymentStrategy{Type: strategy}
	if err := suite.live.Patch(s.ctx, now, client.MergeFrom(&appsv1.Deployment{ObjectMeta: of.ObjectMeta})); err != nil {
		s.t.Fatal(err)
	}
}

func TestOnThreeNodesARollingUpdateHasAVolumeOnTwoNodesUnlessItIsForOnePod(t *testing.T) {
	shelf := t.TempDir()
	s, nodes := onThreeNodes(t, "rolling")
	sections := shelved(shelf)
	sections["volumeValidation"] = fields{"accessModes": []any{"ReadWriteOnce", "ReadWriteOncePod"}}
	s.create(s.provisioner(sections))
	s.class(corev1.PersistentVolumeReclaimDelete)
	open := func(data, node string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(data, "open-"+node), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	begin := func(name string, mode corev1.PersistentVolumeAccessMode) (*appsv1.Deployment, *corev1.Pod, string) {
		t.Helper()
		claim := s.bound(s.claimWith(name, asksModes(mode)))
		record := &tarn.PavVolume{ObjectMeta: named(claim.Spec.VolumeName)}
		if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(record), record); err != nil {
			t.Fatal(err)
		}
		data := filepath.Join(shelf, record.Status.Handle)
		open(data, nodes[1])
		d := s.deployment(name, nodes[1])
		s.create(d)
		t.Cleanup(func() { s.deleteIfThere(d) })
		pod := s.deployed(name, nodes[1])
		s.ready(pod)
		return d, pod, data
	}

	many, old, data := begin("one-node", corev1.ReadWriteOnce)
	s.rollOut(many, nodes[2], appsv1.RollingUpdateDeploymentStrategyType)
	next := s.deployed(many.Name, nodes[2])
	s.await("the next pod to run", func() (bool, string) {
		err := s.get(next)
		return err == nil && next.Status.Phase == corev1.PodRunning, fmt.Sprintf("it is %s: %v", next.Status.Phase, err)
	})
	s.stagedOn(nodes[1], nodes[2])
	s.neverRestarted(old)
	open(data, nodes[2])
	s.gone(old)
	s.ready(next)
	s.stagedOn(nodes[2])
	s.unstagedOn(shelf, nodes[1])
	s.remove(many)
	s.gone(next)
	s.stagedOn()
	s.unstagedOn(shelf, nodes[2])

	single, old, data := begin("one-pod", corev1.ReadWriteOncePod)
	s.rollOut(single, nodes[2], appsv1.RollingUpdateDeploymentStrategyType)
	next = s.deployed(single.Name, nodes[2])
	s.explains("pod", s.name+"/"+next.Name, "ReadWriteOncePod")
	s.stagedOn(nodes[1])
	s.neverRestarted(old)
	open(data, nodes[2])
	s.kubectl("-n", s.name, "patch", "deployment", single.Name, "-p", `{"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}`)
	s.gone(old)
	s.ready(s.deployed(single.Name, nodes[2]))
	s.stagedOn(nodes[2])
	s.unstagedOn(shelf, nodes[1])
	s.cleanNode(nodes[1])
}
