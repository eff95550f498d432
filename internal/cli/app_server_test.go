package cli

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func TestATokenIsSentNowhereButToTheServer(t *testing.T) {
	t.Setenv(tokenVariable, "secret")
	got := make(chan string, 1)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization")
		w.WriteHeader(http.StatusNotFound)
	}))
	defer elsewhere.Close()
	server := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer server.Close()
	out, said, status := run(t, "", "app", "list", "--namespace", "default", "--server", server.URL)
	if status != 1 || !strings.Contains(said, "307 Temporary Redirect") || out != "" {
		t.Errorf("exit status %d:\n%s%s", status, out, said)
	}
	select {
	case token := <-got:
		t.Errorf("another server was sent %q", token)
	default:
	}
}

// authorityOf writes a kubeconfig with a server's certificate authority and a token.
func authorityOf(t *testing.T, server *httptest.Server) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: "https://192.0.2.1:6443", CertificateAuthorityData: authority}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {Token: "secret"}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheKubeconfigSaysWhichServerOnThisMachineToTrust(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"data":[]}`) }))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // one of the callers does not trust the certificate
	server.StartTLS()
	defer server.Close()
	kubeconfig := authorityOf(t, server)
	for _, c := range []struct {
		what, server, kubeconfig, token string
		status                          int
		want                            string
	}{
		{"with the token of the kubeconfig", server.URL, kubeconfig, "", 0, "[]"},
		{"with another token", server.URL, kubeconfig, "other", 0, "[]"},
		{"without a kubeconfig", server.URL, "/nonexistent", "other", 1, "certificate signed by unknown authority; give its certificate authority with --server-ca"},
		{"without TLS", strings.Replace(server.URL, "https", "http", 1), kubeconfig, "", 1, "accepts TLS only: call it as " + server.URL},
	} {
		t.Setenv(tokenVariable, c.token)
		out, said, status := run(t, "", "app", "list", "--namespace", "default", "--output", "json", "--kubeconfig", c.kubeconfig, "--server", c.server)
		if status != c.status || !strings.Contains(out+said, c.want) {
			t.Errorf("%s: exit status %d, want %d and %q in\n%s%s", c.what, status, c.status, c.want, out, said)
		}
	}
	flags := serverFlags{}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if trust, err := flags.trust("tarn.example.com", config); err != nil || trust.CAData != nil {
		t.Errorf("a server elsewhere is trusted by %s (%v)", trust.CAData, err)
	}
}
