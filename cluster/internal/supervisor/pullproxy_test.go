package supervisor

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"
)

// proxied requests a URL through a pull proxy that serves the given node.
func proxied(t *testing.T, node, target string) (int, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go servePullProxy(l, netip.PrefixFrom(netip.MustParseAddr(node), 32))
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: l.Addr().String()})}}
	answer, err := client.Get(target)
	if err != nil {
		return 0, err
	}
	answer.Body.Close()
	return answer.StatusCode, nil
}

func TestOnlyTheNodeIsLetOut(t *testing.T) {
	if got, err := proxied(t, "10.1.2.3", "http://198.51.100.1/"); err != nil || got != http.StatusForbidden {
		t.Errorf("somebody else than the node got %d, %v", got, err)
	}
}

func TestTheMachinesOwnLoopbackInterfaceIsNotOutside(t *testing.T) {
	secret, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	go http.Serve(secret, http.NotFoundHandler()) //nolint:errcheck // ends with the test
	port := secret.Addr().(*net.TCPAddr).Port
	for _, host := range []string{"127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]"} {
		target := (&url.URL{Scheme: "http", Host: host + ":" + strconv.Itoa(port), Path: "/"}).String()
		if got, err := proxied(t, "127.0.0.1", target); err != nil || got != http.StatusBadGateway {
			t.Errorf("%s answered %d, %v; want it refused", target, got, err)
		}
		secure := strings.Replace(target, "http:", "https:", 1) // by a tunnel
		if _, err := proxied(t, "127.0.0.1", secure); err == nil || !strings.Contains(err.Error(), "Bad Gateway") {
			t.Errorf("a tunnel to %s: %v; want it refused", secure, err)
		}
	}
}
