package component

import (
	"strconv"
	"strings"

	"tarn.dev/tarn/cluster/internal/layout"
)

// The controllers of kube-controller-manager whose work Tarn's own can do, as it names them.
var (
	binders    = []string{"persistentvolume-binder-controller"}
	protectors = []string{"persistentvolumeclaim-protection-controller", "persistentvolume-protection-controller"}
)

// leftToTarn are those that are switched off because Tarn's own do their work.
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

// Etcd keeps its own authority: whoever holds a certificate of the cluster must not thereby read its database.
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
		// The peer port is another one after `up --keep-data` found it taken; a single member has nobody to check it against.
		"--strict-reconfig-check=false",
		"--client-cert-auth", "--peer-client-cert-auth",
		"--trusted-ca-file=" + p.pki("etcd-ca.crt"), "--peer-trusted-ca-file=" + p.pki("etcd-ca.crt"),
		"--cert-file=" + p.pki("etcd.crt"), "--key-file=" + p.pki("etcd.key"),
		"--peer-cert-file=" + p.pki("etcd.crt"), "--peer-key-file=" + p.pki("etcd.key"),
		"--quota-backend-bytes=8589934592",
		"--log-level=warn",
	}
	if !p.state.Options.HasControllers() {
		// Made for tests that live for seconds: data must outlive a killed process, not a power cut.
		args = append(args, "--unsafe-no-fsync")
	}
	// It waits for the disk and for the API server, and each time Go wakes one more processor for it, to find nothing to do there.
	// On two, half of them saves a fifth of its time and loses no speed (docs/design/0015).
	env := []string{"GOMAXPROCS=" + strconv.Itoa(max(1, p.machine.Processors/2))}
	return p.finish(Component{Name: Etcd, Program: p.machine.Programs + "/etcd", Args: args, Env: env})
}

// APIServer listens where the host and the node can reach it and nobody else.
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
			// By default the node's name comes first, and no name server knows it: logs and exec would fail.
			"--kubelet-preferred-address-types=InternalIP",
		)
	} else {
		// A loopback address is no valid endpoint; recording it would only fail again and again.
		args = append(args, "--endpoint-reconciler-type=none")
	}
	if off := p.pluginsOff(); len(off) > 0 {
		args = append(args, "--disable-admission-plugins="+strings.Join(off, ","))
	}
	return p.kube(APIServer, args...)
}

// pluginsOff are the admission plugins that would only be in the way.
func (p Plan) pluginsOff() []string {
	var off []string
	if !p.state.Options.HasControllers() {
		// Nobody makes the default service accounts here, and without them no pod would be admitted.
		off = append(off, "ServiceAccount")
	}
	if p.state.Options.Protection == layout.ByTarn {
		// Tarn's protection puts its finalizers on by itself.
		off = append(off, "StorageObjectInUseProtection")
	}
	return off
}

// ControllerManager runs without leader election: there is no other, and it starts two seconds sooner.
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
		// Held back to its usual 20 requests a second, it needs 4.5 s to start its controllers, and volumes wait for it. A stock
		// cluster keeps the usual rate: it is what Tarn is measured against.
		args = append(args, "--kube-api-qps=500", "--kube-api-burst=1000")
	}
	return p.kube(ControllerManager, args...)
}

// Scheduler, likewise without an election.
func (p Plan) Scheduler() Component {
	config := p.layout.KubeconfigOf(Scheduler)
	return p.kube(Scheduler,
		"--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--bind-address=127.0.0.1",
		"--secure-port="+p.port(layout.PortScheduler),
		"--leader-elect=false",
	)
}
