// Package testkit is what tests share: a real API server, builders of objects, and a
// client that fails where it is told to. Nothing but tests imports it.
package testkit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/deploy"
	"tarn.dev/tarn/internal/kube"
)

// server is the API server of one test process.
var server struct {
	once   sync.Once
	name   string
	config *rest.Config
	err    error
}

// Main runs the tests of a package and takes its API server down. A package that
// calls APIServer has it as its TestMain.
func Main(m *testing.M) {
	code := m.Run()
	if server.name != "" {
		if out, err := clusterCommand("down", "--name", server.name).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "taking the API server of the tests down: %v\n%s", err, out)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// APIServer gives a real API server with Tarn's resources, roles and policies, and no
// controller but what the test runs. It is started on first use and shared by the
// tests of the package: keep to names of your own.
func APIServer(t *testing.T) *rest.Config {
	t.Helper()
	server.once.Do(start)
	if server.err != nil {
		t.Fatalf("starting an API server for the tests: %v", server.err)
	}
	return rest.CopyConfig(server.config)
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

func start() {
	name := fmt.Sprintf("test-%d", os.Getpid())
	server.name = name
	if out, err := clusterCommand("up", "--name", name, "--control-plane-only").CombinedOutput(); err != nil {
		server.err = fmt.Errorf("tarn-cluster up: %w (run `make build` first)\n%s", err, out)
		return
	}
	path, err := clusterCommand("kubeconfig", "--name", name).Output()
	if err != nil {
		server.err = fmt.Errorf("tarn-cluster kubeconfig: %w", err)
		return
	}
	config, err := clientcmd.BuildConfigFromFlags("", strings.TrimSpace(string(path)))
	if err != nil {
		server.err = err
		return
	}
	config.QPS, config.Burst = -1, -1
	server.config, server.err = config, install(config)
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
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return kube.Install(ctx, c, objects, nil)
}

// clusterCommand is the tarn-cluster of the repository the tests lie in.
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
