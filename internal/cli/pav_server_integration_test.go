//go:build integration

package cli

import (
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
		"nothing":                 {"", ""},
		"name":                    {"name: parity", "name: par.ity"},
		"capital":                 {"name: parity", "name: Parity"},
		"no mode":                 {"[Dynamic]", "[]"},
		"mode":                    {"[Dynamic]", "[Dynamc]"},
		"mode twice":              {"[Dynamic]", "[Dynamic, Dynamic]"},
		"modes are text":          {"[Dynamic]", "Dynamic"},
		"static with creation":    {"[Dynamic]", "[Static]"},
		"claim access":            {"AnyNamespace", "Any"},
		"unknown section":         {"volumeDeletion: {}", "volumeDeleting: {}"},
		"section is a number":     {"volumeDeletion: {}", "volumeDeletion: 3"},
		"unknown field":           {"handle: x", "handel: x"},
		"handle is a number":      {"handle: x", "handle: 3"},
		"capacity is a list":      {`capacity: "{{ requestedMinCapacity }}"`, "capacity: [1]"},
		"capacity is negative":    {"minCapacity: 1", "minCapacity: -1"},
		"volume mode":             {"[Filesystem]", "[Filesystm]"},
		"no volume mode":          {"[Filesystem]", "[]"},
		"access modes are a map":  {"[ReadWriteOnce]", "{a: b}"},
		"no staging":              {"volumeStaging:", "volumeUnstaging:"},
		"staging without pod":     {"podTemplate: {metadata: {}, spec: {restartPolicy: Never, containers: [{name: a, image: b}]}}", "{}"},
		"field of a pod template": {"metadata: {}, spec", "metdata: {}, spec"},
		"metadata is a list":      {"metadata: {}, spec", "metadata: [], spec"},
		"unknown method":          {"[Zero]", "[Shred]"},
		"Recreate is no method":   {"[Zero]", "[Recreate]"},
		"no method":               {"[Zero]", "[]"},
		"templates for methods":   {"[Zero]", `"{{ 1 }}"`},
		"a template for a method": {"[Zero]", `["{{ 1 }}"]`},
		"methods are a map":       {"[Zero]", "{a: b}"},
		"recycling without pod":   {"podTemplate: {spec: {containers", "pod: {spec: {containers"},
		"recycling without field": {"    podTemplate: {spec: {containers: [{name: a, image: b}]}}\n", ""},
		"template for a section":  {"volumeDeletion: {}", `volumeDeletion: "{{ 1 }}"`},
		"templates for lists":     {"[ReadWriteOnce]", `"{{ 1 }}"`},
		"field of the object":     {"spec:", "spce: {}\nspec:"},
		"field of the metadata":   {"name: parity", "name: parity\n  lables: {}"},
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
	m.object["spec"].(map[string]any)["nope"] = true
	if found := server.check(t.Context(), m); len(found) != 1 || !strings.Contains(found[0].Message, "nope") {
		t.Errorf("with a field it does not have: %v", found)
	}
}
