// Package testkit is what tests share: a real API server, builders of objects, and a client that
// fails at a given call. Only tests import it.
package testkit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/deploy"
	"tarn.dev/tarn/internal/kube"
)

// shared is the API server of one test process.
var shared struct {
	once   sync.Once
	config *rest.Config
	err    error
}

// hosts are the addresses of this process's API servers, by name.
var hosts sync.Map

// started counts this process's API servers, to name them.
var started atomic.Int32

// Main runs the tests of a package and then removes its API server. A package that calls APIServer
// calls Main in its TestMain.
func Main(m *testing.M) {
	lent.lending = true
	code := m.Run()
	if err := takeDown(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if shared.config != nil || shared.err != nil {
		if err := stop(serverName(1)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// QuietMain is Main for packages that kill their controllers, which then log many errors. It
// discards those logs.
func QuietMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	Main(m)
}

// APIServer gives a real API server with Tarn's resources, roles and policies. No controller runs
// but those the test starts. It starts on first use and is shared by the tests of the package, so
// each test uses names of its own.
func APIServer(t *testing.T) *rest.Config {
	t.Helper()
	shared.once.Do(func() {
		started.CompareAndSwap(0, 1) // the first name belongs to the shared one
		shared.config, shared.err = start(serverName(1))
	})
	if shared.err != nil {
		t.Fatalf("starting an API server for the tests: %v", shared.err)
	}
	return rest.CopyConfig(shared.config)
}

// OwnAPIServer is an APIServer that no other test uses meanwhile, so that controllers of parallel
// tests do not do each other's work. Earlier tests may have used it; only their namespaces are
// left. args are more arguments for `tarn-cluster up`; with them, the API server is new.
func OwnAPIServer(t *testing.T, args ...string) *rest.Config {
	t.Helper()
	if len(args) > 0 {
		return newAPIServer(t, args)
	}
	s, err := borrow()
	t.Cleanup(func() {
		if err := s.giveBack(t.Failed()); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatalf("starting an API server for the test: %v", err)
	}
	return rest.CopyConfig(s.config)
}

// newAPIServer starts an API server that ends with its test.
func newAPIServer(t *testing.T, args []string) *rest.Config {
	t.Helper()
	started.CompareAndSwap(0, 1)
	name := serverName(started.Add(1))
	config, err := start(name, args...)
	t.Cleanup(func() {
		if err := stop(name); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatalf("starting an API server for the test: %v", err)
	}
	return config
}

func serverName(n int32) string {
	if n == 1 {
		return fmt.Sprintf("test-%d", os.Getpid())
	}
	return fmt.Sprintf("test-%d-%d", os.Getpid(), n)
}

func stop(name string) error {
	if host, found := hosts.LoadAndDelete(name); found {
		forget(fmt.Sprint(host))
	}
	if out, err := clusterCommand("down", "--name", name).CombinedOutput(); err != nil {
		return fmt.Errorf("taking the API server of the tests down: %w\n%s", err, out)
	}
	return nil
}

// Client is a live client for the API server of APIServer.
func Client(t *testing.T, config *rest.Config) client.WithWatch {
	t.Helper()
	c, err := client.NewWithWatch(config, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatalf("making a client: %v", err)
	}
	return c
}

func start(name string, args ...string) (*rest.Config, error) {
	_ = os.Getenv("TARN_CLUSTER_BUILD") // Go caches a test's result for the variables that the test has read
	if out, err := clusterCommand(append([]string{"up", "--name", name, "--control-plane-only"}, args...)...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("tarn-cluster up: %w (run `make build` first)\n%s", err, out)
	}
	path, err := clusterCommand("kubeconfig", "--name", name).Output()
	if err != nil {
		return nil, fmt.Errorf("tarn-cluster kubeconfig: %w", err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", strings.TrimSpace(string(path)))
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = -1, -1
	hosts.Store(name, config.Host)
	return config, install(config)
}

func install(config *rest.Config) error {
	c, err := client.New(config, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		return err
	}
	objects, err := deploy.Objects()
	if err != nil {
		return err
	}
	// Most worlds have all that they need in default, as on an embedded cluster.
	if err := deploy.AllowSteps(objects, []string{tarnv1.StepNamespace, "tarn-system", "default"}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	return kube.Install(ctx, c, objects, nil)
}

// clusterCommand runs the tarn-cluster of the repository that contains the tests.
func clusterCommand(args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(root(), "bin", "tarn-cluster"), args...)
}

func root() string {
	dir, err := os.Getwd()
	if err != nil {
		return "."
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "deploy", "deploy.go")); err == nil {
			return dir
		}
	}
	return "."
}
