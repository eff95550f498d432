package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"tarn.dev/tarn/internal/node/keymutex"
	"tarn.dev/tarn/internal/node/mounts"
)

// Config is what Drivers needs; every field must be set.
type Config struct {
	// Volumes does the work of the calls.
	Volumes Volumes
	// Mounts is the mount table, for statistics.
	Mounts mounts.Mounter
	// Folder contains one directory per driver, with its CSI socket.
	Folder string
	// Registry is the directory in which the kubelet finds registration sockets.
	Registry string
	// NodeName is the name of this node.
	NodeName string
	// Version is the version of Tarn, shown by GetPluginInfo.
	Version string
}

// Drivers serves a changing set of CSI drivers.
type Drivers struct {
	Config

	settling keymutex.Mutex // by driver

	mu      sync.Mutex
	serving map[string]*server
	closed  bool
}

// server serves one driver.
type server struct {
	paths
	csi, registration *grpc.Server
	// running waits for both servers. One stopped before it began still has its socket.
	running sync.WaitGroup
}

// New returns Drivers that serves no driver yet.
func New(config Config) *Drivers {
	return &Drivers{Config: config, serving: map[string]*server{}}
}

// Settle serves a driver that is wanted, and ends one that is not. It calls wanted while it holds
// the driver's lock. So the last of several concurrent calls acts on the latest state, and none
// removes sockets that another call has just created.
func (d *Drivers) Settle(ctx context.Context, name string, wanted func() (bool, error)) error {
	defer d.settling.Lock(name)()
	switch is, err := wanted(); {
	case err != nil:
		return err
	case is:
		return d.serve(ctx, name)
	default:
		return d.end(ctx, name)
	}
}

// serve serves the driver, unless it does already. The CSI socket exists before the kubelet sees
// the registration.
func (d *Drivers) serve(ctx context.Context, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.serving[name] != nil {
		return nil
	}
	p := d.paths(name)
	if err := d.prepare(p, name); err != nil {
		return fmt.Errorf("serve driver %s: %w", name, err)
	}
	endpoint, err := listen(p.csi)
	if err != nil {
		return fmt.Errorf("serve driver %s: %w", name, err)
	}
	announce, err := listen(p.registration)
	if err != nil {
		_ = endpoint.Close()
		return fmt.Errorf("register driver %s: %w", name, err)
	}
	logger := log.FromContext(ctx).WithName("driver").WithValues("driver", name)
	ctx = log.IntoContext(ctx, logger)
	s := &server{paths: p, csi: newServer(ctx), registration: newServer(ctx)}
	one := &service{name: name, version: d.Version, node: d.NodeName, volumes: d.Volumes, mounts: d.Mounts}
	csi.RegisterIdentityServer(s.csi, one)
	csi.RegisterNodeServer(s.csi, one)
	registration.RegisterRegistrationServer(s.registration, &registrar{name: name, endpoint: p.csi, logger: logger})
	run := func(g *grpc.Server, l net.Listener) {
		if err := g.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			logger.Error(err, "socket is no longer served", "socket", l.Addr().String())
		}
	}
	s.running.Go(func() { run(s.csi, endpoint) })
	s.running.Go(func() { run(s.registration, announce) })
	d.serving[name] = s
	logger.Info("serving", "socket", p.csi)
	return nil
}

func (d *Drivers) prepare(p paths, name string) error {
	if err := os.MkdirAll(p.folder, 0o700); err != nil {
		return err
	}
	if err := os.MkdirAll(d.Registry, 0o750); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(p.folder, nameFile), []byte(name), 0o600)
}

// stopGrace is how long calls may still run when their driver ends.
const stopGrace = 5 * time.Second

// end unregisters the driver at the kubelet, then removes its socket and directory.
func (d *Drivers) end(ctx context.Context, name string) error {
	d.mu.Lock()
	s := d.serving[name]
	delete(d.serving, name)
	d.mu.Unlock()
	if s != nil {
		s.registration.Stop()
		s.stopGracefully()
		s.running.Wait()
		log.FromContext(ctx).Info("driver ended", "driver", name)
	}
	return d.clean(d.paths(name))
}

func (s *server) stopGracefully() {
	done := make(chan struct{})
	go func() {
		s.csi.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(stopGrace):
		s.csi.Stop()
		<-done
	}
}

// clean removes the files of a driver that is not served. A served registration socket belongs to
// another driver with the name, and our files are removed all the same.
func (d *Drivers) clean(p paths) error {
	if _, err := os.Lstat(p.folder); errors.Is(err, os.ErrNotExist) {
		return nil // then the registration socket, if there is one, is not ours
	}
	if err := removeDead(p.registration); err != nil && !errors.Is(err, ErrServed) {
		return err
	}
	if err := removeDead(p.csi); err != nil {
		return err
	}
	return mounts.RemoveTree(p.folder)
}

// Clean removes what an earlier run has left of drivers that are no longer wanted. Call it before
// the first Settle.
func (d *Drivers) Clean(wanted func(name string) bool) error {
	entries, err := os.ReadDir(d.Folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var failed error
	for _, e := range entries {
		data, readErr := os.ReadFile(filepath.Join(d.Folder, e.Name(), nameFile))
		if errors.Is(readErr, os.ErrNotExist) {
			data, readErr = []byte(e.Name()), nil
		}
		if name := strings.TrimSpace(string(data)); readErr == nil && !wanted(name) {
			readErr = d.clean(d.paths(name))
		}
		failed = errors.Join(failed, readErr)
	}
	return errors.Join(err, failed)
}

// Close ends all drivers at once and for good. It cuts off running calls, and the kubelet repeats
// them. The dead sockets stay, for the next run to replace. Without them, the kubelet would remove
// the drivers from its list, and would treat the error of a mount as final.
func (d *Drivers) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for name, s := range d.serving {
		s.registration.Stop()
		s.csi.Stop()
		s.running.Wait() // a server that has just begun still has its socket
		delete(d.serving, name)
	}
}

// Serving says whether the driver is served.
func (d *Drivers) Serving(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.serving[name] != nil
}
