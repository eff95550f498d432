// Package component describes how each part of a cluster runs: its program, arguments and
// configuration files. Settings that avoid a pitfall of Kubernetes stand here, each with its
// reason.
//
// The package is pure: it must not know whether anything runs, and uses neither disk nor network.
package component

import (
	"fmt"
	"slices"
	"strconv"

	"tarn.dev/tarn/cluster/internal/layout"
)

// The names of the parts, as in `tarn-cluster status` and `tarn-cluster logs`.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Containerd        = "containerd"
	Kubelet           = "kubelet"
	Proxy             = "kube-proxy"
	TarnController    = "tarn-controller"
	TarnStandby       = "tarn-controller-2"
	TarnNode          = "tarn-node"
	TarnAPI           = "tarn-api"
)

// Names lists the parts in the order they are started.
func Names() []string {
	return []string{Etcd, APIServer, Containerd, ControllerManager, Scheduler, Kubelet, Proxy, TarnController, TarnStandby, TarnNode, TarnAPI}
}

// Machine is what the parts need to know about the machine they run on.
type Machine struct {
	Programs       string // directory with etcd, kube, containerd, ...
	RestrictOOM    bool   // the kernel does not let us lower an oom_score_adj (no CAP_SYS_RESOURCE)
	PacketFilter   string // "nftables", "iptables", or "" where the machine supports neither
	ResolverConfig string // a resolv.conf whose name servers are not on the loopback interface
	NameServers    []string
	Processors     int    // that programs may use, at least 1
	TarnImage      string // reference of the image of the tarn program, which Tarn's scrub pods run; "" for none
}

// Component is one program to run.
type Component struct {
	Name    string
	Program string
	Args    []string
	Env     []string          // beside what every component gets
	Files   map[string]string // configuration to write first: path -> content
	OnNode  bool              // runs on the node's own network, not on the host's
	Metrics string            // host:port where /metrics is served without credentials, if it is
}

// Plan is everything a cluster of the given state runs.
type Plan struct {
	layout  layout.Layout
	state   layout.State
	machine Machine
	net     layout.Net
}

// NewPlan combines the inputs from which every component is made. With the layout of a further node,
// it is the plan of that node.
func NewPlan(l layout.Layout, s layout.State, m Machine) Plan {
	p := Plan{layout: l, state: s, machine: m, net: layout.NetOf(s.Block)}
	if p.further() {
		n := p.net.Of(l.Node)
		p.net.Pods, p.net.Node = n.Pods, n.Node
	}
	return p
}

// further reports whether the plan is that of a further node.
func (p Plan) further() bool { return p.layout.Node.Name != "" }

// kube is a component that lives in the multi-call binary.
func (p Plan) kube(name string, args ...string) Component {
	return p.finish(Component{Name: name, Program: p.machine.Programs + "/kube", Args: append([]string{name}, args...)})
}

// finish appends the user's arguments. They come last, so they override ours.
func (p Plan) finish(c Component) Component {
	c.Args = append(c.Args, p.state.Options.ExtraArgs[c.Name]...)
	// Clusters for tests have enough memory and wait for processors, so they collect garbage less
	// often. Tarn's own programs run as everywhere.
	if o := p.state.Options; (o.SpendMemory || !o.HasControllers()) && c.Program != o.TarnBinary {
		c.Env = append(c.Env, "GOGC=400")
	}
	return c
}

// runs reports whether a cluster with the given options runs a part.
func runs(name string, o layout.Options) bool {
	switch name {
	case Etcd, APIServer:
		return true
	case ControllerManager:
		return o.HasControllers()
	case TarnController:
		return o.HasTarn()
	case TarnStandby:
		return o.HasTarn() && o.TarnControllers > 1
	case TarnAPI:
		return o.HasTarn() && !o.WithoutAPI
	case TarnNode:
		return o.HasTarn() && o.HasNode()
	}
	return o.HasNode()
}

// Of lists the parts that a cluster with the given options runs, in the order they are started.
func Of(o layout.Options) []string {
	return slices.DeleteFunc(Names(), func(name string) bool { return !runs(name, o) })
}

// OfNode lists the parts that every node of such a cluster runs, in the order they are started.
func OfNode(o layout.Options) []string {
	return slices.DeleteFunc([]string{Containerd, Kubelet, Proxy, TarnNode}, func(name string) bool { return !runs(name, o) })
}

func (p Plan) pki(file string) string { return p.layout.PKI(file) }

func (p Plan) port(use string) string { return strconv.Itoa(p.state.Ports[use]) }

func (p Plan) local(use string) string {
	return fmt.Sprintf("127.0.0.1:%d", p.state.Ports[use])
}
