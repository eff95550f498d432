package layout

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestClusterNamesThatWouldBreakPathsOrLabelsAreRefused(t *testing.T) {
	for _, name := range []string{"", "-a", "a-", "A", "a/b", "..", "a_b", strings.Repeat("a", 33)} {
		if _, err := New(name, ""); err == nil {
			t.Errorf("New(%q) accepted the name", name)
		}
	}
	for _, name := range []string{"a", "tarn", "test-1", strings.Repeat("a", 32)} {
		if _, err := New(name, ""); err != nil {
			t.Errorf("New(%q): %v", name, err)
		}
	}
}

func TestInterfaceNamesFitTheKernelAndDifferBetweenClusters(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"tarn", "abcdefghijkl", "abcdefghijklm", "abcdefghijklmn", strings.Repeat("x", 32)} {
		l, err := New(name, "")
		if err != nil {
			t.Fatal(err)
		}
		link := l.LinkName()
		if len(link) > 15 {
			t.Errorf("the interface of %s is called %s, which has %d characters", name, link, len(link))
		}
		if other, dup := seen[link]; dup {
			t.Errorf("%s and %s both have interface %s", name, other, link)
		}
		seen[link] = name
	}
}

func TestSocketPathsOfTheLongestNameFitTheKernel(t *testing.T) {
	l, err := New(strings.Repeat("x", 32), "")
	if err != nil {
		t.Fatal(err)
	}
	const limit = 108
	for _, of := range []Layout{l, l.OfNode(Node{Name: strings.Repeat("y", 40), Number: MaxNodes})} {
		if got := len(of.ContainerdSocket() + ".ttrpc"); got >= limit {
			t.Errorf("containerd's socket path has %d characters, the kernel takes %d", got, limit-1)
		}
	}
}

func TestALockKeepsOthersOutAndLeavesNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var holders, crowds atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				unlock, err := lock(path)
				if err != nil {
					t.Error(err)
					return
				}
				if holders.Add(1) > 1 {
					crowds.Add(1)
				}
				runtime.Gosched()
				holders.Add(-1)
				unlock()
			}
		})
	}
	all.Wait()
	if n := crowds.Load(); n > 0 {
		t.Errorf("%d times the lock was had while somebody else held it", n)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a lock that nobody holds has left its file: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil { // as a killed process leaves it
		t.Fatal(err)
	}
	first, err := lock(path)
	if err != nil {
		t.Fatal(err)
	}
	first()
	second, err := lock(path)
	if err != nil {
		t.Fatal(err)
	}
	first() // once more, as by a deferred call
	if _, err := os.Stat(path); err != nil {
		t.Errorf("who held the lock before has taken the file of who holds it: %v", err)
	}
	second()
}

func TestNoClusterHasTheLockOfAll(t *testing.T) {
	for _, what := range []string{"allot", "images"} {
		if _, err := New("_"+what, ""); err == nil {
			t.Errorf("a cluster may be called _%s, which is the name of a lock that all share", what)
		}
	}
}

func TestBlocksNeverOverlapAndHoldTheirParts(t *testing.T) {
	var seen []netip.Prefix
	for index := range blocks {
		n := NetOf(index)
		for _, part := range []netip.Prefix{n.Pods, n.Services, n.Link} {
			if !n.Block.Contains(part.Addr()) || part.Bits() < n.Block.Bits() {
				t.Errorf("block %s does not hold %s", n.Block, part)
			}
		}
		if n.Pods.Overlaps(n.Services) || n.Pods.Overlaps(n.Link) || n.Services.Overlaps(n.Link) {
			t.Errorf("parts of block %s overlap: %s, %s, %s", n.Block, n.Pods, n.Services, n.Link)
		}
		if !n.Link.Contains(n.Host) || !n.Link.Contains(n.Node) || !n.Services.Contains(n.API) {
			t.Errorf("addresses of block %s lie outside of their networks", n.Block)
		}
		parts := []netip.Prefix{n.Pods, n.Services, n.Link}
		for number := firstFurther; number <= MaxNodes; number++ {
			of := n.Of(Node{Number: number})
			for _, part := range []netip.Prefix{of.Pods, of.Link} {
				if overlaps(part, parts) || !n.Further.Contains(part.Addr()) {
					t.Errorf("%s of node %d overlaps one of %s, or lies outside of %s", part, number, parts, n.Further)
				}
				parts = append(parts, part)
			}
			if !of.Link.Contains(of.Hub) || !of.Link.Contains(of.Node) || !n.Cables.Contains(of.Node) {
				t.Errorf("addresses of node %d lie outside of their networks: %+v", number, of)
			}
		}
		if overlaps(n.Block, seen) {
			t.Errorf("block %s overlaps another", n.Block)
		}
		seen = append(seen, n.Block)
	}
}

func TestABlockIsChosenThatNeitherAClusterNorTheMachineHas(t *testing.T) {
	networks := []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/0"), // a default route must not forbid everything
		netip.MustParsePrefix("10.181.7.0/24"),
	}
	got, err := ChooseBlock(map[int]bool{0: true}, networks)
	if err != nil {
		t.Fatal(err)
	}
	if got != 2 {
		t.Errorf("chose block %d, want 2: 0 belongs to a cluster, 1 overlaps 10.181.7.0/24", got)
	}
	if _, err := ChooseBlock(nil, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}); err == nil {
		t.Error("chose a block on a machine that has all of 10.0.0.0/8")
	}
}

func TestPortsAreKeptAsLongAsTheyAreFree(t *testing.T) {
	free := func(int) bool { return true }
	first, err := ChoosePorts(nil, 7, nil, free)
	if err != nil {
		t.Fatal(err)
	}
	if len(first) != len(PortUses()) {
		t.Fatalf("chose %d ports for %d uses", len(first), len(PortUses()))
	}
	lost := first[PortEtcd]
	second, err := ChoosePorts(first, 999, nil, func(port int) bool { return port != lost })
	if err != nil {
		t.Fatal(err)
	}
	for _, use := range PortUses() {
		if kept := second[use] == first[use]; kept == (use == PortEtcd) {
			t.Errorf("port of %s: first %d, then %d, with %d taken meanwhile", use, first[use], second[use], lost)
		}
	}
}

func TestPortsOfOtherClustersAreLeftAloneEvenWhenNobodyListens(t *testing.T) {
	taken := map[int]bool{}
	for port := firstPort; port <= lastPort; port++ {
		taken[port] = port != 25000 && port > firstPort+20
	}
	got, err := ChoosePorts(nil, 4990, taken, func(int) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	distinct := map[int]bool{}
	for use, port := range got {
		if taken[port] || distinct[port] {
			t.Errorf("%s got port %d, which is taken", use, port)
		}
		distinct[port] = true
	}
}

func TestNoFreePortIsAnErrorAndNotALoop(t *testing.T) {
	if _, err := ChoosePorts(nil, 0, nil, func(int) bool { return false }); err == nil {
		t.Error("chose ports although none is free")
	}
}

func TestStateSurvivesARoundTripAndADamagedFileSaysWhatToDo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "state.json")
	want := State{Name: "x", Data: "/d", Block: 3, Ports: Ports{PortAPI: 20001}, Options: Options{Stock: true, ExtraArgs: map[string][]string{"etcd": {"--a"}}}}
	if err := WriteState(path, want); err != nil {
		t.Fatal(err)
	}
	got, err := ReadState(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.Server() != want.Server() || got.Options.ExtraArgs["etcd"][0] != "--a" || !got.Options.Stock {
		t.Errorf("read back %+v, want %+v", got, want)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadState(path); err == nil || !strings.Contains(err.Error(), "down") {
		t.Errorf("damaged state file: %v; want an error that names the remedy", err)
	}
	if _, err := ReadState(path + ".none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing state file: %v, want one that is os.ErrNotExist", err)
	}
}

func TestAControlPlaneWithoutANodeListensOnTheLoopbackInterfaceOnly(t *testing.T) {
	alone := State{Options: Options{ControlPlaneOnly: true}}
	if alone.Address() != "127.0.0.1" {
		t.Errorf("listens on %s", alone.Address())
	}
	whole := State{Block: 5}
	if whole.Address() != "10.185.255.1" {
		t.Errorf("with a node it listens on %s, want the host's end of the cable", whole.Address())
	}
}

func TestWhatIsNotAskedForStaysAsItWas(t *testing.T) {
	for _, c := range []struct {
		name                 string
		asked, earlier, want Options
	}{
		{"nothing asked, nothing before", Options{}, Options{}, Options{Binder: DefaultBinder, Protection: DefaultProtection, TarnControllers: DefaultControllers}},
		{"nothing asked, all there before", Options{}, Options{Binder: ByTarn, Protection: ByTarn, TarnControllers: 2}, Options{Binder: ByTarn, Protection: ByTarn, TarnControllers: 2}},
		{"asked wins", Options{Binder: ByKubernetes, TarnControllers: 1}, Options{Binder: ByTarn, Protection: ByTarn, TarnControllers: 2},
			Options{Binder: ByKubernetes, Protection: ByTarn, TarnControllers: 1}},
		{"without Tarn Kubernetes does it all", Options{Stock: true}, Options{Binder: ByTarn, Protection: ByTarn, TarnControllers: 2},
			Options{Stock: true, Binder: ByKubernetes, Protection: ByKubernetes}},
	} {
		if got := c.asked.After(c.earlier); got.Binder != c.want.Binder || got.Protection != c.want.Protection || got.TarnControllers != c.want.TarnControllers {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestARunningClusterIsTheSameOnlyWithTheSameOptions(t *testing.T) {
	running := Options{Binder: ByTarn, Protection: ByKubernetes, TarnControllers: 1, ExtraArgs: map[string][]string{"etcd": {"--a"}}}
	if !running.Same(Options{ExtraArgs: map[string][]string{"etcd": {"--a"}}}) {
		t.Error("what is not asked for counts as a difference")
	}
	for what, other := range map[string]Options{
		"binder": {Binder: ByKubernetes, ExtraArgs: running.ExtraArgs}, "second controller": {TarnControllers: 2, ExtraArgs: running.ExtraArgs},
		"node": {WithoutNode: true, ExtraArgs: running.ExtraArgs}, "arguments": {}, "API": {WithoutAPI: true, ExtraArgs: running.ExtraArgs},
	} {
		if running.Same(other) {
			t.Errorf("another %s goes unnoticed", what)
		}
	}
}

func TestOptionsThatCannotBeAreRefusedByName(t *testing.T) {
	for _, c := range []struct {
		options Options
		want    []string
	}{
		{Options{Binder: "upstream"}, []string{"--binder=upstream", "tarn or kubernetes"}},
		{Options{Protection: "none"}, []string{"--protection=none"}},
		{Options{Stock: true, Binder: ByTarn}, []string{"--binder=tarn", "--stock"}},
		{Options{ControlPlaneOnly: true, Protection: ByTarn}, []string{"--protection=tarn", "--control-plane-only"}},
		{Options{TarnControllers: 3}, []string{"--tarn-controllers=3", "2"}},
	} {
		err := c.options.Check()
		for _, word := range c.want {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%+v: %v, want %q in it", c.options, err, word)
			}
		}
	}
	if err := (Options{Binder: ByTarn, Protection: ByKubernetes, TarnControllers: 2, WithoutNode: true}).Check(); err != nil {
		t.Error(err)
	}
}
