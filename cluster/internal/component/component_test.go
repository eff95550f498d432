package component

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

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
		Machine{Programs: "/programs", ProxyMode: "nftables", PortMap: true, ResolverConfig: "/resolv", NameServers: []string{"192.0.2.53"}})
}

func all(p Plan) []Component {
	return []Component{p.Etcd(), p.APIServer(), p.ControllerManager(), p.Scheduler(), p.Containerd(), p.Kubelet(), p.Proxy(), p.TarnController(), p.TarnNode()}
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
	kept := ControllersLeftToTarn
	t.Cleanup(func() { ControllersLeftToTarn = kept })
	ControllersLeftToTarn = []string{"a-controller", "b-controller"}
	stock := strings.Join(plan(t, layout.Options{Stock: true}).ControllerManager().Args, " ")
	if !strings.Contains(stock, "--controllers=* ") && !strings.HasSuffix(stock, "--controllers=*") {
		t.Errorf("a stock cluster is told %s", stock)
	}
	if strings.Contains(stock, "kube-api-qps") {
		t.Errorf("a stock cluster has another rate than usual: %s", stock)
	}
	tarn := strings.Join(plan(t, layout.Options{}).ControllerManager().Args, " ")
	if !strings.Contains(tarn, "--controllers=*,-a-controller,-b-controller") {
		t.Errorf("a cluster with Tarn is told %s", tarn)
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
}

func TestDataIsWrittenThroughToDiskExceptWhereOnlyTestsLive(t *testing.T) {
	if slices.Contains(plan(t, layout.Options{}).Etcd().Args, "--unsafe-no-fsync") {
		t.Error("a cluster that keeps people's volumes does not sync its database")
	}
}

func TestTheNetworkConfigurationIsJSONWithOrWithoutHostPorts(t *testing.T) {
	for _, portMap := range []bool{true, false} {
		p := plan(t, layout.Options{})
		p.machine.PortMap = portMap
		var config struct {
			Plugins []struct{ Type string }
		}
		if err := json.Unmarshal([]byte(p.networkConfig()), &config); err != nil {
			t.Fatalf("%v in %s", err, p.networkConfig())
		}
		want := 1
		if portMap {
			want = 2
		}
		if len(config.Plugins) != want {
			t.Errorf("with host ports %t there are plugins %v", portMap, config.Plugins)
		}
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
		"--metrics-bind-address", "127.0.0.1:20005", "--health-probe-bind-address", "127.0.0.1:20006"}
	if got := p.TarnController().Args; !slices.Equal(got, want) {
		t.Errorf("controller:\n got %q\nwant %q", got, want)
	}
	want = []string{"install", "--kubeconfig", "/data/kubeconfig"}
	if got := p.TarnInstall().Args; !slices.Equal(got, want) {
		t.Errorf("install:\n got %q\nwant %q", got, want)
	}
}
