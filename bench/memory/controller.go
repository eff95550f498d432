package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// every is the interval between checks of the controller's progress.
	every = 100 * time.Millisecond
	// afterwards is how long the controller is watched after it has come to rest. By then its
	// garbage collector has run twice.
	afterwards = 20 * time.Second
)

// controller makes volumes, unless they exist, and starts the controller twice: after a restart the
// cluster's caches are warm. It reports the memory and how long it took until every volume was
// reconciled. Then it starts all controllers, including those that bind and protect in place of
// Kubernetes' own, as the embedded cluster does.
func (b *bench) controller(ctx context.Context, binary string, volumes int) error {
	if err := b.install(ctx, binary); err != nil {
		return err
	}
	if err := b.populate(ctx, volumes); err != nil {
		return err
	}
	for _, one := range []struct {
		what string
		args []string
	}{
		{what: "controller, first start"},
		{what: "controller, restarted"},
		{what: "all controllers", args: []string{"--controllers=*"}},
	} {
		if err := b.watchController(ctx, one.what, binary, volumes, one.args...); err != nil {
			return fmt.Errorf("%s: %w", one.what, err)
		}
	}
	return nil
}

// install applies Tarn's resources.
func (b *bench) install(ctx context.Context, binary string) error {
	out, err := exec.CommandContext(ctx, binary, "install").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s install: %w: %s", binary, err, out)
	}
	return nil
}

func (b *bench) watchController(ctx context.Context, what, binary string, volumes int, args ...string) error {
	metrics, profiles, err := twoAddresses()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(os.TempDir(), name+"-controller.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	command := exec.CommandContext(ctx, binary, append([]string{"controller", "--leader-elect=false",
		"--metrics-bind-address", metrics, "--health-probe-bind-address", "0", "--pprof-bind-address", profiles}, args...)...)
	command.Stderr, command.Cancel = log, func() error { return command.Process.Signal(syscall.SIGTERM) }
	began := time.Now()
	if err := command.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	watching, enough := context.WithCancel(ctx)
	most := watchMost(watching, command.Process.Pid)
	took, err := atRest(ctx, metrics, volumes, began, ended)
	if err != nil {
		enough()
		return fmt.Errorf("%w; its log is %s", err, log.Name())
	}
	select {
	case <-time.After(afterwards):
	case err := <-ended:
		enough()
		return fmt.Errorf("it has ended: %w; its log is %s", err, log.Name())
	}
	h, err := memoryOf(command.Process.Pid)
	enough()
	seen := <-most
	page, metricsErr := get(ctx, metrics, "/metrics")
	if err := errors.Join(err, metricsErr, b.keepProfile(ctx, profiles)); err != nil {
		return err
	}
	b.report.add(result{What: fmt.Sprintf("%s, %d volumes", what, volumes), Asked: controllerLimit << 20, Now: h, Most: seen, Seconds: took.Seconds()})
	fmt.Printf("  %.1f s until it had looked at all, %.1f s of CPU, heap %.1f MiB live\n",
		took.Seconds(), metric(page, "process_cpu_seconds_total"), mib(int64(metric(page, "go_memstats_heap_alloc_bytes"))))
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	<-ended //nolint:errcheck // how it ends on a signal is no result
	return nil
}

// atRest waits until a controller has reconciled every volume and is idle. The controller sends no
// event for that, so atRest polls.
func atRest(ctx context.Context, metrics string, volumes int, began time.Time, ended <-chan error) (time.Duration, error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		page, err := get(ctx, metrics, "/metrics")
		if err == nil && rests(page, volumes) {
			return time.Since(began), nil
		}
		select {
		case <-tick.C:
		case err := <-ended:
			return 0, fmt.Errorf("it has ended: %w", err)
		case <-ctx.Done():
			return 0, fmt.Errorf("it never came to rest: %w", ctx.Err())
		}
	}
}

func rests(page []byte, volumes int) bool {
	if metric(page, "controller_runtime_reconcile_total", `controller="pavvolume"`) < float64(volumes) {
		return false
	}
	return metric(page, "workqueue_depth") == 0 && metric(page, "controller_runtime_active_workers") == 0
}

// twoAddresses gives addresses of this machine that were free just before.
func twoAddresses() (first, second string, err error) {
	var found []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", err
		}
		defer func() { _ = l.Close() }()
		found = append(found, l.Addr().String())
	}
	return found[0], found[1], nil
}
