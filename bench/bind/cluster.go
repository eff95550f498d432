package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// clusterPrefix begins the names of this benchmark's clusters; the mode follows. There is at most
// one cluster for a mode.
const clusterPrefix = "tarn-bench-bind"

// cluster is a running cluster with its binder.
type cluster struct {
	program string
	name    string
	subject subject
	client  *kubernetes.Clientset
	pids    map[string]int // by component
	pprof   string         // host:port of the profiles of Tarn's controller, if requested
}

// start starts a fresh cluster without a node. Binding needs no node, and nothing else should use
// the processors. With every binder, Kubernetes' programs collect their garbage less often, as in
// the tests, because that is not what is measured.
func start(ctx context.Context, s settings, one planned) (*cluster, error) {
	c := &cluster{program: s.program, name: clusterPrefix + "-" + one.mode, subject: one.subject}
	args := append([]string{"up", "--without-node", "--spend-memory"}, one.subject.up...)
	if s.tarn != "" {
		args = append(args, "--tarn-binary="+s.tarn)
	}
	if s.profiles != "" && one.subject.process == tarnController {
		address, err := freeAddress()
		if err != nil {
			return nil, err
		}
		c.pprof = address
		args = append(args, "--tarn-controller-arg=--pprof-bind-address="+address)
	}
	if _, err := c.command(ctx, args...); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	if err := c.connect(ctx); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

// connect makes a client without a rate limit that uses protobuf, as both binders do. So it takes
// little time of the processors they share.
func (c *cluster) connect(ctx context.Context) error {
	path, err := c.command(ctx, "kubeconfig")
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", strings.TrimSpace(path))
	if err != nil {
		return err
	}
	config.QPS, config.Burst = -1, -1
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = config.ContentType + ",application/json"
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	text, err := c.command(ctx, "status", "--output=json")
	if err != nil {
		return err
	}
	var status struct {
		Components []struct {
			Name string
			PID  int
		}
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		return fmt.Errorf("reading the cluster's status: %w", err)
	}
	c.pids = map[string]int{thisProgram: os.Getpid()}
	for _, component := range status.Components {
		c.pids[component.Name] = component.PID
	}
	if c.pids[c.subject.process] == 0 {
		return fmt.Errorf("the cluster runs no %s: see `%s status --name %s`", c.subject.process, c.program, c.name)
	}
	return nil
}

// stopLeft stops the clusters that an interrupted benchmark has left. They would use the machine,
// and are not fresh.
func stopLeft(s settings) error {
	for _, mode := range modeNames() {
		left := cluster{program: s.program, name: clusterPrefix + "-" + mode}
		if err := left.stop(); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) stop() error {
	_, err := c.command(context.Background(), "down")
	return err
}

// command runs tarn-cluster for the cluster and returns its output.
func (c *cluster) command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.program, append(args, "--name="+c.name)...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", c.program, args[0], err, strings.TrimSpace(complaint.String()))
	}
	return string(out), nil
}

// alone keeps a second benchmark from starting while one runs. The two would measure each other and
// use the same clusters.
func alone() (unlock func() error, err error) {
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), clusterPrefix+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the benchmark's lock: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("this benchmark runs on this machine already (%w): wait until it has ended", err), lock.Close())
	}
	return lock.Close, nil
}

// freeAddress is an address of this machine where no program listens.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("finding a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}
