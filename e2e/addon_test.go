//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// tarnSystem is the namespace of Tarn's parts.
const tarnSystem = "tarn-system"

// addOn is a Tarn installed by helm.
type addOn struct {
	helm, chart string
	releases    []string
}

// needsAddOn skips a case where Tarn's parts are processes of tarn-cluster.
func needsAddOn(t *testing.T) addOn {
	t.Helper()
	a := addOn{os.Getenv("TARN_HELM"), os.Getenv("TARN_CHART"), strings.Fields(os.Getenv("TARN_RELEASES"))}
	if a.helm == "" || a.chart == "" || len(a.releases) != 2 {
		t.Skip("Tarn was not installed by helm here: hack/addon.sh sets TARN_HELM, TARN_CHART and TARN_RELEASES")
	}
	return a
}

// upgrade installs another release of Tarn with helm and other values, as
// docs/operations/upgrade.md describes.
func (a addOn) upgrade(s *scenario, release string, values ...string) {
	s.t.Helper()
	args := []string{"upgrade", "tarn", a.chart, "--reset-then-reuse-values", "--set", "image.tag=" + release}
	for _, value := range values {
		args = append(args, "--set", value)
	}
	a.runs(s, args...)
}

// runs runs helm. Helm then owns again the fields that kubectl has changed for the version skew.
func (a addOn) runs(s *scenario, args ...string) {
	s.t.Helper()
	args = append(args, "--force-conflicts")
	if out, err := exec.Command(a.helm, args...).CombinedOutput(); err != nil {
		s.t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// rolledOut waits as an administrator does, and then wants both parts to be of the given releases.
func (a addOn) rolledOut(s *scenario, controllers, nodes string) {
	s.t.Helper()
	s.kubectl("-n", tarnSystem, "rollout", "status", "deployment/tarn-controller", "--timeout=180s")
	s.kubectl("-n", tarnSystem, "rollout", "status", "daemonset/tarn-node", "--timeout=180s")
	for part, want := range map[string]string{"controller": controllers, "node": nodes} {
		for _, pod := range s.parts(part) {
			if image := pod.Spec.Containers[0].Image; pod.DeletionTimestamp == nil && image != "tarn.dev/tarn:"+want {
				s.t.Errorf("%s runs %s, want release %s", pod.Name, image, want)
			}
		}
	}
}

// parts gives the pods of a part of Tarn.
func (s *scenario) parts(component string) []corev1.Pod {
	s.t.Helper()
	var pods corev1.PodList
	if err := suite.live.List(s.ctx, &pods, client.InNamespace(tarnSystem), client.MatchingLabels{"app.kubernetes.io/component": component}); err != nil {
		s.t.Fatal(err)
	}
	if len(pods.Items) == 0 {
		s.t.Fatalf("there is no pod of tarn's %s", component)
	}
	return pods.Items
}

// counts writes consecutive numbers into the volume, and ends as soon as a write fails.
const counts = `i=0; while i=$((i+1)); do echo $i >> /data/log; usleep 10000; done`

func TestAddOnUpgradesAndBackLeaveAMountedVolumeAlone(t *testing.T) {
	a := needsAddOn(t)
	shelf := t.TempDir()
	s := begin(t, "upgrade")
	s.create(s.provisioner(shelved(shelf)))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("kept"))
	pod := s.consumer("writer", claim.Name, counts)
	s.ready(pod)
	before := s.mountOf(pod)

	last := 0
	written := func(when string) {
		t.Helper()
		last = s.counted(filepath.Join(shelf, claim.Spec.VolumeName, "log"), last, when)
	}
	life := func(name string) {
		t.Helper()
		now := s.claim(name)
		consumer := s.consumer(name, now.Name, "echo hello > /data/note && cat /data/note")
		s.succeeded(consumer)
		s.remove(consumer)
		s.remove(now)
	}
	old, next := a.releases[0], a.releases[1]
	for _, step := range []struct {
		name               string
		do                 func()
		controllers, nodes string
	}{
		{"a newer controller and an older agent", func() {
			s.kubectl("-n", tarnSystem, "set", "image", "deployment/tarn-controller", "controller=tarn.dev/tarn:"+next)
		}, next, old},
		{"the next release, which listens to the runtime", func() { a.upgrade(s, next, "node.criSocket="+s.runtime()) }, next, next},
		{"an older controller and a newer agent", func() {
			s.kubectl("-n", tarnSystem, "set", "image", "deployment/tarn-controller", "controller=tarn.dev/tarn:"+old)
		}, old, next},
		{"the former release", func() { a.runs(s, "rollback", "tarn") }, old, old},
	} {
		step.do()
		a.rolledOut(s, step.controllers, step.nodes)
		written("under " + step.name)
		life(fmt.Sprintf("with-%s-and-%s", step.controllers, step.nodes))
		if step.controllers == next && step.nodes == next {
			s.hearsOfEndsFromTheRuntime(shelf)
		}
	}
	written("after all")
	if now := s.mountOf(pod); now != before {
		t.Errorf("the volume is mounted anew: it was mount %s, and is mount %s", before, now)
	}
	s.neverRestarted(pod)
	s.ran(tarn.StepStaging, 5) // one for the writer, four for the lives
}

// mountOf gives the kernel's number of the mount that the kubelet of a pod's node has for its volume. Another
// mount in its place has another number.
func (s *scenario) mountOf(pod *corev1.Pod) string {
	s.t.Helper()
	pid, err := suite.machine.on(pod.Spec.NodeName).kubelet()
	if err != nil {
		s.t.Fatal(err)
	}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 4 && strings.Contains(f[4], string(pod.UID)+"/volumes/kubernetes.io~csi/") {
			return f[0]
		}
	}
	s.t.Fatalf("the volume of pod %s is mounted nowhere", pod.Name)
	return ""
}

// counted wants a log of counts to continue beyond a number, without a gap. It gives the last
// number.
func (s *scenario) counted(path string, beyond int, when string) int {
	s.t.Helper()
	count := 0
	s.await("the writer to go on "+when, func() (bool, string) {
		text, err := os.ReadFile(path)
		if err != nil {
			return false, err.Error()
		}
		lines := strings.Split(string(text), "\n")
		for i, line := range lines[:len(lines)-1] { // the text after the last newline may be incomplete
			if line != strconv.Itoa(i+1) {
				s.t.Fatalf("%s, line %d of the volume's log is %q: something was lost", when, i+1, line)
			}
		}
		count = len(lines) - 1
		return count > beyond, fmt.Sprintf("it has written %d, as before", count)
	})
	return count
}

func TestAddOnControllersAndAPIKeepToPodSecuritysRestricted(t *testing.T) {
	a := needsAddOn(t)
	t.Parallel()
	s := begin(t, "restricted")
	space := &corev1.Namespace{ObjectMeta: named(s.name)}
	if err := suite.live.Patch(s.ctx, space, client.RawPatch("application/merge-patch+json",
		[]byte(`{"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}`))); err != nil {
		t.Fatal(err)
	}
	installed, api, agent := &appsv1.Deployment{}, &appsv1.Deployment{}, &appsv1.DaemonSet{}
	for name, o := range map[string]client.Object{controller: installed, "tarn-api": api, nodeAgent: agent} {
		if err := suite.live.Get(s.ctx, client.ObjectKey{Namespace: tarnSystem, Name: name}, o); err != nil {
			t.Fatal(err)
		}
	}
	// The installed pod mounts a directory of its node.
	usual := &appsv1.Deployment{}
	if err := yaml.UnmarshalStrict([]byte(a.objects(t)[controllerOf]), usual); err != nil {
		t.Fatal(err)
	}
	try := func(template corev1.PodTemplateSpec) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "try"}, Spec: template.Spec}
		pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount, pod.Spec.PriorityClassName = "", "", ""
		return suite.live.Create(s.ctx, pod, client.DryRunAll)
	}
	for _, d := range []*appsv1.Deployment{usual, api} {
		if err := try(d.Spec.Template); err != nil {
			t.Errorf("the pod of %s is refused: %v", d.Name, err)
		}
	}
	s.refused(try(agent.Spec.Template), "PodSecurity", "restricted")
	s.refused(try(installed.Spec.Template), "PodSecurity", "restricted", "runAsNonRoot", "hostPath", "DAC_OVERRIDE")
}

func TestAddOnMetricsWantAToken(t *testing.T) {
	needsAddOn(t)
	t.Parallel()
	s := begin(t, "metrics")
	s.needsThisMachine() // from here pods can be reached
	s.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "prometheus"}})
	s.kubectl("create", "clusterrolebinding", s.name, "--clusterrole=tarn-metrics-reader", "--serviceaccount="+s.name+":prometheus")
	t.Cleanup(func() { s.kubectl("delete", "clusterrolebinding", s.name) })
	good := strings.TrimSpace(s.kubectlSays("create", "token", "prometheus", "-n", s.name))
	stranger := strings.TrimSpace(s.kubectlSays("create", "token", "default", "-n", s.name))
	for _, part := range []string{"controller", "node", "api"} {
		for _, pod := range s.parts(part) {
			url := "https://" + pod.Status.PodIP + ":8443/metrics"
			for _, c := range []struct {
				token      string
				wantStatus int
				wantText   string
			}{{"", 401, ""}, {stranger, 403, ""}, {good, 200, "go_goroutines"}} {
				if status, text := fetch(t, url, c.token); status != c.wantStatus || !strings.Contains(text, c.wantText) {
					t.Errorf("%s answers %d, want %d with %q", pod.Name, status, c.wantStatus, c.wantText)
				}
			}
		}
	}
}
