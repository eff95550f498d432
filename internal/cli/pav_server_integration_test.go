//go:build integration

package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// dynamic is a valid provisioner with everything that a schema and the policy check.
const dynamic = `apiVersion: pav.albertofaria.github.io/v1alpha1
kind: PavProvisioner
metadata:
  name: parity
spec:
  provisioningModes: [Dynamic]
  claimAccess: AnyNamespace
  volumeValidation:
    volumeModes: [Filesystem]
    accessModes: [ReadWriteOnce]
    minCapacity: 1
    maxCapacity: 1Ti
  volumeCreation:
    handle: x
    capacity: "{{ requestedMinCapacity }}"
  volumeDeletion: {}
  volumeRecycling:
    methods: [Zero]
    podTemplate: {spec: {containers: [{name: a, image: b}]}}
  volumeStaging:
    podTemplate: {metadata: {}, spec: {restartPolicy: Never, containers: [{name: a, image: b}]}}
`

// kubeconfig writes a kubeconfig for an API server.
func kubeconfig(t *testing.T, config *rest.Config) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: config.Host, CertificateAuthority: config.CAFile, CertificateAuthorityData: config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {ClientCertificate: config.CertFile, ClientCertificateData: config.CertData,
			ClientKey: config.KeyFile, ClientKeyData: config.KeyData, Token: config.BearerToken}},
		Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLintRefusesWhatTheAPIServerRefuses(t *testing.T) {
	config := kubeconfig(t, testkit.APIServer(t))
	for name, change := range map[string][2]string{
		"nothing":                  {"", ""},
		"name":                     {"name: parity", "name: par.ity"},
		"capital":                  {"name: parity", "name: Parity"},
		"no mode":                  {"[Dynamic]", "[]"},
		"mode":                     {"[Dynamic]", "[Dynamc]"},
		"mode twice":               {"[Dynamic]", "[Dynamic, Dynamic]"},
		"modes are text":           {"[Dynamic]", "Dynamic"},
		"static with creation":     {"[Dynamic]", "[Static]"},
		"claim access":             {"AnyNamespace", "Any"},
		"unknown section":          {"volumeDeletion: {}", "volumeDeleting: {}"},
		"section is a number":      {"volumeDeletion: {}", "volumeDeletion: 3"},
		"unknown field":            {"handle: x", "handel: x"},
		"handle is a number":       {"handle: x", "handle: 3"},
		"capacity is a list":       {`capacity: "{{ requestedMinCapacity }}"`, "capacity: [1]"},
		"capacity is negative":     {"minCapacity: 1", "minCapacity: -1"},
		"volume mode":              {"[Filesystem]", "[Filesystm]"},
		"no volume mode":           {"[Filesystem]", "[]"},
		"access modes are a map":   {"[ReadWriteOnce]", "{a: b}"},
		"no staging":               {"volumeStaging:", "volumeUnstaging:"},
		"staging without pod":      {"podTemplate: {metadata: {}, spec: {restartPolicy: Never, containers: [{name: a, image: b}]}}", "{}"},
		"field of a pod template":  {"metadata: {}, spec", "metdata: {}, spec"},
		"metadata is a list":       {"metadata: {}, spec", "metadata: [], spec"},
		"unknown method":           {"[Zero]", "[Shred]"},
		"Recreate is no method":    {"[Zero]", "[Recreate]"},
		"no method":                {"[Zero]", "[]"},
		"templates for methods":    {"[Zero]", `"{{ 1 }}"`},
		"a template for a method":  {"[Zero]", `["{{ 1 }}"]`},
		"methods are a map":        {"[Zero]", "{a: b}"},
		"recycling without pod":    {"podTemplate: {spec: {containers", "pod: {spec: {containers"},
		"recycling without field":  {"    podTemplate: {spec: {containers: [{name: a, image: b}]}}\n", ""},
		"template for a section":   {"volumeDeletion: {}", `volumeDeletion: "{{ 1 }}"`},
		"templates for lists":      {"[ReadWriteOnce]", `"{{ 1 }}"`},
		"node capacity":            {"[Dynamic]", "[Dynamic]\n  topology: Node\n  nodeCapacity: {path: /x, reserve: 2%}"},
		"node capacity anywhere":   {"[Dynamic]", "[Dynamic]\n  nodeCapacity: {path: /x}"},
		"field of node capacity":   {"[Dynamic]", "[Dynamic]\n  topology: Node\n  nodeCapacity: {path: /x, reserv: 2%}"},
		"node capacity of no path": {"[Dynamic]", "[Dynamic]\n  topology: Node\n  nodeCapacity: {reserve: 2%}"},
		"node capacity is text":    {"[Dynamic]", "[Dynamic]\n  topology: Node\n  nodeCapacity: /x"},
		"reserve is a number":      {"[Dynamic]", "[Dynamic]\n  topology: Node\n  nodeCapacity: {path: /x, reserve: 2}"},
		"field of the object":      {"spec:", "spce: {}\nspec:"},
		"field of the metadata":    {"name: parity", "name: parity\n  lables: {}"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(dynamic, change[0], change[1], 1)
			if name != "nothing" && text == dynamic {
				t.Fatal("nothing was changed")
			}
			alone, _, _ := run(t, text, "pav", "lint", "-")
			both, _, _ := run(t, text, "pav", "lint", "--server", "--kubeconfig", config, "-")
			refused := strings.Contains(both, "the API server rejects it")
			if found := strings.Contains(alone, ": error: "); found != refused {
				t.Errorf("lint refuses it: %t, the API server: %t\n%s", found, refused, both)
			}
		})
	}
}

func TestLintAsksTheClusterAtHandAndGoesWithoutIt(t *testing.T) {
	config := testkit.APIServer(t)
	c := testkit.Client(t, config)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "default"}}
	if err := c.Create(t.Context(), account); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	silent := rest.CopyConfig(config)
	silent.Host = "https://127.0.0.1:1"
	nobody := &rest.Config{Host: config.Host, TLSClientConfig: rest.TLSClientConfig{CAFile: config.CAFile, CAData: config.CAData}, BearerToken: "of nobody"}
	reachable, unreachable := kubeconfig(t, config), kubeconfig(t, silent)
	wrong := strings.Replace(dynamic, "[{name: a, image: b}]}}\n", "[{name: a, image: b, imagePullPolicy: Sometimes}]}}\n", 1)
	for name, test := range map[string]struct {
		text, config, server string
		wantStatus           int
		wantOut, wantSaid    string
	}{
		"a mistake that the server alone sees": {wrong, reachable, "auto", 1, `"Sometimes"`, "the API server " + config.Host + " checks this too"},
		"none":                                 {dynamic, reachable, "auto", 0, "0 errors", "the API server " + config.Host + " checks this too"},
		"left alone":                           {wrong, reachable, "never", 0, "0 errors", ""},
		"that does not answer":                 {wrong, unreachable, "auto", 0, "0 errors", "no API server checked this; the request to https://127.0.0.1:1 failed: "},
		"that has to":                          {dynamic, unreachable, "always", 1, "did not check it", ""},
		"that does not know who asks":          {dynamic, kubeconfig(t, nobody), "auto", 0, "0 errors", "no API server checked this; the request to " + config.Host + " failed: "},
	} {
		t.Run(name, func(t *testing.T) {
			out, said, status := run(t, test.text, "pav", "lint", "--server="+test.server, "--kubeconfig", test.config, "-")
			if status != test.wantStatus || !strings.Contains(out, test.wantOut) || !strings.Contains(said, test.wantSaid) || test.wantSaid == "" && said != "" {
				t.Errorf("exit status %d, want %d; standard error %q, want %q; want %q in\n%s", status, test.wantStatus, said, test.wantSaid, test.wantOut, out)
			}
		})
	}
}

func TestLintChecksAProvisionerThatIsThereAlready(t *testing.T) {
	config := testkit.APIServer(t)
	file := filepath.Join(t.TempDir(), "provisioner.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(dynamic, "parity", "parity-there", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, m, err := readProvisioner(newPavLintCommand(), file, "")
	if err != nil {
		t.Fatal(err)
	}
	server, err := newLintServer(connection{kubeconfig: kubeconfig(t, config)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if found := server.check(t.Context(), m); len(found) > 0 {
		t.Fatalf("before: %v", found)
	}
	c := testkit.Client(t, config)
	p := testkit.Provisioner("parity-there")
	p.UID = ""
	if err := c.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if found := server.check(t.Context(), m); len(found) > 0 {
		t.Errorf("after: %v", found)
	}
	m.json = bytes.Replace(m.json, []byte(`"spec":{`), []byte(`"spec":{"nope":true,`), 1)
	if found := server.check(t.Context(), m); len(found) != 1 || !strings.Contains(found[0].Message, "nope") {
		t.Errorf("with a field it does not have: %v", found)
	}
}

func TestLintHasTheAPIServerCheckThePods(t *testing.T) {
	config := testkit.APIServer(t)
	c := testkit.Client(t, config)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}}
	if err := c.Create(t.Context(), account); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	const staging = "containers: [{name: a, image: b}]}}\n"
	for _, test := range []struct {
		name string
		// from is the text in the provisioner to replace by to.
		from, to string
		// as is the user who calls; empty for an administrator.
		as        string
		wantLevel level
		// wantField is the end of the finding's path, wantMessage a part of it. Both are empty for
		// no finding.
		wantField, wantMessage string
	}{
		{"nothing", "", "", "", "", "", ""},
		{"a value of the staging pod", staging, "containers: [{name: a, image: b, imagePullPolicy: Sometimes}]}}\n", "",
			levelError, "spec.volumeStaging.podTemplate.spec.containers[0].imagePullPolicy", `"Sometimes"`},
		{"a value of the creation pod, by a template", "    handle: x\n", "    handle: x\n    podTemplate: {spec: {containers: [{name: a, image: b, ports: [{containerPort: '{{ requestedMinCapacity }}'}]}]}}\n", "",
			levelNote, "spec.volumeCreation.podTemplate", "the API server did not check its pod"},
		{"two values of one pod", staging, "containers: [{name: a, image: b, terminationMessagePolicy: Never}], dnsPolicy: Mine}}\n", "",
			levelError, "spec.volumeStaging.podTemplate.spec.dnsPolicy", `"Mine"`},
		{"a namespace that is not there yet", "metadata: {}", "metadata: {namespace: not-there}", "",
			levelNote, "spec.volumeStaging.podTemplate", `no namespace "not-there" yet`},
		{"by somebody who may not create pods", staging, "containers: [{name: a, image: b, imagePullPolicy: Sometimes}]}}\n", "somebody",
			levelNote, ".podTemplate", `the pods in namespace "tarn-volumes", in which you may not create any`},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := dynamic
			if test.from != "" {
				at := strings.LastIndex(dynamic, test.from)
				if at < 0 {
					t.Fatalf("there is no %q", test.from)
				}
				text = dynamic[:at] + test.to + dynamic[at+len(test.from):]
			}
			file := filepath.Join(t.TempDir(), "provisioner.yaml")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			lint := newPavLintCommand()
			lint.Flags().StringSlice(stepNamespacesFlag, []string{tarnv1.StepNamespace, "*"}, "")
			p, m, err := readProvisioner(lint, file, "")
			if err != nil {
				t.Fatal(err)
			}
			asking := rest.CopyConfig(config)
			asking.Impersonate.UserName = test.as
			live, err := client.New(asking, client.Options{Scheme: kube.Scheme()})
			if err != nil {
				t.Fatal(err)
			}
			found := (&lintServer{client: client.WithFieldValidation(live, "Strict")}).checkPods(t.Context(), p, m, sample{})
			if test.wantMessage == "" {
				if len(found) > 0 {
					t.Errorf("found %v", found)
				}
				return
			}
			right := false
			for _, f := range found {
				right = right || f.Level == test.wantLevel && strings.HasSuffix(f.Field, test.wantField) && strings.Contains(f.Message, test.wantMessage)
			}
			if !right || test.wantLevel != levelError && len(found.only(levelError)) > 0 {
				t.Errorf("found %v, want a %s about %s with %q", found, test.wantLevel, test.wantField, test.wantMessage)
			}
		})
	}
	pods := &corev1.PodList{}
	if err := c.List(t.Context(), pods); err != nil || len(pods.Items) > 0 {
		t.Errorf("there are pods %v (%v), want none", pods.Items, err)
	}
}
