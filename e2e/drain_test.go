//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// Not parallel: it drains the node.
func TestWhenANodeIsDrainedAStagingPodOutlivesItsConsumers(t *testing.T) {
	s := begin(t, "drained")
	s.needsThisMachine()
	shelf := t.TempDir()
	// Each side writes the time of its end, in nanoseconds, to the shelf.
	ends := func(who string) string {
		return `trap 'sleep 1; date +%s.%N > /host/` + who + `; exit' TERM; touch /pav/ready; sleep 1d & wait`
	}
	s.create(s.provisioner(fields{
		"volumeCreation": asRequested,
		"volumeStaging":  script{hostDir: shelf, text: "mkdir /pav/volume && echo hello > /pav/volume/greeting\n" + ends("staging")}.section(nil),
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	pod := s.consumer("reader", claim.Name, "trap 'sleep 2; cat /data/greeting > /host/seen; date +%s.%N > /host/consumer; exit' TERM; sleep 1d & wait", func(p *corev1.Pod) {
		grace := int64(20)
		p.Spec.TerminationGracePeriodSeconds = &grace
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: shelf}}})
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "host", MountPath: "/host"})
	})
	s.ready(pod)
	staging := s.stepPods(tarn.StepStaging)
	if len(staging) != 1 || staging[0].Spec.PriorityClassName != "system-node-critical" {
		t.Fatalf("got staging pods %+v, want one that is critical", staging)
	}
	// Pods of this priority or above are ended in the second phase of a node's shutdown.
	const critical = 2_000_000_000
	if priority := staging[0].Spec.Priority; priority == nil || *priority < critical {
		t.Errorf("the staging pod has no priority from %d on: a shutdown would end it with its consumers", critical)
	}
	s.refusesEviction(&staging[0])

	// Only pods of the case, because the cluster may have others.
	node := staging[0].Spec.NodeName
	defer s.kubectl("uncordon", node)
	s.label(pod)
	s.kubectl("drain", node, "--ignore-daemonsets", "--force", "--timeout=180s", "--pod-selector", tarn.LabelProvisioner+"="+s.name)

	s.gone(pod)
	s.gone(&staging[0])
	s.gone(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "pav-staging-" + staging[0].Labels[tarn.LabelStage], Namespace: staging[0].Namespace}})
	if text := s.onShelf(shelf, "seen"); text != "hello" {
		t.Errorf("as it ended, the consumer found %q in the volume, want hello", text)
	}
	if consumer, staged := s.onShelf(shelf, "consumer"), s.onShelf(shelf, "staging"); consumer >= staged {
		t.Errorf("the consumer ended at %s, the staging pod at %s, want that later", consumer, staged)
	}
}

// refusesEviction proves that the pod cannot be evicted now.
func (s *scenario) refusesEviction(pod *corev1.Pod) {
	s.t.Helper()
	s.await("a disruption budget", func() (bool, string) {
		var budgets policyv1.PodDisruptionBudgetList
		err := suite.live.List(s.ctx, &budgets)
		for _, b := range budgets.Items {
			if b.Labels[tarn.LabelProvisioner] == s.name && b.Status.ObservedGeneration > 0 {
				return true, ""
			}
		}
		return false, describeError(err)
	})
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}}
	err := suite.live.SubResource("eviction").Create(s.ctx, pod, eviction)
	if !apierrors.IsTooManyRequests(err) {
		s.t.Errorf("the eviction of a staging pod in use says %v, want a refusal for now", err)
	}
}

func describeError(err error) string {
	if err == nil {
		return "there is none yet"
	}
	return err.Error()
}

// label adds the label that the case's drain selects.
func (s *scenario) label(pod *corev1.Pod) {
	s.t.Helper()
	labels := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+tarn.LabelProvisioner+`":"`+s.name+`"}}}`))
	if err := suite.live.Patch(s.ctx, pod, labels); err != nil {
		s.t.Fatal(err)
	}
}

// kubectlBinary is the kubectl beside tarn-cluster.
func kubectlBinary() string { return filepath.Join(filepath.Dir(suite.machine.binary), "kubectl") }

// kubectl runs kubectl, and fails the case if that fails.
func (s *scenario) kubectl(args ...string) {
	s.t.Helper()
	out, err := exec.Command(kubectlBinary(), args...).CombinedOutput()
	s.t.Logf("kubectl %s:\n%s", strings.Join(args, " "), out)
	if err != nil {
		s.t.Fatalf("kubectl %s: %v", args[0], err)
	}
}

func (s *scenario) onShelf(dir, name string) string {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		s.t.Error(err)
	}
	return strings.TrimSpace(string(data))
}
