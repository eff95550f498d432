//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// rendered gives the chart's manifest with the given values.
func (a addOn) rendered(values ...string) (string, error) {
	args := []string{"--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy", "--api-versions=pav.albertofaria.github.io/v1alpha1/PavProvisioner"}
	for _, value := range values {
		args = append(args, "--set", value)
	}
	return a.template(args...)
}

// template renders the chart with helm.
func (a addOn) template(args ...string) (string, error) {
	args = append([]string{"template", "tarn", a.chart}, args...)
	out, err := exec.Command(a.helm, args...).CombinedOutput()
	return string(out), err
}

// The suite installs the default values and its own. These values are only sent as a dry run.
func TestAddOnTheAPIServerTakesTheChartWithOtherValuesToo(t *testing.T) {
	a := needsAddOn(t)
	t.Parallel()
	for _, c := range []struct {
		name   string
		values []string
		want   []string
		not    string // "" for nothing
	}{
		{"a private registry", []string{"image.repository=registry.example.org/tarn", "image.digest=sha256:" + strings.Repeat("a", 64), "image.pullSecrets[0].name=mine", "api.enabled=true", "api.insecure=true"},
			[]string{`image: "registry.example.org/tarn@sha256:`, "- name: mine", "--scrub-pull-secret=mine\n"}, ""},
		{"the API with TLS", []string{"api.enabled=true", "api.tlsSecret=served", "api.replicas=3", "api.nodeSelector.disk=fast"}, []string{"secretName: served", "port: 443"}, "--insecure"},
		{"what Kubernetes does otherwise", []string{"controller.controllers={*}", "controller.scrub=false", "controller.replicas=1"}, []string{"--controllers=*\n", "name: tarn-bind", "name: tarn-protect", "name: finalizers.tarn.dev"}, ""},
		{"nothing beside", []string{"metrics.enabled=false", "networkPolicy.enabled=false", "controller.priorityClassName=", "node.priorityClassName=", "crds.keep=false"}, []string{"--metrics-bind-address=0"}, "tarn-metrics"},
		{"nothing that is Kubernetes' to do", []string{"controller.controllers={*,-bind,-protect}"}, []string{"name: pools.tarn.dev"}, "finalizers.tarn.dev"},
		{"other nodes", []string{"node.nodeSelector.disk=fast", "node.tolerations=null", "node.criSocket=/run/containerd/containerd.sock", "node.maxUnavailable=1", "controller.tolerations[0].operator=Exists",
			"controller.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key=a",
			"controller.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator=Exists"}, []string{"/proc/1/root/run/containerd/containerd.sock"}, ""},
		{"a folder of the node", []string{"controller.hostPath=/var/lib/tarn", "controller.nodeSelector.disk=fast", "controller.replicas=1"}, []string{"--host-path-root=/var/lib/tarn/volumes\n", `hostPath: {path: "/var/lib/tarn", type: DirectoryOrCreate}`}, ""},
		{"applications with classes of their own", []string{"apps.classes.rwo=fast", "node.extraArgs={--v=1}"}, []string{"--app-class=rwo=fast"}, ""},
		{"an image that is always pulled, and another for pools", []string{"image.pullPolicy=Always", "controller.pauseImage=registry.example.org/pause:1"}, []string{"imagePullPolicy: Always\n", "- --pause-image=registry.example.org/pause:1\n"}, "imagePullPolicy: IfNotPresent"},
		{"calls that name no namespace", []string{"api.enabled=true", "api.insecure=true", "api.defaultNamespace=apps"}, []string{"- --insecure\n", "- --default-namespace=apps\n"}, ""},
		{"resources that somebody else installs", []string{"crds.install=false"}, nil, "kind: CustomResourceDefinition"},
		{"other namespaces for step pods", []string{"controller.stepNamespaces={storage,*}"}, []string{"- --step-namespaces=storage,*\n", `["storage","*"]`}, `["tarn-volumes"`},
		{"ready provisioners", []string{"provisioners={xfs,shared}"}, []string{"kind: PavProvisioner\n", "name: xfs\n", "name: shared\n", "helm.sh/resource-policy: keep"}, ""},
		{"a socket as kubelets spell it", []string{"node.criSocket=/var/run/crio/crio.sock"}, []string{"--cri-endpoint=unix:///proc/1/root/run/crio/crio.sock\n"}, "/var/run/crio"},
		{"one that only begins so", []string{"node.criSocket=/var/running/x.sock"}, []string{"--cri-endpoint=unix:///proc/1/root/var/running/x.sock\n"}, ""},
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
			if c.not != "" && strings.Contains(manifest, c.not) {
				t.Errorf("it says %q:\n%s", c.not, manifest)
			}
			// Output of helm itself, such as a warning, is no object.
			try := exec.Command(kubectlBinary(), "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
			try.Stdin = strings.NewReader(manifest[strings.Index(manifest, "---\n"):])
			if out, err := try.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	for value, want := range map[string]string{
		"controller.replicas=0": "replicas", "image.tagg=v1": "tagg", "node.kubeletDir=kubelet": "kubeletDir", "node.criSocket=unix:///run/x.sock": "criSocket",
		"controller.controllers={everything}": "controllers", "apps.classes.rox=slow": "rox", "api.enabled=maybe": "enabled", "api.enabled=true": "api.insecure=true", "image.pullSecrets={mine}": "pullSecrets",
		"provisioners={nosuch}":       `no ready provisioner "nosuch"`,
		"controller.hostPath=folders": "hostPath", "controller.hostPath=/": "hostPath", "controller.stepNamespaces={kube-system}": "stepNamespaces", "metrics.serviceMonitor=true,metrics.enabled=false": "metrics.serviceMonitor",
	} {
		if out, err := a.rendered(value); err == nil || !strings.Contains(out, want) {
			t.Errorf("--set %s: %v, want a refusal that names %s: %s", value, err, want, out)
		}
	}
}

// The commands are copied from the page, so a reader who follows it has a Secret where the pods
// look for it.
func TestAddOnThePasswordOfARegistryGoesWithEveryPodAsThePageSays(t *testing.T) {
	a := needsAddOn(t)
	t.Parallel()
	page, err := os.ReadFile("../docs/operations/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n### A registry that wants a password\n")
	section, _, _ = strings.Cut(section, "\n###")
	namespace, secret := pageWords(t, section, "kubectl create namespace ", 1), pageWords(t, section, "kubectl -n "+tarnSystem+" create secret docker-registry ", 1)
	args := pageWords(t, section, "helm install tarn charts/tarn ", -1)
	manifest, err := a.template(append(args, "--set", "api.enabled=true", "--set", "api.insecure=true")...)
	if err != nil {
		t.Fatalf("%v: %s", err, manifest)
	}
	var with []string
	for _, text := range strings.Split("\n"+manifest, "\n---\n")[1:] { // helm's own output stands before the first
		o := &struct {
			Kind     string
			Metadata metav1.ObjectMeta
			Spec     struct{ Template corev1.PodTemplateSpec }
		}{}
		if err := yaml.Unmarshal([]byte(text), o); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if o.Kind == "Namespace" && o.Metadata.Name == namespace[0] {
			t.Errorf("it makes namespace %s, which is there", o.Metadata.Name)
		}
		pod := o.Spec.Template.Spec
		if len(pod.Containers) == 0 {
			continue
		}
		with = append(with, o.Kind+"/"+o.Metadata.Name)
		if o.Metadata.Namespace != namespace[0] || !slices.Equal(pod.ImagePullSecrets, []corev1.LocalObjectReference{{Name: secret[0]}}) {
			t.Errorf("%s %s in namespace %s is pulled with %v, want Secret %s of %s", o.Kind, o.Metadata.Name, o.Metadata.Namespace, pod.ImagePullSecrets, secret[0], namespace[0])
		}
		if o.Metadata.Name == controller && !slices.Contains(pod.Containers[0].Args, "--scrub-pull-secret="+secret[0]) {
			t.Errorf("scrub pods are pulled without Secret %s: %q", secret[0], pod.Containers[0].Args)
		}
	}
	slices.Sort(with)
	if want := []string{"DaemonSet/tarn-node", "Deployment/tarn-api", "Deployment/tarn-controller"}; !slices.Equal(with, want) {
		t.Errorf("what runs pods is %q, want %q", with, want)
	}
}

// pageWords gives the first n words, or all, after the beginning of a command on a page.
func pageWords(t *testing.T, page, begin string, n int) []string {
	t.Helper()
	_, command, found := strings.Cut(page, "\n    "+begin)
	command, _, _ = strings.Cut(command, "\n")
	words := strings.Fields(strings.ReplaceAll(command, "'", ""))
	if !found || len(words) < max(n, 1) {
		t.Fatalf("the page has no command %q with words after it:\n%s", begin, page)
	}
	if n < 0 {
		return words
	}
	return words[:n]
}

// This cluster lacks what these values are for, or its version is supported, so they are only
// rendered.
func TestAddOnTheChartKnowsWhatThisClusterHasNot(t *testing.T) {
	a := needsAddOn(t)
	t.Parallel()
	manifest, err := a.rendered("metrics.serviceMonitor=true", "api.enabled=true", "api.insecure=true")
	if err != nil {
		t.Fatalf("%v: %s", err, manifest)
	}
	for _, part := range []string{"controller", "node", "api"} {
		if want := "kind: ServiceMonitor\nmetadata:\n  name: tarn-" + part + "\n"; !strings.Contains(manifest, want) {
			t.Errorf("it does not say %q:\n%s", want, manifest)
		}
	}
	if manifest, err = a.rendered(); err != nil || strings.Contains(manifest, "ServiceMonitor") {
		t.Errorf("unasked it needs the Prometheus operator: %v\n%s", err, manifest)
	}
	if out, err := a.template("--kube-version=1.31.9"); err == nil || !strings.Contains(out, ">=1.32") {
		t.Errorf("Kubernetes 1.31: %v, want a refusal that says what is needed: %s", err, out)
	}
	if out, err := a.template("--kube-version=1.32.0-eks.1"); err != nil {
		t.Errorf("Kubernetes 1.32, as a cloud calls it: %v: %s", err, out)
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
	// The server of a provisioner's volumes may run beside Tarn, and answers its clients.
	for _, part := range []string{"controller", "node", "api"} {
		if got := isolating(labels.Set{"app.kubernetes.io/name": "nfs-server", "app.kubernetes.io/component": part}); len(got) > 0 {
			t.Errorf("policies %q keep others from reaching a provisioner's pod whose component is %s", got, part)
		}
	}
}
