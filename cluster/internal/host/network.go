package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"tarn.dev/tarn/cluster/internal/layout"
	"tarn.dev/tarn/cluster/internal/proc"
)

// Networks returns the networks in which this machine has addresses, or to which it has routes.
func Networks() ([]netip.Prefix, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("listing the machine's routes: %w", err)
	}
	var found []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		addr, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		bits, _ := r.Dst.Mask.Size()
		if ok {
			found = append(found, netip.PrefixFrom(addr, bits))
		}
	}
	return found, nil
}

// NewNodeNetwork makes the node's network namespace and the cable to it. Bridge, services and host
// ports of the cluster are in that namespace. In the host's network only one interface and two
// routes are added, and the kernel removes them with the namespace.
func NewNodeNetwork(l layout.Layout, n layout.Net) (*os.File, error) {
	ns, err := newNetNS()
	if err != nil {
		return nil, err
	}
	link := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: l.LinkName()},
		PeerName:      "eth0",
		PeerNamespace: netlink.NsFd(ns.Fd()),
	}
	if err := netlink.LinkAdd(link); err != nil {
		return nil, fmt.Errorf("creating the network interface %s: %w", l.LinkName(), err)
	}
	if err := address(l.LinkName(), n.Host, n.Link); err != nil {
		return nil, err
	}
	for _, dst := range []netip.Prefix{n.Pods, n.Services} {
		if err := route(l.LinkName(), dst, n.Node); err != nil {
			return nil, err
		}
	}
	return ns, proc.InNetNS(ns, func() error { return configureNode(n.Node, n.Link) })
}

// NewFurtherNetwork makes the network namespace of a further node, and the cable between it and the
// first node, which forwards its packets. The host gets one route for all further nodes.
func NewFurtherNetwork(first *os.File, l layout.Layout, n layout.Net, node layout.Node) (*os.File, error) {
	link, err := netlink.LinkByName(l.LinkName())
	if err != nil {
		return nil, fmt.Errorf("finding the network interface %s: %w", l.LinkName(), err)
	}
	if err := replaceRoute(link, n.Further, n.Node); err != nil {
		return nil, err
	}
	ns, err := newNetNS()
	if err != nil {
		return nil, err
	}
	own := n.Of(node)
	err = proc.InNetNS(first, func() error {
		link := &netlink.Veth{
			LinkAttrs:     netlink.LinkAttrs{Name: node.Link()},
			PeerName:      "eth0",
			PeerNamespace: netlink.NsFd(ns.Fd()),
		}
		if err := netlink.LinkAdd(link); err != nil {
			return fmt.Errorf("creating the network interface %s: %w", node.Link(), err)
		}
		return address(node.Link(), own.Hub, own.Link)
	})
	if err == nil {
		err = proc.InNetNS(ns, func() error {
			if err := configureNode(own.Node, own.Link); err != nil {
				return err
			}
			return route("eth0", n.Block, own.Hub)
		})
	}
	if err == nil {
		err = Connect(first, n, node, true)
	}
	if err != nil {
		ns.Close()
		return nil, err
	}
	return ns, nil
}

// Connect connects a further node with the first, or cuts its cable. The kernel drops the route to
// the node's pods with the cable.
func Connect(first *os.File, n layout.Net, node layout.Node, on bool) error {
	return proc.InNetNS(first, func() error {
		link, err := netlink.LinkByName(node.Link())
		if err != nil {
			return fmt.Errorf("finding the network interface %s: %w", node.Link(), err)
		}
		if !on {
			if err := netlink.LinkSetDown(link); err != nil {
				return fmt.Errorf("disabling the network interface %s: %w", node.Link(), err)
			}
			return nil
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("enabling the network interface %s: %w", node.Link(), err)
		}
		return replaceRoute(link, n.Of(node).Pods, n.Of(node).Node)
	})
}

// RemoveFurther removes the cable of a further node that has ended.
func RemoveFurther(first *os.File, node layout.Node) error {
	return proc.InNetNS(first, func() error { return removeLink(node.Link()) })
}

func newNetNS() (*os.File, error) {
	ns, err := newNamespace(unix.CLONE_NEWNET, "net", func() error { return nil })
	if err != nil {
		return nil, fmt.Errorf("creating the node's network namespace: %w", err)
	}
	return ns, nil
}

// configureNode runs inside the node's network namespace.
func configureNode(node netip.Addr, cable netip.Prefix) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the node's loopback interface: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("enabling the node's loopback interface: %w", err)
	}
	if err := address("eth0", node, cable); err != nil {
		return err
	}
	// There is no default route, because the host forwards nothing unless its administrator says
	// so. For a pod, "network is unreachable" at once is better than a timeout.
	for key, needed := range map[string]bool{
		"/proc/sys/net/ipv4/ip_forward": true,
		// Needed where a service leads back to a pod on the same bridge. The file is missing where
		// bridges are never filtered.
		"/proc/sys/net/bridge/bridge-nf-call-iptables": false,
	} {
		if err := os.WriteFile(key, []byte("1"), 0); err != nil && (needed || !errors.Is(err, os.ErrNotExist)) {
			return fmt.Errorf("setting %s: %w", strings.TrimPrefix(key, "/proc/sys/"), err)
		}
	}
	return nil
}

func address(name string, addr netip.Addr, network netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding the network interface %s: %w", name, err)
	}
	ip := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(network.Bits(), 32)}}
	if err := netlink.AddrAdd(link, ip); err != nil {
		return fmt.Errorf("giving %s the address %s: %w", name, addr, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("enabling the network interface %s: %w", name, err)
	}
	return nil
}

func route(name string, dst netip.Prefix, via netip.Addr) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding the network interface %s: %w", name, err)
	}
	return replaceRoute(link, dst, via)
}

func replaceRoute(link netlink.Link, dst netip.Prefix, via netip.Addr) error {
	err := netlink.RouteReplace(&netlink.Route{
		LinkIndex: link.Attrs().Index,
		Dst:       &net.IPNet{IP: dst.Addr().AsSlice(), Mask: net.CIDRMask(dst.Bits(), 32)},
		Gw:        via.AsSlice(),
	})
	if err != nil {
		return fmt.Errorf("adding the route to %s: %w", dst, err)
	}
	return nil
}

// RemoveLink removes the cable of a cluster that has ended. The kernel does so too, but some time
// after the last process of the namespace has ended.
func RemoveLink(l layout.Layout) error { return removeLink(l.LinkName()) }

func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("finding the network interface %s: %w", name, err)
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("removing the network interface %s: %w", name, err)
	}
	return nil
}

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
