//go:build e2e

package e2e

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// rendered gives the manifest of the chart with some values.
func (a addOn) rendered(values ...string) (string, error) {
	args := []string{"template", "tarn", a.chart, "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"}
	for _, value := range values {
		args = append(args, "--set", value)
	}
	out, err := exec.Command(a.helm, args...).CombinedOutput()
	return string(out), err
}

// The default values and those of the suite are installed; these are only asked for.
func TestAddOnTheAPIServerTakesTheChartWithOtherValuesToo(t *testing.T) {
	a := needsAddOn(t)
	t.Parallel()
	for _, c := range []struct {
		name   string
		values []string
		want   []string
	}{
		{"a private registry", []string{"image.repository=registry.example.org/tarn", "image.tag=v1@sha256:" + strings.Repeat("a", 64), "image.pullSecrets[0].name=mine", "api.enabled=true"},
			[]string{`image: "registry.example.org/tarn:v1@sha256:`, "- name: mine", "--scrub-pull-secret=mine\n"}},
		{"the API with TLS", []string{"api.enabled=true", "api.tlsSecret=served", "api.replicas=3", "api.nodeSelector.disk=fast"}, []string{"secretName: served", "port: 443"}},
		{"what Kubernetes does otherwise", []string{"controller.controllers={*}", "controller.scrub=false", "controller.replicas=1"}, []string{"--controllers=*\n", "name: tarn-bind", "name: tarn-protect"}},
		{"nothing beside", []string{"metrics.enabled=false", "networkPolicy.enabled=false", "controller.priorityClassName=", "node.priorityClassName=", "crds.keep=false"}, []string{"--metrics-bind-address=0"}},
		{"other nodes", []string{"node.nodeSelector.disk=fast", "node.tolerations=null", "node.criSocket=/run/containerd/containerd.sock", "node.maxUnavailable=1", "controller.tolerations[0].operator=Exists",
			"controller.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key=a",
			"controller.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator=Exists"}, []string{"/proc/1/root/run/containerd/containerd.sock"}},
		{"a folder of the node", []string{"controller.hostPath=/var/lib/tarn", "controller.nodeSelector.disk=fast", "controller.replicas=1"}, []string{"--host-path-root=/var/lib/tarn/volumes\n", `hostPath: {path: "/var/lib/tarn", type: DirectoryOrCreate}`}},
		{"applications with classes of their own", []string{"apps.classes.rwo=fast", "node.extraArgs={--v=1}"}, []string{"--app-class=rwo=fast"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			manifest, err := a.rendered(c.values...)
			if err != nil {
				t.Fatalf("%v: %s", err, manifest)
			}
			for _, want := range c.want {
				if !strings.Contains(manifest, want) {
					t.Errorf("it does not say %q:\n%s", want, manifest)
				}
			}
			// Only what helm itself prints, such as a warning, is no object.
			try := exec.Command(kubectlBinary(), "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
			try.Stdin = strings.NewReader(manifest[strings.Index(manifest, "---\n"):])
			if out, err := try.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	for value, want := range map[string]string{
		"controller.replicas=0": "replicas", "image.tagg=v1": "tagg", "node.kubeletDir=kubelet": "kubeletDir", "node.criSocket=unix:///run/x.sock": "criSocket",
		"controller.controllers={everything}": "controllers", "apps.classes.rox=slow": "rox", "api.enabled=maybe": "enabled", "image.pullSecrets={mine}": "pullSecrets",
		"controller.hostPath=folders": "hostPath", "controller.hostPath=/": "hostPath",
	} {
		if out, err := a.rendered(value); err == nil || !strings.Contains(out, want) {
			t.Errorf("--set %s: %v, want a refusal that names %s: %s", value, err, want, out)
		}
	}
}

func TestAddOnNetworkPoliciesAreAboutTarnsOwnPodsAlone(t *testing.T) {
	needsAddOn(t)
	t.Parallel()
	s := begin(t, "network")
	var policies networkingv1.NetworkPolicyList
	if err := suite.live.List(s.ctx, &policies, client.InNamespace(tarnSystem)); err != nil {
		t.Fatal(err)
	}
	isolating := func(pod labels.Set) (names []string) {
		for _, p := range policies.Items {
			selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
			if err != nil {
				t.Fatal(err)
			}
			if selector.Matches(pod) {
				names = append(names, p.Name)
			}
		}
		slices.Sort(names)
		return names
	}
	for _, part := range []string{"controller", "node", "api"} {
		want := []string{"tarn", "tarn-metrics"}
		if part == "api" {
			want = []string{"tarn", "tarn-api", "tarn-metrics"}
		}
		for _, pod := range s.parts(part) {
			if got := isolating(pod.Labels); !slices.Equal(got, want) {
				t.Errorf("pod %s is that of the policies %q, want %q", pod.Name, got, want)
			}
		}
	}
	if got := isolating(labels.Set{"tarn.dev/step": "scrubbing"}); !slices.Equal(got, []string{"tarn-scrub"}) {
		t.Errorf("a scrub pod is that of the policies %q", got)
	}
	// The server of a provisioner's volumes, which may run beside, answers its clients.
	for _, part := range []string{"controller", "node", "api"} {
		if got := isolating(labels.Set{"app.kubernetes.io/name": "nfs-server", "app.kubernetes.io/component": part}); len(got) > 0 {
			t.Errorf("policies %q keep others from reaching a provisioner's pod whose component is %s", got, part)
		}
	}
}
