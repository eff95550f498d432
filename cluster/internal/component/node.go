package component

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"tarn.dev/tarn/cluster/internal/layout"
)

// PauseImage is the reference of the sandbox image. Its host part is no registry, so the runtime
// never contacts the network for it.
const PauseImage = "tarn.dev/pause:1"

// MirrorAddress is where the node's runtime finds the images the node already has. The address is
// on the node's own network.
const MirrorAddress = "127.0.0.1:5000"

// Containerd runs on the node's network. It opens the streams for exec and port-forward on the
// loopback interface, and the kubelet must reach them there.
func (p Plan) Containerd() Component {
	config, hosts := p.layout.Config("containerd.toml"), p.layout.Config("registries")
	return p.finish(Component{
		Name:    Containerd,
		Program: p.machine.Programs + "/containerd",
		Args:    []string{"--config=" + config, "--log-level=warn"},
		Env:     []string{"HTTPS_PROXY=http://" + p.PullProxy(), "HTTP_PROXY=http://" + p.PullProxy(), "NO_PROXY=127.0.0.1"},
		OnNode:  true,
		Files: map[string]string{
			config:                                  p.containerdConfig(hosts),
			hosts + "/_default/hosts.toml":          mirrorConfig,
			p.layout.Config("cni") + "/10.conflist": p.networkConfig(),
		},
	})
}

// PullProxy is the proxy through which the runtime reaches registries. The node's network has no
// other way to the outside.
func (p Plan) PullProxy() string { return netip.AddrPortFrom(p.net.Host, pullProxyPort).String() }

// pullProxyPort is on the host's end of the cable, an address that nothing else listens on.
const pullProxyPort = 3128

// mirrorConfig makes every pull ask the node's own store first. Without it, `imagePullPolicy:
// Always` fails for an imported image, because containerd resolves the tag at its registry each
// time. Always is the kubelet's default for tags called latest.
const mirrorConfig = `[host."http://` + MirrorAddress + `"]
  capabilities = ["pull", "resolve"]
`

func (p Plan) containerdConfig(hosts string) string {
	return fmt.Sprintf(`version = 3
imports = []
root = %[1]q
state = %[2]q
disabled_plugins = [
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.native",
  "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
  address = %[3]q

[plugins.'io.containerd.internal.v1.opt']
  path = %[4]q

[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = %[5]q
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = %[6]q

[plugins.'io.containerd.cri.v1.runtime']
  # Without CAP_SYS_RESOURCE runc dies where it would lower an oom_score_adj ("can't get final child's PID").
  restrict_oom_score_adj = %[7]t
  netns_mounts_under_state_dir = true
  enable_criu = false
  cdi_spec_dirs = []
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      runtime_path = %[8]q
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = %[9]q
        SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [%[10]q]
    conf_dir = %[11]q
    use_internal_loopback = true # else a program is started for each pod, to enable one interface
`,
		p.layout.ContainerdRoot(), p.layout.ContainerdState(), p.layout.ContainerdSocket(), p.layout.ContainerdRoot()+"/opt",
		PauseImage, hosts, p.machine.RestrictOOM,
		p.machine.Programs+"/containerd-shim-runc-v2", p.machine.Programs+"/runc", p.machine.Programs+"/cni", p.layout.Config("cni"))
}

// networkConfig is a bridge with addresses assigned on the node itself. The node and its bridge
// have their own network namespace, so names need not differ between clusters. Pods keep their
// addresses on the way to the host.
func (p Plan) networkConfig() string {
	plugins := []string{fmt.Sprintf(`{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false,
     "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}}`,
		layout.CNIStateDir+"/addresses", p.net.Pods)}
	if filter := p.machine.PacketFilter; filter != "" {
		// Without a given backend, the plugin calls iptables twice for each pod, with or without
		// host ports.
		plugins = append(plugins, fmt.Sprintf(`{"type": "portmap", "backend": %q, "capabilities": {"portMappings": true}}`, filter))
	}
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "tarn", "plugins": [
    %s
]}
`, strings.Join(plugins, ",\n    "))
}

// ZoneLabel is the label of the nodes of a cluster with several.
const ZoneLabel = "topology.kubernetes.io/zone"

// Kubelet is configured by file. Only settings that the file does not support are arguments.
func (p Plan) Kubelet() Component {
	config := p.layout.Config("kubelet.yaml")
	c := p.kube(Kubelet,
		"--config="+config,
		"--kubeconfig="+p.layout.KubeconfigOf(Kubelet),
		"--hostname-override="+p.layout.NodeName(),
		"--node-ip="+p.net.Node.String(),
		"--root-dir="+layout.KubeletDir,
		"--cert-dir="+layout.KubeletDir+"/pki",
	)
	if p.further() {
		c.Args = append([]string{c.Args[0], "--node-labels=" + ZoneLabel + "=" + p.layout.Node.Zone()}, c.Args[1:]...)
	}
	c.OnNode = true
	c.Files = map[string]string{config: p.kubeletConfig()}
	return c
}

func (p Plan) kubeletConfig() string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 0.0.0.0
containerRuntimeEndpoint: %[1]q
cgroupRoot: /%[2]s
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: [] # needs cgroups that nobody makes
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %[3]q}
authorization: {mode: Webhook}
tlsCertFile: %[4]q
tlsPrivateKeyFile: %[5]q
clusterDomain: cluster.local
# No name server of the cluster's own. The machine's are named here because with none the kubelet complains about every pod.
clusterDNS: %[8]s
resolvConf: %[6]q
volumePluginDir: %[7]q
oomScoreAdj: 0 # the default, -999, needs CAP_SYS_RESOURCE
makeIPTablesUtilChains: false
# Imported images cannot be pulled again, so they are never collected.
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
# The defaults evict below 10 to 15 %% of free disk, which is the ordinary state of many a workstation.
evictionHard:
  memory.available: 100Mi
  nodefs.available: 1%%
  nodefs.inodesFree: 1%%
  imagefs.available: 1%%
  imagefs.inodesFree: 1%%
serializeImagePulls: false
registryPullQPS: 0
# Not 0, though that is said to be no limit: it comes to client-go's default, 5 a second.
eventRecordQPS: 1000
kubeAPIQPS: 200
kubeAPIBurst: 400
syncFrequency: 10s
nodeStatusUpdateFrequency: 5s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
maxPods: 500
`,
		p.layout.ContainerdEndpoint(), p.layout.CgroupName(), p.pki("ca.crt"),
		p.pki("kubelet-serving.crt"), p.pki("kubelet-serving.key"), p.machine.ResolverConfig, layout.KubeletDir+"/volume-plugins", flowList(p.machine.NameServers))
}

// flowList writes a list of words as YAML has it on one line.
func flowList(words []string) string { return "[" + strings.Join(words, ", ") + "]" }

// Proxy serves the services' addresses. It writes to the packet filter of the node's own network
// namespace, never to the host's.
func (p Plan) Proxy() Component {
	config := p.layout.Config("kube-proxy.yaml")
	c := p.kube(Proxy, "--config="+config)
	c.OnNode = true
	c.Files = map[string]string{config: fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: %[1]q}
hostnameOverride: %[2]s
mode: %[3]s
clusterCIDR: %[4]s
oomScoreAdj: 0
# These sysctls belong to the whole machine.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
nftables: {minSyncPeriod: 100ms}
iptables: {minSyncPeriod: 100ms}
`, p.layout.KubeconfigOf(Proxy), p.layout.NodeName(), p.machine.PacketFilter, p.net.Pods)}
	return c
}

// AppClasses gives the classes for the volumes of applications that do not choose one, with the
// built-in provisioner of each. The supervisor makes these classes.
func AppClasses() map[string]string {
	return map[string]string{"ovh-csi-rbd": "xfs", "ovh-csi-nfs": "shared"}
}

// stepNamespaces tells Tarn where step pods may run. A cluster for trying out accepts the
// original's manifests unchanged, which use the namespace default.
const stepNamespaces = "--step-namespaces=tarn-volumes,tarn-system,default"

// TarnInstall runs once to its end, when the API server serves. It fails after the limit.
func (p Plan) TarnInstall(limit time.Duration) Component {
	args := []string{"install", "--kubeconfig", p.layout.Kubeconfig(), "--timeout", limit.String(), stepNamespaces}
	if p.state.Options.HasNode() {
		args = append(args, "--provisioners="+strings.Join(slices.Sorted(maps.Values(AppClasses())), ","))
	}
	if p.state.Options.Protection == layout.ByKubernetes {
		args = append(args, "--protection="+layout.ByKubernetes)
	}
	return Component{Name: "tarn-install", Program: p.state.Options.TarnBinary, Args: args}
}

// TarnController runs on the host's network, so that its metrics can be read there.
func (p Plan) TarnController() Component {
	return p.finish(p.controller(TarnController, layout.PortControllerMetrics, layout.PortControllerHealth))
}

// TarnStandby is a second controller: the arguments of the first, followed by its own.
func (p Plan) TarnStandby() Component {
	c := p.controller(TarnStandby, layout.PortStandbyMetrics, layout.PortStandbyHealth)
	c.Args = append(c.Args, p.state.Options.ExtraArgs[TarnController]...)
	return p.finish(c)
}

func (p Plan) controller(name, metrics, health string) Component {
	args := []string{"controller", "--kubeconfig", p.layout.KubeconfigOf(TarnController)}
	if p.state.Options.TarnControllers < 2 {
		args = append(args, "--leader-elect=false") // it is the only one, and a lease would only delay it after a crash
	}
	args = append(args, "--metrics-bind-address", p.local(metrics), "--health-probe-bind-address", p.local(health))
	if p.state.Options.HasNode() {
		args = append(args, "--host-path-root", p.layout.HostPath(), "--node-name", p.layout.NodeName())
	}
	args = append(args, stepNamespaces)
	if p.machine.TarnImage != "" {
		args = append(args, "--scrub-image", p.machine.TarnImage)
	}
	if left := p.leftToKubernetes(); len(left) < len(jobs) {
		args = append(args, "--controllers="+strings.Join(append([]string{"*"}, left...), ","))
	}
	return Component{Name: name, Program: p.state.Options.TarnBinary, Args: args, Metrics: p.local(metrics)}
}

// jobs are Tarn's controllers that can replace Kubernetes' own, each written as an argument that
// switches it off. Tarn leaves all of them off by default.
var jobs = []string{"-bind", "-protect"}

// leftToKubernetes lists the jobs that Kubernetes' own controllers keep.
func (p Plan) leftToKubernetes() []string {
	var left []string
	for i, by := range []string{p.state.Options.Binder, p.state.Options.Protection} {
		if by != layout.ByTarn {
			left = append(left, jobs[i])
		}
	}
	return left
}

// TarnNode shares the node's mounts. On the first node it does not share its network, so that its
// metrics can be read from the host.
func (p Plan) TarnNode() Component {
	c := Component{
		Name: TarnNode, Program: p.state.Options.TarnBinary, Metrics: p.local(layout.PortNodeMetrics),
		Args: []string{
			"node", "--kubeconfig", p.layout.KubeconfigOf(TarnNode),
			"--node-name", p.layout.NodeName(),
			"--kubelet-dir", layout.KubeletDir,
			"--cri-endpoint", p.layout.ContainerdEndpoint(),
			"--metrics-bind-address", p.local(layout.PortNodeMetrics),
			"--health-probe-bind-address", p.local(layout.PortNodeHealth),
		},
	}
	if p.further() {
		c.OnNode, c.Metrics = true, ""
	}
	return p.finish(c)
}

// TarnAPI listens on the loopback interface, with a certificate of the cluster's authority.
func (p Plan) TarnAPI() Component {
	return p.finish(Component{
		Name: TarnAPI, Program: p.state.Options.TarnBinary, Metrics: p.local(layout.PortTarnAPIMetrics),
		Args: []string{
			"api", "--kubeconfig", p.layout.KubeconfigOf(TarnAPI),
			"--bind-address", p.local(layout.PortTarnAPI),
			"--tls-cert-file", p.pki(TarnAPI + ".crt"), "--tls-private-key-file", p.pki(TarnAPI + ".key"),
			"--metrics-bind-address", p.local(layout.PortTarnAPIMetrics),
			"--health-probe-bind-address", p.local(layout.PortTarnAPIHealth),
		},
	})
}
