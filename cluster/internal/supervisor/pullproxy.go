package supervisor

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"syscall"
	"time"
)

// outside connects to any address but this machine's own loopback interface. The node must not
// reach a service that listens only there.
var outside = &net.Dialer{
	Timeout: 10 * time.Second,
	Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil || to.Addr().Unmap().IsLoopback() || to.Addr().IsUnspecified() || to.Addr().IsLinkLocalUnicast() {
			return fmt.Errorf("%s is not outside this machine", address)
		}
		return nil
	},
}

// servePullProxy is an HTTP proxy on the host's network for the container runtime, which is on the
// node's network. With it, images can be pulled without a change to the host's routes or packet
// filter. It serves only the nodes' own addresses; pods have others.
func servePullProxy(l net.Listener, nodes netip.Prefix) {
	forward := &httputil.ReverseProxy{
		Rewrite:   func(*httputil.ProxyRequest) {}, // requests to a proxy have the full URL already
		Transport: &http.Transport{DialContext: outside.DialContext},
	}
	err := http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		switch {
		case err != nil || !nodes.Contains(from.Addr()):
			http.Error(w, "this proxy serves the nodes' runtimes", http.StatusForbidden)
		case r.Method == http.MethodConnect:
			tunnel(w, r.Host)
		case r.URL.IsAbs():
			forward.ServeHTTP(w, r)
		default:
			http.Error(w, "this is a proxy", http.StatusBadRequest)
		}
	}))
	if err != nil && !errors.Is(err, net.ErrClosed) {
		log.Printf("images can no longer be pulled: %v", err)
	}
}

// tunnel connects the client with the host it named, until one side closes the connection.
func tunnel(w http.ResponseWriter, host string) {
	out, err := outside.Dial("tcp", host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer out.Close()
	in, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer in.Close()
	if _, err := io.WriteString(in, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	over := make(chan struct{}, 2)
	for _, way := range []func(){
		func() { io.Copy(out, buffered) }, //nolint:errcheck // either end may hang up at any time
		func() { io.Copy(in, out) },       //nolint:errcheck
	} {
		go func() { way(); over <- struct{}{} }()
	}
	<-over
}
