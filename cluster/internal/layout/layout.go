// Package layout defines the paths and names of a cluster: directories, sockets, interfaces,
// cgroups, addresses and ports. All of it derives from the cluster's name and from numbers that are
// allotted once and recorded in its state file. That lets clusters run side by side.
//
// It must not know what runs in a cluster, nor start or stop anything.
package layout

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

const (
	// DefaultName is the cluster used when the user names none: that of the demo.
	DefaultName = "tarn"

	dataRoot  = "/var/lib/tarn-cluster"
	runRoot   = "/run/tarn-cluster"
	cacheRoot = "/var/cache/tarn-cluster"

	// KubeletDir is where every CSI driver and Kubernetes' own test suites expect the kubelet. In a
	// cluster's mount namespace, the cluster's own directory is bound there.
	KubeletDir = "/var/lib/kubelet"
	// CNIStateDir is compiled into containerd's network library. The cluster's own directory is
	// bound there too.
	CNIStateDir = "/var/lib/cni"
	// LogDir is where the kubelet keeps the logs of containers. The cluster's own directory is
	// bound there too.
	LogDir = "/var/log"
	// TarnDir is where the ready provisioners keep the volumes of a node by default. Every further
	// node has its own. The first node uses the machine's.
	TarnDir = "/var/lib/tarn"
)

// nameForm keeps names usable as DNS labels, and socket paths below the kernel's 108 bytes.
var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// nodeForm keeps names of nodes usable as DNS labels. They are in no path of a socket.
var nodeForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

// Layout holds the location of one cluster. Its methods are names and paths; none of them uses the
// disk.
type Layout struct {
	Name string
	Data string // kept by `down --keep-data`
	Run  string // sockets, pid file; a reboot deletes it, and nothing is lost with it
	// Node is the further node whose directories these are. It is zero for the cluster itself, whose
	// directories are also those of its first node.
	Node Node
}

// New returns the layout of the named cluster. An empty dataDir means the default location.
func New(name, dataDir string) (Layout, error) {
	if !nameForm.MatchString(name) {
		return Layout{}, fmt.Errorf("cluster name %q: use 1 to 32 lower-case letters, digits and dashes, beginning and ending with a letter or digit", name)
	}
	l := Layout{Name: name, Data: filepath.Join(dataRoot, name), Run: filepath.Join(runRoot, name)}
	if dataDir != "" {
		abs, err := filepath.Abs(dataDir)
		if err != nil {
			return Layout{}, fmt.Errorf("data directory %q: %w", dataDir, err)
		}
		l.Data = abs
	}
	return l, nil
}

// RunRoot is the directory of the run directories of all clusters and of the locks they share.
func RunRoot() string { return runRoot }

// CacheRoot holds downloaded packages and built images, shared by all clusters.
func CacheRoot() string { return cacheRoot }

// OfNode is the layout of a further node of the cluster.
func (l Layout) OfNode(n Node) Layout {
	return Layout{Name: l.Name, Data: filepath.Join(l.Nodes(), n.Name), Run: filepath.Join(l.Run, n.Link()), Node: n}
}

// Nodes holds the data directories of the further nodes.
func (l Layout) Nodes() string { return filepath.Join(l.Data, "nodes") }

// NodeName is the name of the node: of the cluster's first, or of the further node.
func (l Layout) NodeName() string { return cmp.Or(l.Node.Name, l.Name) }

// LinkName is the host's end of the cable to the node; interface names have at most 15 characters.
func (l Layout) LinkName() string {
	if len(l.Name) <= 12 {
		return "tn-" + l.Name
	}
	return "tn-" + l.Name[:5] + "-" + l.short()
}

// CgroupName is the cgroup that holds all pods of a node, below the root of every hierarchy.
func (l Layout) CgroupName() string {
	if l.Node.Name != "" {
		return l.NodesCgroup() + "/" + l.Node.Name
	}
	return "tarn-cluster-" + l.Name
}

// NodesCgroup holds the cgroups of the further nodes. Its name must not begin with that of the first
// node's cgroup: the kubelet measures every cgroup whose name begins like its own.
func (l Layout) NodesCgroup() string { return "tarn-nodes-" + l.Name }

// Marker is an environment entry that every process of the cluster has, so that leftovers can be
// found. Those of a further node have another, because the marker tells which process is the
// supervisor of the cluster.
func (l Layout) Marker() string {
	if l.Node.Name != "" {
		return "TARN_NODE=" + l.Name + "/" + l.Node.Name
	}
	return "TARN_CLUSTER=" + l.Name
}

func (l Layout) short() string {
	sum := sha256.Sum256([]byte(l.Name))
	return hex.EncodeToString(sum[:3])
}

// The files and directories of a cluster.

func (l Layout) StateFile() string       { return filepath.Join(l.Data, "state.json") }
func (l Layout) PKI(file string) string  { return filepath.Join(l.Data, "pki", file) }
func (l Layout) Kubeconfig() string      { return filepath.Join(l.Data, "kubeconfig") }
func (l Layout) Config(f string) string  { return filepath.Join(l.Data, "config", f) }
func (l Layout) Log(c string) string     { return filepath.Join(l.Data, "logs", c+".log") }
func (l Layout) Etcd() string            { return filepath.Join(l.Data, "etcd") }
func (l Layout) Kubelet() string         { return filepath.Join(l.Data, "kubelet") }
func (l Layout) CNIState() string        { return filepath.Join(l.Data, "cni") }
func (l Layout) HostPath() string        { return filepath.Join(l.Data, "host-path") }
func (l Layout) Volumes(p string) string { return filepath.Join(l.Data, "volumes", p) }
func (l Layout) VarLog() string          { return filepath.Join(l.Data, "var-log") }
func (l Layout) VarTarn() string         { return filepath.Join(l.Data, "var-lib-tarn") }
func (l Layout) ContainerdRoot() string  { return filepath.Join(l.Data, "containerd") }
func (l Layout) ContainerdState() string { return filepath.Join(l.Run, "containerd") }
func (l Layout) ContainerdSocket() string {
	return filepath.Join(l.Run, "containerd.sock")
}
func (l Layout) ControlSocket() string { return filepath.Join(l.Run, "control.sock") }
func (l Layout) PIDFile() string       { return filepath.Join(l.Run, "supervisor.pid") }
func (l Layout) PointerFile() string   { return filepath.Join(l.Run, "data-dir") }

// KubeconfigOf is the kubeconfig of a client of the control plane, by the client's name.
func (l Layout) KubeconfigOf(client string) string {
	return filepath.Join(l.Data, "pki", client+".kubeconfig")
}

// TokenOf is the file with the token of a client of the control plane, by the client's name.
func (l Layout) TokenOf(client string) string { return l.PKI(client + ".token") }

// ContainerdEndpoint is the address of the container runtime as Kubernetes writes it.
func (l Layout) ContainerdEndpoint() string { return "unix://" + l.ContainerdSocket() }

// Find returns the layout of a cluster that may already exist. Without a data directory, it takes
// the one recorded in the cluster's run directory.
func Find(name, dataDir string) (Layout, error) {
	l, err := New(name, dataDir)
	if err != nil || dataDir != "" {
		return l, err
	}
	remembered, err := os.ReadFile(l.PointerFile())
	if os.IsNotExist(err) {
		return l, nil
	}
	if err != nil {
		return Layout{}, fmt.Errorf("finding the data directory of cluster %s: %w", name, err)
	}
	return New(name, string(remembered))
}
