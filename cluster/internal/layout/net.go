package layout

import (
	"fmt"
	"net/netip"
)

// blocks is how many clusters fit side by side: each takes one /16 out of 10.180.0.0 to 10.249.0.0.
const (
	firstBlock = 180
	blocks     = 70
)

// Net holds the addresses of one cluster. All lie in one block of 65,536, so that clusters never
// overlap.
type Net struct {
	Block    netip.Prefix // everything below
	Pods     netip.Prefix
	Services netip.Prefix
	Link     netip.Prefix // the cable between host and node
	Host     netip.Addr   // the host's end: where the API server listens
	Node     netip.Addr   // the node's end
	Further  netip.Prefix // the pods and cables of all further nodes
	Cables   netip.Prefix // the addresses of all nodes, and of the host
	API      netip.Addr   // the service kubernetes.default
}

// NetOf returns the addresses of the block with the given number, 0 to 69.
func NetOf(index int) Net {
	at := func(third, fourth byte) netip.Addr {
		return netip.AddrFrom4([4]byte{10, byte(firstBlock + index), third, fourth})
	}
	return Net{
		Block:    netip.PrefixFrom(at(0, 0), 16),
		Pods:     netip.PrefixFrom(at(0, 0), 17),
		Services: netip.PrefixFrom(at(128, 0), 18),
		Link:     netip.PrefixFrom(at(255, 0), 30),
		Host:     at(255, 1),
		Node:     at(255, 2),
		Further:  netip.PrefixFrom(at(192, 0), 18),
		Cables:   netip.PrefixFrom(at(255, 0), 24),
		API:      at(128, 1),
	}
}

// NodeNet holds the addresses of a further node.
type NodeNet struct {
	Pods netip.Prefix
	Link netip.Prefix // the cable between the first node and this one
	Hub  netip.Addr   // the first node's end
	Node netip.Addr   // the node's end
}

// Of returns the addresses of a further node. Each has 2,046 for its pods.
func (n Net) Of(node Node) NodeNet {
	base := n.Block.Addr().As4()
	at := func(third, fourth int) netip.Addr {
		return netip.AddrFrom4([4]byte{base[0], base[1], byte(third), byte(fourth)})
	}
	i := node.Number - firstFurther
	return NodeNet{
		Pods: netip.PrefixFrom(at(192+8*i, 0), 21),
		Link: netip.PrefixFrom(at(255, 4+4*i), 30),
		Hub:  at(255, 5+4*i),
		Node: at(255, 6+4*i),
	}
}

// ChooseBlock returns the first block number that no other cluster has and that overlaps no network
// of the host.
func ChooseBlock(taken map[int]bool, networks []netip.Prefix) (int, error) {
	for index := range blocks {
		if !taken[index] && !overlaps(NetOf(index).Block, networks) {
			return index, nil
		}
	}
	return 0, fmt.Errorf("no free network: each of 10.%d.0.0/16 to 10.%d.0.0/16 belongs to a cluster or to a network of this machine: take a cluster down", firstBlock, firstBlock+blocks-1)
}

func overlaps(block netip.Prefix, networks []netip.Prefix) bool {
	for _, n := range networks {
		// A default route covers everything, so it does not count as an overlap.
		if n.Bits() > 0 && block.Overlaps(n) {
			return true
		}
	}
	return false
}

// Ports are the TCP ports of the parts on the host's own network, by use.
type Ports map[string]int

// The uses of ports.
const (
	PortAPI               = "kube-apiserver"
	PortEtcd              = "etcd"
	PortEtcdPeer          = "etcd-peer"
	PortScheduler         = "kube-scheduler"
	PortControllerManager = "kube-controller-manager"
	PortControllerMetrics = "tarn-controller-metrics"
	PortControllerHealth  = "tarn-controller-health"
	PortNodeMetrics       = "tarn-node-metrics"
	PortNodeHealth        = "tarn-node-health"
	PortStandbyMetrics    = "tarn-controller-2-metrics"
	PortStandbyHealth     = "tarn-controller-2-health"
	PortTarnAPI           = "tarn-api"
	PortTarnAPIMetrics    = "tarn-api-metrics"
	PortTarnAPIHealth     = "tarn-api-health"
)

// PortUses lists every use, in the order in which ports are given out.
func PortUses() []string {
	return []string{PortAPI, PortEtcd, PortEtcdPeer, PortScheduler, PortControllerManager,
		PortControllerMetrics, PortControllerHealth, PortNodeMetrics, PortNodeHealth, PortStandbyMetrics, PortStandbyHealth,
		PortTarnAPI, PortTarnAPIMetrics, PortTarnAPIHealth}
}

// Ports are given out below 32768, where Linux by default begins to pick local ports for outgoing
// connections. A recorded port above would sooner or later be taken by chance.
const (
	firstPort = 20000
	lastPort  = 29999
)

// ChoosePorts fills in every use that has no port yet, and replaces a port that is no longer free.
// It calls free for each candidate; taken holds the ports that other clusters recorded. start
// spreads clusters that choose at the same time.
func ChoosePorts(have Ports, start int, taken map[int]bool, free func(port int) bool) (Ports, error) {
	chosen := Ports{}
	used := map[int]bool{}
	for _, use := range PortUses() {
		if port := have[use]; port != 0 && !taken[port] && free(port) {
			chosen[use], used[port] = port, true
		}
	}
	span := lastPort - firstPort + 1
	offset := start % span
	for _, use := range PortUses() {
		for tries := 0; chosen[use] == 0; tries++ {
			if tries > span {
				return nil, fmt.Errorf("no free TCP port between %d and %d: stop something that listens there", firstPort, lastPort)
			}
			port := firstPort + offset
			offset = (offset + 1) % span
			if !taken[port] && !used[port] && free(port) {
				chosen[use], used[port] = port, true
			}
		}
	}
	return chosen, nil
}
