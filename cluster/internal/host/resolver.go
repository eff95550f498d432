package host

import (
	"net/netip"
	"os"
	"strings"
)

// resolvers are tried in this order. With systemd-resolved, the usual file names a server on the
// loopback interface, which a pod cannot reach.
var resolvers = []string{"/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"}

// Resolver returns the content of the resolv.conf for pods.
func Resolver() []byte {
	for _, path := range resolvers {
		if text, err := os.ReadFile(path); err == nil {
			return text
		}
	}
	return []byte("# this machine names no server\n")
}

// NameServers returns the servers a resolv.conf names: at most three, the limit of the C library.
func NameServers(resolver []byte) []string {
	var servers []string
	for line := range strings.Lines(string(resolver)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" || len(servers) == 3 {
			continue
		}
		if _, err := netip.ParseAddr(fields[1]); err == nil {
			servers = append(servers, fields[1])
		}
	}
	return servers
}
