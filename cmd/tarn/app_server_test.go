//go:build integration

package main

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/api"
	appspec "tarn.dev/tarn/internal/app/spec"
	"tarn.dev/tarn/internal/cli"
	"tarn.dev/tarn/internal/testkit"
)

// twoWays is an API server, a server of the REST API in front of it, and the command line of a user
// with all rights on both.
type twoWays struct {
	t         *testing.T
	client    client.WithWatch
	server    *httptest.Server
	authority string
	// name is the name of the namespace and of the class.
	name string
	// token is a kubeconfig that logs in by token; certificate is one that does not.
	token, certificate string
}

func newTwoWays(t *testing.T) *twoWays {
	t.Helper()
	config := testkit.APIServer(t)
	w := &twoWays{t: t, client: testkit.Client(t, config), name: fmt.Sprintf("two-ways-%05x", rand.IntN(1<<20))}
	w.must(w.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.name}}))
	server, err := api.New(api.Options{Client: w.client, As: actingAs(config, w.client), Log: logr.Discard(), Metrics: prometheus.NewRegistry()})
	w.must(err)
	w.server = httptest.NewUnstartedServer(server)
	w.server.Config.ErrorLog = log.New(io.Discard, "", 0) // one of the callers does not trust it
	w.server.StartTLS()
	t.Cleanup(w.server.Close)
	w.authority = filepath.Join(t.TempDir(), "ca.crt")
	w.must(os.WriteFile(w.authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.server.Certificate().Raw}), 0o600))
	w.certificate = w.kubeconfig(config)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.name, Name: w.name}}
	w.must(w.client.Create(t.Context(), account))
	w.must(w.client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account.Name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: account.Namespace, Name: account.Name}},
	}))
	testkit.Allowed(t, w.client, authorizationv1.SubjectAccessReviewSpec{
		User:               "system:serviceaccount:" + account.Namespace + ":" + account.Name,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "*", Group: "*", Resource: "*"},
	})
	request := &authenticationv1.TokenRequest{}
	w.must(w.client.SubResource("token").Create(t.Context(), account, request))
	byToken := rest.AnonymousClientConfig(config)
	byToken.BearerToken = request.Status.Token
	w.token = w.kubeconfig(byToken)
	return w
}

func (w *twoWays) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *twoWays) kubeconfig(config *rest.Config) string {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), "kubeconfig")
	w.must(clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: config.Host, CertificateAuthority: config.CAFile, CertificateAuthorityData: config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {ClientCertificate: config.CertFile, ClientCertificateData: config.CertData,
			ClientKey: config.KeyFile, ClientKeyData: config.KeyData, Token: config.BearerToken}},
		Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u", Namespace: w.name}}, CurrentContext: "x",
	}, path))
	return path
}

// run runs the command line and returns its output and its exit status.
func (w *twoWays) run(args ...string) (said string, status int) {
	var out bytes.Buffer
	root := cli.NewRoot()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&out)
	status = cli.ExitStatus(root.ExecuteContext(w.t.Context()), &out)
	return out.String(), status
}

func (w *twoWays) file(text string) string {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), "paas.toml")
	w.must(os.WriteFile(path, []byte(strings.ReplaceAll(text, "CLASS", w.name)), 0o600))
	return path
}

// twoWaysFile is a paas.toml with a volume of class CLASS.
const twoWaysFile = "[app]\nname = \"two-ways\"\nimage = \"a:1\"\n\n[[volumes]]\nname = \"data\"\nmountPath = \"/data\"\nsize = \"10Gi\"\nstorageClass = \"CLASS\"\n"

func TestKubernetesAndTheServerAnswerTheCommandLineAlike(t *testing.T) {
	w := newTwoWays(t)
	class := testkit.Class(w.name)
	class.AllowVolumeExpansion = ptr.To(false)
	w.must(w.client.Create(t.Context(), class))
	good, many := w.file(twoWaysFile), w.file(strings.Replace(twoWaysFile, "image", "replicas = 2\nimage", 1))
	bad := w.file("[app]\nimage = 3\nname = \"two-ways\"\nport = 0\n\n[[volumes]]\nname = \"data\"\nsize = \"1Ki\"\nmountPath = \"/proc\"\n")
	alike := func(wantStatus int, want string, args ...string) {
		t.Helper()
		straight, status := w.run(append(args, "--kubeconfig", w.token)...)
		over, statusOver := w.run(append(args, "--kubeconfig", w.token, "--server", w.server.URL, "--server-ca", w.authority)...)
		if straight != over || status != statusOver || status != wantStatus || !strings.Contains(straight, want) {
			t.Errorf("tarn %s: want %q and exit status %d\nKubernetes, %d:\n%s\nthe server, %d:\n%s", strings.Join(args, " "), want, wantStatus, status, straight, statusOver, over)
		}
	}
	alike(1, "app 'two-ways' not found", "app", "show", "two-ways")
	alike(0, "create  data", "app", "plan", "--file", good)
	alike(1, "nothing is changed", "app", "plan", "--file", many)
	alike(1, "ReadWriteOnce (max 1 replica)", "app", "deploy", "--file", many)
	alike(1, ":9:1: ", "app", "deploy", "--file", bad)
	if said, status := w.run("app", "deploy", "--wait=false", "--file", good, "--kubeconfig", w.token, "--server", w.server.URL, "--server-ca", w.authority); status != 0 {
		t.Fatalf("deploying by the server: exit status %d\n%s", status, said)
	}
	claim := testkit.Claim(w.name, appspec.ClaimName("two-ways", "data"), "", w.name, func(c *corev1.PersistentVolumeClaim) {
		c.Labels = map[string]string{tarnv1.LabelApp: "two-ways", tarnv1.LabelAppVolume: "data"}
		c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("10Gi")
	})
	w.must(w.client.Create(t.Context(), claim))
	claim.Status.Phase, claim.Status.Capacity = corev1.ClaimBound, claim.Spec.Resources.Requests
	w.must(w.client.Status().Update(t.Context(), claim))
	alike(0, "two-ways", "app", "list", "--output", "json")
	alike(0, "paas-app-two-ways-data", "app", "show", "two-ways")
	alike(0, "two-ways", "volume", "list", "two-ways")
	alike(1, "cannot scale to 3 replicas: volume 'data' is ReadWriteOnce (max 1 replica). Re-create the volume with accessMode 'ReadWriteMany' to scale out.", "app", "scale", "two-ways", "3")
	alike(1, "replicas must be between", "app", "scale", "two-ways", "2000")
	alike(1, "storage class '"+w.name+"' does not allow expansion", "volume", "resize", "two-ways", "data", "20")
	alike(1, "size must be strictly greater than current size (no shrink)", "volume", "resize", "two-ways", "data", "1")
	alike(1, "new_size_gi must be between 1 and 1000", "volume", "resize", "two-ways", "data", "1001")
	alike(1, "volume 'nope' not found on app 'two-ways'", "volume", "resize", "two-ways", "nope", "20")
	alike(3, "timeout after 100ms: app two-ways is Deploying", "app", "deploy", "--file", good, "--timeout", "100ms")
	alike(1, "nothing was changed; to do it, add --yes", "app", "delete", "two-ways")
	w.refusals()
}

// refusals checks the errors of servers that cannot be called.
func (w *twoWays) refusals() {
	w.t.Helper()
	for _, c := range []struct {
		want string
		args []string
	}{
		{"the kubeconfig logs in by certificate; set TARN_TOKEN", []string{"--kubeconfig", w.certificate, "--server", w.server.URL}},
		{"certificate signed by unknown authority", []string{"--kubeconfig", w.token, "--server", w.server.URL}},
		{"contains no PEM certificate", []string{"--kubeconfig", w.token, "--server", w.server.URL, "--server-ca", w.token}},
		{"would send your token unencrypted; use https", []string{"--kubeconfig", w.token, "--server", "http://tarn.example.com"}},
		{"is not a URL; write it as https://", []string{"--kubeconfig", w.token, "--server", "tarn.example.com"}},
		{"there is no token for " + w.server.URL, []string{"--kubeconfig", "/nonexistent", "--server", w.server.URL}},
	} {
		if said, status := w.run(append([]string{"app", "list"}, c.args...)...); status != 1 || !strings.Contains(said, c.want) {
			w.t.Errorf("tarn app list %s: exit status %d, want 1 and %q in\n%s", strings.Join(c.args, " "), status, c.want, said)
		}
	}
}
