package supervisor

import (
	"net"
	"slices"
	"time"

	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/layout"
	"tarn.dev/tarn/cluster/internal/pki"
)

// client is an identity that gets a kubeconfig.
type client struct {
	name string
	id   pki.Identity
	path string // "" means the usual place
}

// issueAll makes every certificate and kubeconfig of a cluster. Authorities and the service account
// key stay the same. The rest is signed again at each start, because addresses and ports may have
// changed.
func issueAll(l layout.Layout, s layout.State, now time.Time) error {
	dir := l.PKI("")
	authorities := map[string]*pki.Authority{}
	for _, name := range []string{"ca", "etcd-ca", "front-proxy-ca"} {
		a, err := pki.OpenAuthority(dir, name, now)
		if err != nil {
			return err
		}
		authorities[name] = a
	}
	if err := pki.ServiceAccountKey(dir); err != nil {
		return err
	}
	local := net.ParseIP("127.0.0.1")
	node := net.IP(layout.NetOf(s.Block).Node.AsSlice())
	for _, c := range []struct {
		authority, file string
		id              pki.Identity
	}{
		{"etcd-ca", "etcd", pki.Identity{CommonName: "etcd", IPs: []net.IP{local}, Names: []string{"localhost"}, Server: true}},
		{"etcd-ca", "apiserver-etcd", pki.Identity{CommonName: "kube-apiserver"}},
		{"front-proxy-ca", "front-proxy-client", pki.Identity{CommonName: "front-proxy-client"}},
		{"ca", "apiserver", pki.Identity{
			CommonName: "kube-apiserver", Server: true,
			IPs: []net.IP{local, net.ParseIP(s.Address()), net.ParseIP(s.APIService())},
			Names: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
				"kubernetes.default.svc.cluster.local"},
		}},
		{"ca", "apiserver-kubelet", pki.Identity{CommonName: "kube-apiserver-kubelet-client", Organizations: []string{"system:masters"}}},
		{"ca", "kubelet-serving", pki.Identity{CommonName: "system:node:" + l.NodeName(), Server: true,
			IPs: []net.IP{local, node}, Names: []string{l.NodeName()}}},
		{"ca", component.TarnAPI, pki.Identity{CommonName: component.TarnAPI, IPs: []net.IP{local}, Names: []string{"localhost"}, Server: true}},
	} {
		if _, _, err := authorities[c.authority].Issue(dir, c.file, c.id, now); err != nil {
			return err
		}
	}
	return issueClients(l, s, authorities["ca"], clients(l), now)
}

// issueNode makes the certificates and kubeconfigs of a further node, in its own directory. Its
// supervisor is part of the cluster's, and is an administrator.
func issueNode(cluster, l layout.Layout, s layout.State, now time.Time) error {
	ca, err := pki.OpenAuthority(cluster.PKI(""), "ca", now)
	if err != nil {
		return err
	}
	if err := layout.WriteFile(l.PKI("ca.crt"), ca.Certificate(), 0o644); err != nil {
		return err
	}
	address := net.IP(layout.NetOf(s.Block).Of(l.Node).Node.AsSlice())
	id := pki.Identity{CommonName: "system:node:" + l.NodeName(), Server: true, IPs: []net.IP{net.ParseIP("127.0.0.1"), address}, Names: []string{l.NodeName()}}
	if _, _, err := ca.Issue(l.PKI(""), "kubelet-serving", id, now); err != nil {
		return err
	}
	needed := slices.DeleteFunc(clients(l), func(c client) bool { return c.name == component.ControllerManager || c.name == component.Scheduler })
	return issueClients(l, s, ca, needed, now)
}

func issueClients(l layout.Layout, s layout.State, ca *pki.Authority, all []client, now time.Time) error {
	for _, c := range all {
		cert, key, err := ca.Issue(l.PKI(""), c.name, c.id, now)
		if err != nil {
			return err
		}
		config := pki.Kubeconfig{Cluster: l.Name, Server: s.Server(), Authority: ca.Certificate(), Cert: cert, Key: key}
		if c.path == "" {
			c.path = l.KubeconfigOf(c.name)
		}
		if err := config.Write(c.path); err != nil {
			return err
		}
	}
	return nil
}

// clients lists the clients that use the API server by certificate, with their identities.
// Kubernetes' own bootstrap policy grants their rights. Tarn's parts are not among them: they have
// tokens, as in any cluster (see token).
func clients(l layout.Layout) []client {
	return []client{
		{"admin", pki.Identity{CommonName: "admin", Organizations: []string{"system:masters"}}, l.Kubeconfig()},
		{component.ControllerManager, pki.Identity{CommonName: "system:kube-controller-manager"}, ""},
		{component.Scheduler, pki.Identity{CommonName: "system:kube-scheduler"}, ""},
		{component.Proxy, pki.Identity{CommonName: "system:kube-proxy"}, ""},
		{component.Kubelet, pki.Identity{CommonName: "system:node:" + l.NodeName(), Organizations: []string{"system:nodes"}}, ""},
	}
}
