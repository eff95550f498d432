package api

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
)

func TestTokensAreNotShownOnTheWay(t *testing.T) {
	for _, c := range []struct {
		listening Listening
		want      string
	}{
		{Listening{Address: "127.0.0.1:8084"}, ""},
		{Listening{Address: "[::1]:8084"}, ""},
		{Listening{Address: "localhost:0"}, ""},
		{Listening{Address: ":8084", CertFile: "a", KeyFile: "b"}, ""},
		{Listening{Address: ":8084", Insecure: true}, ""},
		{Listening{Address: ":8084"}, "--insecure"},
		{Listening{Address: "0.0.0.0:8084"}, "--tls-cert-file"},
		{Listening{Address: "10.1.2.3:8084"}, "--insecure"},
		{Listening{Address: "localhost"}, "is no host:port"},
		{Listening{Address: "127.0.0.1:1", CertFile: "a"}, "go together"},
		{Listening{Address: "127.0.0.1:1", KeyFile: "a"}, "go together"},
	} {
		err := c.listening.Check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.listening, err, c.want)
		}
	}
}

// serving starts a server on a free port until the test ends, and returns its address.
func serving(t *testing.T, l Listening) string {
	t.Helper()
	return answering(t, alone(t), l)
}

func answering(t *testing.T, s *Server, l Listening) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l.Address = "127.0.0.1:0"
	listener, err := s.listen(ctx, l)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.ServeOn(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with: %v", err)
		}
		if s.Ready(nil) == nil {
			t.Error("a server that has ended calls itself ready")
		}
	})
	return listener.Addr().String()
}

// certify writes a certificate for 127.0.0.1, and returns a pool that trusts it.
func certify(t *testing.T) (l Listening, trust *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	l = Listening{CertFile: filepath.Join(t.TempDir(), "crt"), KeyFile: filepath.Join(t.TempDir(), "key")}
	for path, block := range map[string]*pem.Block{l.CertFile: {Type: "CERTIFICATE", Bytes: certificate}, l.KeyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(certificate)
	if err != nil {
		t.Fatal(err)
	}
	trust = x509.NewCertPool()
	trust.AddCert(parsed)
	return l, trust
}

func TestTLSIsServedWithTheCertificateGiven(t *testing.T) {
	l, trust := certify(t)
	address := serving(t, l)
	for _, http2 := range []bool{false, true} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trust}, ForceAttemptHTTP2: http2}
		response, err := (&http.Client{Transport: transport}).Get("https://" + address + "/openapi.json")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		transport.CloseIdleConnections()
		if response.StatusCode != http.StatusOK || (response.ProtoMajor == 2) != http2 {
			t.Errorf("answered %s by %s", response.Status, response.Proto)
		}
	}
	if response, err := http.Get("http://" + address + "/openapi.json"); err == nil {
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			t.Error("plain HTTP is served beside TLS")
		}
	}
	if _, err := alone(t).listen(context.Background(), Listening{Address: "127.0.0.1:0", CertFile: "/nowhere", KeyFile: "/nowhere"}); err == nil {
		t.Error("a certificate that is not there is no error")
	}
}

func TestOneWhoNeverEndsTheHeaderIsHungUpOn(t *testing.T) {
	t.Parallel()
	caller, err := net.Dial("tcp", serving(t, Listening{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = caller.Close() })
	if _, err := io.WriteString(caller, "GET /v1/apps HTTP/1.1\r\nHost: x\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, caller); err != nil { // ends when the server hangs up
		t.Errorf("the connection ended with %v", err)
	}
}

func TestOneWhoNeverEndsTheBodyIsToldSo(t *testing.T) {
	t.Parallel()
	s, err := New(Options{Client: empty{}, As: asNobody, Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	caller, err := net.Dial("tcp", answering(t, s, Listening{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = caller.Close() })
	if _, err := io.WriteString(caller, "POST /v1/apps/shop/deploy HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token\r\nContent-Length: 100\r\n\r\n[app]\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(caller), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	text, err := io.ReadAll(response.Body)
	if want := `{"error":{"code":"timeout","message":"the body arrived too slowly: send it within ten seconds"}}`; err != nil || response.StatusCode != http.StatusRequestTimeout || strings.TrimSpace(string(text)) != want {
		t.Errorf("answered %s %s, %v; want %s", response.Status, text, err, want)
	}
}

func TestAHeaderThatIsTooLongIsNotRead(t *testing.T) {
	caller, err := net.Dial("tcp", serving(t, Listening{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = caller.Close() })
	_, _ = io.WriteString(caller, "GET /docs HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 64<<10)+"\r\n\r\n") // the server may hang up meanwhile
	response, err := http.ReadResponse(bufio.NewReader(caller), nil)
	if err == nil {
		response.Body.Close()
		if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("answered %s", response.Status)
		}
	}
}
