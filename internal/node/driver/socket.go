package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// maxSocketPath is the longest path of a Unix socket (sun_path less its final zero). A driver's
// name may have 63 characters, which is too many in a deep directory.
const maxSocketPath = 107

// paths are the files of one driver.
type paths struct {
	folder, csi, registration string
}

func (d *Drivers) paths(name string) paths {
	p := paths{
		folder:       filepath.Join(d.Folder, name),
		registration: filepath.Join(d.Registry, name+"-reg.sock"),
	}
	if len(filepath.Join(p.folder, "csi.sock")) > maxSocketPath {
		p.folder = filepath.Join(d.Folder, short(name))
	}
	if len(p.registration) > maxSocketPath {
		p.registration = filepath.Join(d.Registry, short(name)+"-reg.sock")
	}
	p.csi = filepath.Join(p.folder, "csi.sock")
	return p
}

// short replaces a name that is too long for a path. Its dot distinguishes it from every name a
// PavProvisioner can have.
func short(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "tarn." + hex.EncodeToString(sum[:8])
}

// nameFile in a driver's directory tells a later run the name of the driver.
const nameFile = "name"

// listen creates a socket, and replaces one that is no longer served. A served socket stays: it
// belongs to another driver, or to an earlier run of the agent that has not ended yet.
func listen(path string) (net.Listener, error) {
	if err := removeDead(path); err != nil {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false) // see Drivers.Close
	if err := os.Chmod(path, 0o600); err != nil {
		_ = listener.Close()
		return nil, err
	}
	return listener, nil
}

// ErrServed says that another process listens at a socket.
var ErrServed = errors.New("served by another process; stop it, or rename the PavProvisioner if it is another CSI driver")

func removeDead(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("%s exists and is not a socket; remove it", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("%s is %w", path, ErrServed)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// registrar registers a driver at the kubelet.
type registrar struct {
	registration.UnimplementedRegistrationServer

	name, endpoint string
	logger         interface {
		Info(msg string, keysAndValues ...any)
	}
}

// GetInfo implements the kubelet's plugin registration.
func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              r.name,
		Endpoint:          r.endpoint,
		SupportedVersions: []string{"1.0.0"}, // of CSI
	}, nil
}

// NotifyRegistrationStatus implements the kubelet's plugin registration. The kubelet retries by
// itself.
func (r *registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if s.GetPluginRegistered() {
		r.logger.Info("registered with the kubelet")
	} else {
		r.logger.Info("the kubelet rejected the driver", "because", s.GetError())
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// newServer is a gRPC server with small buffers: its messages are small, and there
// are two for each driver.
func newServer(ctx context.Context) *grpc.Server {
	const buffer = 4 << 10
	logger := log.FromContext(ctx)
	return grpc.NewServer(
		grpc.ReadBufferSize(buffer), grpc.WriteBufferSize(buffer),
		grpc.ChainUnaryInterceptor(
			func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				return observe(log.IntoContext(ctx, logger), request, info, handler)
			}),
	)
}
