package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestIssuedCertificatesAreGoodForWhatTheyWereIssued(t *testing.T) {
	dir := t.TempDir()
	ca, err := OpenAuthority(dir, "ca", now)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue(dir, "server", Identity{CommonName: "s", IPs: []net.IP{net.ParseIP("10.1.2.3")}, Server: true}, now)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatalf("key and certificate do not belong together: %v", err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Certificate())
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Errorf("usage %v: %v", usage, err)
		}
	}
	if err := leaf.VerifyHostname("10.1.2.3"); err != nil {
		t.Error(err)
	}
	clientCert, clientKey, err := ca.Issue(dir, "client", Identity{CommonName: "c", Organizations: []string{"g"}}, now)
	if err != nil {
		t.Fatal(err)
	}
	if pair, err = tls.X509KeyPair(clientCert, clientKey); err != nil {
		t.Fatal(err)
	}
	if leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err == nil {
		t.Error("a client's certificate can be used to serve")
	}
}

func TestAnAuthorityIsKeptUntilItIsAboutToExpire(t *testing.T) {
	dir := t.TempDir()
	open := func(at time.Time) []byte {
		a, err := OpenAuthority(dir, "ca", at)
		if err != nil {
			t.Fatal(err)
		}
		return a.Certificate()
	}
	first := open(now)
	if !bytes.Equal(first, open(now.Add(time.Hour))) {
		t.Error("the authority was replaced after an hour")
	}
	if bytes.Equal(first, open(now.Add(validity-renewBefore+time.Hour))) {
		t.Error("the authority was kept although it is about to expire")
	}
}

func TestKeysAndKubeconfigsAreReadableByTheirOwnerAlone(t *testing.T) {
	dir := t.TempDir()
	ca, err := OpenAuthority(dir, "ca", now)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue(dir, "admin", Identity{CommonName: "admin"}, now)
	if err != nil {
		t.Fatal(err)
	}
	if err := ServiceAccountKey(dir); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "kubeconfig")
	if err := (Kubeconfig{Cluster: "x", Server: "https://h:1", Authority: ca.Certificate(), Cert: cert, Key: key}).Write(config); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{config, filepath.Join(dir, "ca.key"), filepath.Join(dir, "admin.key"), filepath.Join(dir, "service-account.key")} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", path, info.Mode().Perm())
		}
	}
}

func TestTheServiceAccountKeyStaysSoThatTokensStayGood(t *testing.T) {
	dir := t.TempDir()
	var keys [2][]byte
	for i := range keys {
		if err := ServiceAccountKey(dir); err != nil {
			t.Fatal(err)
		}
		var err error
		if keys[i], err = os.ReadFile(filepath.Join(dir, "service-account.key")); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(keys[0], keys[1]) {
		t.Error("a second call replaced the key")
	}
}
