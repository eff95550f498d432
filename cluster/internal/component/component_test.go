package component

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"tarn.dev/tarn/cluster/internal/layout"
)

func plan(t *testing.T, o layout.Options) Plan {
	t.Helper()
	l, err := layout.New("x", "/data")
	if err != nil {
		t.Fatal(err)
	}
	ports := layout.Ports{}
	for i, use := range layout.PortUses() {
		ports[use] = 20000 + i
	}
	return NewPlan(l, layout.State{Name: "x", Data: "/data", Block: 1, Ports: ports, Options: o},
		Machine{Programs: "/programs", PacketFilter: "nftables", ResolverConfig: "/resolv", NameServers: []string{"192.0.2.53"}})
}

func all(p Plan) []Component {
	return []Component{p.Etcd(), p.APIServer(), p.ControllerManager(), p.Scheduler(), p.Containerd(), p.Kubelet(), p.Proxy(), p.TarnController(), p.TarnStandby(), p.TarnNode(), p.TarnAPI()}
}

func TestArgumentsOfTheUserComeLastSoThatTheyWin(t *testing.T) {
	extra := map[string][]string{}
	for _, name := range Names() {
		extra[name] = []string{"--of=" + name}
	}
	for _, c := range all(plan(t, layout.Options{ExtraArgs: extra})) {
		if got := c.Args[len(c.Args)-1]; got != "--of="+c.Name {
			t.Errorf("last argument of %s is %s", c.Name, got)
		}
	}
}

func TestEveryNamedComponentHasAPlan(t *testing.T) {
	var got []string
	for _, c := range all(plan(t, layout.Options{})) {
		got = append(got, c.Name)
	}
	want := Names()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("plans for %v, names %v", got, want)
	}
}

func TestNothingListensWhereTheOutsideCanReachIt(t *testing.T) {
	for _, c := range all(plan(t, layout.Options{})) {
		for _, arg := range c.Args {
			if strings.Contains(arg, "0.0.0.0") || strings.Contains(arg, "[::]") {
				t.Errorf("%s is told %s", c.Name, arg)
			}
		}
		if c.OnNode {
			continue // a network of its own, which only the host reaches
		}
		for _, arg := range c.Args {
			if address, found := strings.CutPrefix(arg, "--bind-address="); found && address != "127.0.0.1" && address != "10.181.255.1" {
				t.Errorf("%s binds to %s", c.Name, address)
			}
		}
	}
}

func TestAStockClusterKeepsEveryControllerAtItsUsualRate(t *testing.T) {
	stock := strings.Join(plan(t, layout.Options{Stock: true}).ControllerManager().Args, " ")
	if !strings.Contains(stock, "--controllers=* ") && !strings.HasSuffix(stock, "--controllers=*") {
		t.Errorf("a stock cluster is told %s", stock)
	}
	if strings.Contains(stock, "kube-api-qps") {
		t.Errorf("a stock cluster has another rate than usual: %s", stock)
	}
}

func TestEachJobIsDoneByOneOfTheTwo(t *testing.T) {
	for _, c := range []struct {
		name, binder, protection       string
		wantManager, wantTarn, wantOff string
	}{
		{"Kubernetes does both", layout.ByKubernetes, layout.ByKubernetes, "--controllers=*", "", ""},
		{"Tarn binds", layout.ByTarn, layout.ByKubernetes, "--controllers=*,-persistentvolume-binder-controller", "--controllers=*,-protect", ""},
		{"Tarn protects", layout.ByKubernetes, layout.ByTarn,
			"--controllers=*,-persistentvolumeclaim-protection-controller,-persistentvolume-protection-controller", "--controllers=*,-bind",
			"--disable-admission-plugins=StorageObjectInUseProtection"},
		{"Tarn does both", layout.ByTarn, layout.ByTarn,
			"--controllers=*,-persistentvolume-binder-controller,-persistentvolumeclaim-protection-controller,-persistentvolume-protection-controller", "--controllers=*",
			"--disable-admission-plugins=StorageObjectInUseProtection"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := plan(t, layout.Options{Binder: c.binder, Protection: c.protection})
			for _, part := range []struct {
				component Component
				flag      string
				want      string
			}{
				{p.ControllerManager(), "--controllers=", c.wantManager},
				{p.TarnController(), "--controllers=", c.wantTarn},
				{p.TarnStandby(), "--controllers=", c.wantTarn},
				{p.APIServer(), "--disable-admission-plugins=", c.wantOff},
			} {
				got := slices.DeleteFunc(part.component.Args, func(a string) bool { return !strings.HasPrefix(a, part.flag) })
				if strings.Join(got, " ") != part.want {
					t.Errorf("%s is told %q, want %q", part.component.Name, got, part.want)
				}
			}
		})
	}
}

func TestOneControllerNeedsNoLeaseAndTwoDo(t *testing.T) {
	one := plan(t, layout.Options{TarnControllers: 1}).TarnController().Args
	if !slices.Contains(one, "--leader-elect=false") {
		t.Errorf("the only controller is told %q", one)
	}
	p := plan(t, layout.Options{TarnControllers: 2, ExtraArgs: map[string][]string{TarnController: {"--both"}}})
	for _, c := range []Component{p.TarnController(), p.TarnStandby()} {
		if slices.Contains(c.Args, "--leader-elect=false") || !slices.Contains(c.Args, "--both") {
			t.Errorf("one of two, %s, is told %q", c.Name, c.Args)
		}
	}
}

func TestAClusterRunsNoPartItDoesNotNeed(t *testing.T) {
	for _, c := range []struct {
		name    string
		options layout.Options
		want    []string
	}{
		{"a control plane alone", layout.Options{ControlPlaneOnly: true}, []string{Etcd, APIServer}},
		{"stock without a node", layout.Options{Stock: true, WithoutNode: true}, []string{Etcd, APIServer, ControllerManager}},
		{"Tarn without a node", layout.Options{WithoutNode: true, TarnControllers: 2}, []string{Etcd, APIServer, ControllerManager, TarnController, TarnStandby, TarnAPI}},
		{"Tarn without its API", layout.Options{WithoutNode: true, WithoutAPI: true}, []string{Etcd, APIServer, ControllerManager, TarnController}},
		{"stock", layout.Options{Stock: true}, []string{Etcd, APIServer, Containerd, ControllerManager, Scheduler, Kubelet, Proxy}},
		{"a whole cluster", layout.Options{TarnControllers: 1}, slices.DeleteFunc(Names(), func(name string) bool { return name == TarnStandby })},
	} {
		if got := Of(c.options); !slices.Equal(got, c.want) {
			t.Errorf("%s runs %q, want %q", c.name, got, c.want)
		}
	}
}

func TestAControlPlaneAloneAdmitsPodsWithoutServiceAccounts(t *testing.T) {
	alone := plan(t, layout.Options{ControlPlaneOnly: true}).APIServer().Args
	if !slices.Contains(alone, "--disable-admission-plugins=ServiceAccount") {
		t.Error("nobody makes service accounts there, and the plugin that asks for them is on")
	}
	if slices.Contains(plan(t, layout.Options{}).APIServer().Args, "--disable-admission-plugins=ServiceAccount") {
		t.Error("a whole cluster has the plugin off")
	}
	if slices.Contains(plan(t, layout.Options{WithoutNode: true}).APIServer().Args, "--disable-admission-plugins=ServiceAccount") {
		t.Error("a cluster whose controllers make service accounts has the plugin off")
	}
}

func TestDataIsWrittenThroughToDiskExceptWhereOnlyTestsLive(t *testing.T) {
	for _, o := range []layout.Options{{}, {WithoutNode: true}} {
		if slices.Contains(plan(t, o).Etcd().Args, "--unsafe-no-fsync") {
			t.Errorf("a cluster with controllers does not sync its database: %+v", o)
		}
	}
	if !slices.Contains(plan(t, layout.Options{ControlPlaneOnly: true}).Etcd().Args, "--unsafe-no-fsync") {
		t.Error("the API server of a test waits for the disk")
	}
}

func TestGarbageIsLeftLongerWhereOnlyTestsLive(t *testing.T) {
	for _, c := range all(plan(t, layout.Options{})) {
		if slices.Contains(c.Env, "GOGC=400") {
			t.Errorf("%s of a whole cluster leaves its garbage", c.Name)
		}
	}
	for _, o := range []layout.Options{{ControlPlaneOnly: true}, {SpendMemory: true, TarnBinary: "/tarn"}} {
		p := plan(t, o)
		for _, c := range []Component{p.Etcd(), p.APIServer()} {
			if !slices.Contains(c.Env, "GOGC=400") {
				t.Errorf("%s of a test collects its garbage as usual: %+v", c.Name, o)
			}
		}
		if slices.Contains(p.TarnNode().Env, "GOGC=400") {
			t.Errorf("the node agent is not as everywhere: %+v", o)
		}
	}
}

func TestEtcdLeavesHalfOfTheProcessorsToOthers(t *testing.T) {
	for processors, want := range map[int]string{1: "1", 2: "1", 3: "1", 4: "2", 64: "32"} {
		p := plan(t, layout.Options{})
		p.machine.Processors = processors
		for _, c := range all(p) {
			if c.Name != Etcd && slices.ContainsFunc(c.Env, func(v string) bool { return strings.HasPrefix(v, "GOMAXPROCS=") }) {
				t.Errorf("%s is kept from processors it is to have: %q", c.Name, c.Env)
			}
		}
		if env := p.Etcd().Env; !slices.Contains(env, "GOMAXPROCS="+want) {
			t.Errorf("etcd on %d processors, which should run on %s, has %q", processors, want, env)
		}
	}
}

func TestAFurtherNodeHasItsOwnAddressesDirectoriesAndZone(t *testing.T) {
	first := plan(t, layout.Options{TarnBinary: "/bin/tarn"})
	p := NewPlan(first.layout.OfNode(layout.Node{Name: "x-3", Number: 3}), first.state, first.machine)
	kubelet := p.Kubelet()
	for _, want := range []string{"--node-ip=10.181.255.10", "--hostname-override=x-3", "--node-labels=topology.kubernetes.io/zone=c", "--kubeconfig=/data/nodes/x-3/pki/kubelet.kubeconfig"} {
		if !slices.Contains(kubelet.Args, want) {
			t.Errorf("the kubelet is told %q, want %s in it", kubelet.Args, want)
		}
	}
	if config := kubelet.Files["/data/nodes/x-3/config/kubelet.yaml"]; !strings.Contains(config, "cgroupRoot: /tarn-nodes-x/x-3\n") {
		t.Errorf("the kubelet is configured with\n%s", config)
	}
	if got := p.networkConfig(); !strings.Contains(got, `"10.181.200.0/21"`) {
		t.Errorf("its pods have the addresses of\n%s", got)
	}
	if p.PullProxy() != first.PullProxy() {
		t.Errorf("it pulls images through %s, want the cluster's %s", p.PullProxy(), first.PullProxy())
	}
	if agent := p.TarnNode(); !agent.OnNode || agent.Metrics != "" {
		t.Errorf("its agent is not on its network: %+v", agent)
	}
	if got := first.Kubelet().Args; slices.ContainsFunc(got, func(arg string) bool { return strings.HasPrefix(arg, "--node-labels") }) {
		t.Errorf("the only node is labelled: %q", got)
	}
	if got, want := OfNode(layout.Options{Stock: true}), []string{Containerd, Kubelet, Proxy}; !slices.Equal(got, want) {
		t.Errorf("a further node of a stock cluster runs %q, want %q", got, want)
	}
}

func TestTheNetworkConfigurationIsJSONWithOrWithoutHostPorts(t *testing.T) {
	for filter, want := range map[string]int{"nftables": 2, "iptables": 2, "": 1} {
		p := plan(t, layout.Options{})
		p.machine.PacketFilter = filter
		var config struct {
			Plugins []struct{ Type, Backend string }
		}
		if err := json.Unmarshal([]byte(p.networkConfig()), &config); err != nil {
			t.Fatalf("%v in %s", err, p.networkConfig())
		}
		if len(config.Plugins) != want || want == 2 && config.Plugins[1].Backend != filter {
			t.Errorf("with packet filter %q there are plugins %v", filter, config.Plugins)
		}
	}
}

func TestTheControllerIsToldTheImageOfItsScrubPods(t *testing.T) {
	p := plan(t, layout.Options{TarnBinary: "/bin/tarn"})
	p.machine.TarnImage = "tarn.dev/tarn:abc"
	if args := p.TarnController().Args; !slices.Contains(args, "--scrub-image") || !slices.Contains(args, "tarn.dev/tarn:abc") {
		t.Errorf("the controller gets %q", args)
	}
}

func TestTarnIsRunAsItsContractSays(t *testing.T) {
	p := plan(t, layout.Options{TarnBinary: "/bin/tarn"})
	want := []string{"node", "--kubeconfig", "/data/pki/tarn-node.kubeconfig", "--node-name", "x", "--kubelet-dir", "/var/lib/kubelet",
		"--cri-endpoint", "unix:///run/tarn-cluster/x/containerd.sock",
		"--metrics-bind-address", "127.0.0.1:20007", "--health-probe-bind-address", "127.0.0.1:20008"}
	if got := p.TarnNode().Args; !slices.Equal(got, want) {
		t.Errorf("node agent:\n got %q\nwant %q", got, want)
	}
	want = []string{"controller", "--kubeconfig", "/data/pki/tarn-controller.kubeconfig", "--leader-elect=false",
		"--metrics-bind-address", "127.0.0.1:20005", "--health-probe-bind-address", "127.0.0.1:20006",
		"--host-path-root", "/data/host-path", "--node-name", "x", "--step-namespaces=tarn-volumes,tarn-system,default"}
	if got := p.TarnController().Args; !slices.Equal(got, want) {
		t.Errorf("controller:\n got %q\nwant %q", got, want)
	}
	want = []string{"install", "--kubeconfig", "/data/kubeconfig", "--timeout", "4m0s", "--step-namespaces=tarn-volumes,tarn-system,default", "--provisioners=shared,xfs"}
	if got := p.TarnInstall(4 * time.Minute).Args; !slices.Equal(got, want) {
		t.Errorf("install:\n got %q\nwant %q", got, want)
	}
	p = plan(t, layout.Options{TarnBinary: "/bin/tarn", WithoutNode: true})
	if got := p.TarnInstall(4 * time.Minute).Args; !slices.Equal(got, want[:6]) {
		t.Errorf("install without a node:\n got %q\nwant %q", got, want[:6])
	}
	p = plan(t, layout.Options{TarnBinary: "/bin/tarn", WithoutNode: true, Protection: layout.ByKubernetes})
	if got := p.TarnInstall(4 * time.Minute).Args; !slices.Equal(got[6:], []string{"--protection=kubernetes"}) {
		t.Errorf("install where Kubernetes protects: %q", got)
	}
}
