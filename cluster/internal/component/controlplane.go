package component

import (
	"strconv"
	"strings"

	"tarn.dev/tarn/cluster/internal/layout"
)

// The controllers of kube-controller-manager that Tarn's controllers can replace, by their names
// there.
var (
	binders    = []string{"persistentvolume-binder-controller"}
	protectors = []string{"persistentvolumeclaim-protection-controller", "persistentvolume-protection-controller"}
)

// leftToTarn lists the controllers that are switched off because Tarn's controllers do their work.
func (p Plan) leftToTarn() []string {
	var left []string
	if p.state.Options.Binder == layout.ByTarn {
		left = append(left, binders...)
	}
	if p.state.Options.Protection == layout.ByTarn {
		left = append(left, protectors...)
	}
	return left
}

// Etcd has a certificate authority of its own. A certificate of the cluster must not give access to
// its database.
func (p Plan) Etcd() Component {
	client, peer := "https://"+p.local(layout.PortEtcd), "https://"+p.local(layout.PortEtcdPeer)
	args := []string{
		"--name=" + p.layout.Name,
		"--data-dir=" + p.layout.Etcd(),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=" + p.layout.Name + "=" + peer,
		// After `up --keep-data`, the peer port may differ because the old one was taken. A single
		// member has no peer to compare its configuration with.
		"--strict-reconfig-check=false",
		"--client-cert-auth", "--peer-client-cert-auth",
		"--trusted-ca-file=" + p.pki("etcd-ca.crt"), "--peer-trusted-ca-file=" + p.pki("etcd-ca.crt"),
		"--cert-file=" + p.pki("etcd.crt"), "--key-file=" + p.pki("etcd.key"),
		"--peer-cert-file=" + p.pki("etcd.crt"), "--peer-key-file=" + p.pki("etcd.key"),
		"--quota-backend-bytes=8589934592",
		"--log-level=warn",
	}
	if !p.state.Options.HasControllers() {
		// For tests that live for seconds, data must survive a killed process, but not a power cut.
		args = append(args, "--unsafe-no-fsync")
	}
	// Etcd waits for the disk and the API server. After each wait, Go starts one more processor for
	// it, which finds nothing to do. On two processors, half of them saves a fifth of etcd's
	// processor time and loses no speed (docs/design/0015).
	env := []string{"GOMAXPROCS=" + strconv.Itoa(max(1, p.machine.Processors/2))}
	return p.finish(Component{Name: Etcd, Program: p.machine.Programs + "/etcd", Args: args, Env: env})
}

// APIServer listens where only the host and the node can reach it.
func (p Plan) APIServer() Component {
	args := []string{
		"--bind-address=" + p.state.Address(),
		"--advertise-address=" + p.state.Address(),
		"--secure-port=" + p.port(layout.PortAPI),
		"--tls-cert-file=" + p.pki("apiserver.crt"),
		"--tls-private-key-file=" + p.pki("apiserver.key"),
		"--etcd-servers=https://" + p.local(layout.PortEtcd),
		"--etcd-cafile=" + p.pki("etcd-ca.crt"),
		"--etcd-certfile=" + p.pki("apiserver-etcd.crt"),
		"--etcd-keyfile=" + p.pki("apiserver-etcd.key"),
		"--client-ca-file=" + p.pki("ca.crt"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + p.pki("service-account.pub"),
		"--service-account-signing-key-file=" + p.pki("service-account.key"),
		"--service-cluster-ip-range=" + p.state.ServiceRange(),
		"--requestheader-client-ca-file=" + p.pki("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + p.pki("front-proxy-client.crt"),
		"--proxy-client-key-file=" + p.pki("front-proxy-client.key"),
		"--allow-privileged=true",
	}
	if p.state.Options.HasNode() {
		args = append(args,
			"--kubelet-certificate-authority="+p.pki("ca.crt"),
			"--kubelet-client-certificate="+p.pki("apiserver-kubelet.crt"),
			"--kubelet-client-key="+p.pki("apiserver-kubelet.key"),
			// The default tries the node's name first. No name server knows that name, so logs and
			// exec would fail.
			"--kubelet-preferred-address-types=InternalIP",
		)
	} else {
		// A loopback address is not a valid endpoint. Recording it would only fail repeatedly.
		args = append(args, "--endpoint-reconciler-type=none")
	}
	if off := p.pluginsOff(); len(off) > 0 {
		args = append(args, "--disable-admission-plugins="+strings.Join(off, ","))
	}
	return p.kube(APIServer, args...)
}

// pluginsOff lists the admission plugins that a cluster of the given options does not need.
func (p Plan) pluginsOff() []string {
	var off []string
	if !p.state.Options.HasControllers() {
		// No controller makes the default service accounts here. With the plugin, no pod would be
		// admitted.
		off = append(off, "ServiceAccount")
	}
	if p.state.Options.Protection == layout.ByTarn {
		// Tarn's protection adds its finalizers itself.
		off = append(off, "StorageObjectInUseProtection")
	}
	return off
}

// ControllerManager runs without leader election: it is the only one, and starts two seconds
// sooner.
func (p Plan) ControllerManager() Component {
	config := p.layout.KubeconfigOf(ControllerManager)
	controllers := "*"
	if left := p.leftToTarn(); len(left) > 0 {
		controllers += ",-" + strings.Join(left, ",-")
	}
	args := []string{
		"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config,
		"--bind-address=127.0.0.1",
		"--secure-port=" + p.port(layout.PortControllerManager),
		"--leader-elect=false",
		"--use-service-account-credentials",
		"--service-account-private-key-file=" + p.pki("service-account.key"),
		"--root-ca-file=" + p.pki("ca.crt"),
		"--cluster-signing-cert-file=" + p.pki("ca.crt"),
		"--cluster-signing-key-file=" + p.pki("ca.key"),
		"--service-cluster-ip-range=" + p.state.ServiceRange(),
		"--flex-volume-plugin-dir=" + p.layout.Kubelet() + "/volume-plugins",
		"--controllers=" + controllers,
	}
	if p.state.Options.HasTarn() {
		// At its default of 20 requests a second, it needs 4.5 s to start its controllers, and
		// volumes wait for that. A stock cluster keeps the default rate, because Tarn is measured
		// against it.
		args = append(args, "--kube-api-qps=500", "--kube-api-burst=1000")
	}
	return p.kube(ControllerManager, args...)
}

// Scheduler runs without leader election, for the same reason.
func (p Plan) Scheduler() Component {
	config := p.layout.KubeconfigOf(Scheduler)
	return p.kube(Scheduler,
		"--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--bind-address=127.0.0.1",
		"--secure-port="+p.port(layout.PortScheduler),
		"--leader-elect=false",
	)
}
