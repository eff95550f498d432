package cli

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"tarn.dev/tarn/internal/api/client"
)

// Environment variables that name the server of applications.
const (
	serverVariable = "TARN_SERVER"
	tokenVariable  = "TARN_TOKEN"
)

// serverFlags name a server of `tarn api`.
type serverFlags struct {
	// url is empty where the calls are sent to Kubernetes.
	url string
	// authority is a file with the certificates that sign the server's own. It is empty for the
	// usual ones: see trust.
	authority string
}

func (f *serverFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.url, "server", os.Getenv(serverVariable), "URL of a server of tarn api to call instead of Kubernetes; the default is $"+serverVariable)
	flags.Lookup("server").DefValue = "" // the help of one machine is that of all
	flags.StringVar(&f.authority, "server-ca", "", "file with the certificate authority of --server; without it that of the kubeconfig if the server is on this machine, else those the machine trusts")
}

// connect makes a client of the server. The token is $TARN_TOKEN, else that of the kubeconfig. A
// kubeconfig that logs in by certificate has none.
func (f *serverFlags) connect(to connection) (*client.Client, error) {
	address, err := url.Parse(f.url)
	if err != nil || address.Host == "" {
		return nil, fmt.Errorf("--server %q is not a URL; write it as https://tarn.example.com", f.url)
	}
	if address.Scheme == "http" && !loopback(address.Hostname()) {
		return nil, fmt.Errorf("--server %q would send your token unencrypted; use https", f.url)
	}
	config, err := to.config()
	login := &rest.Config{BearerToken: os.Getenv(tokenVariable)}
	if login.BearerToken == "" {
		if err != nil {
			return nil, fmt.Errorf("there is no token for %s: %w; or set %s", f.url, err, tokenVariable)
		}
		if login = tokenOf(config); login == nil {
			return nil, fmt.Errorf("no token to call %s with: the kubeconfig logs in by certificate; set %s, for example to the output of `kubectl create token ACCOUNT --duration 8h`", f.url, tokenVariable)
		}
	}
	login.UserAgent = "tarn/" + Version
	if login.TLSClientConfig, err = f.trust(address.Hostname(), config); err != nil {
		return nil, err
	}
	carry, err := rest.TransportFor(login)
	if err != nil {
		return nil, fmt.Errorf("calling %s: %w", f.url, err)
	}
	// A redirect would send the token to another address.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client.New(client.Options{URL: f.url, HTTP: &http.Client{Transport: carry, CheckRedirect: stay}})
}

// tokenOf returns the part of a configuration that logs in by token, nil if there is none.
func tokenOf(config *rest.Config) *rest.Config {
	if config.BearerToken == "" && config.BearerTokenFile == "" && config.ExecProvider == nil {
		return nil
	}
	return &rest.Config{BearerToken: config.BearerToken, BearerTokenFile: config.BearerTokenFile, ExecProvider: config.ExecProvider}
}

// trust returns the certificate authority that must have signed the server's certificate. It is
// that of --server-ca. Without that flag, a server on this machine may use the authority of the
// kubeconfig, because the embedded cluster has one authority for both. All other servers are
// checked against the authorities of the machine.
func (f *serverFlags) trust(host string, config *rest.Config) (rest.TLSClientConfig, error) {
	switch {
	case f.authority != "":
		text, err := os.ReadFile(f.authority)
		if err != nil {
			return rest.TLSClientConfig{}, fmt.Errorf("--server-ca: %w", err)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(text) {
			return rest.TLSClientConfig{}, errors.New("--server-ca: " + f.authority + " contains no PEM certificate")
		}
		return rest.TLSClientConfig{CAData: text}, nil
	case config != nil && loopback(host):
		return rest.TLSClientConfig{CAData: config.CAData, CAFile: config.CAFile}, nil
	}
	return rest.TLSClientConfig{}, nil
}

// loopback says whether a host is this machine.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
