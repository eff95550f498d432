// Command csifolders is a CSI driver independent of Tarn, for the cases that need one. A volume is
// a directory on its only node, bind-mounted where it is published. The driver registers itself at
// the kubelet and serves until it is killed. It must not know of Tarn.
//
//	csifolders NAME NODE SHELF KUBELET-DIR
//
// Volumes are directories in SHELF.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// driver serves all calls of a kubelet and an external-provisioner.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	registration.UnsafeRegistrationServer
	name, node, shelf, socket string
}

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: csifolders NAME NODE SHELF KUBELET-DIR")
		os.Exit(2)
	}
	d := &driver{name: os.Args[1], node: os.Args[2], shelf: os.Args[3], socket: filepath.Join(os.Args[4], "plugins", os.Args[1], "csi.sock")}
	if err := d.serve(filepath.Join(os.Args[4], "plugins_registry", d.name+"-reg.sock")); err != nil {
		fmt.Fprintln(os.Stderr, "csifolders:", err)
		os.Exit(1)
	}
}

// serve listens for CSI first, because the kubelet calls as soon as it sees the registration
// socket.
func (d *driver) serve(kubelet string) error {
	if err := os.MkdirAll(filepath.Dir(d.socket), 0o750); err != nil {
		return err
	}
	ended := make(chan error, 2)
	for _, socket := range []string{d.socket, kubelet} {
		if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		listener, err := net.Listen("unix", socket)
		if err != nil {
			return err
		}
		server := grpc.NewServer()
		if socket == kubelet {
			registration.RegisterRegistrationServer(server, d)
		} else {
			csi.RegisterIdentityServer(server, d)
			csi.RegisterControllerServer(server, d)
			csi.RegisterNodeServer(server, d)
		}
		go func() { ended <- server.Serve(listener) }()
	}
	return <-ended
}

// GetInfo tells the kubelet the address of the driver.
func (d *driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: d.name, Endpoint: d.socket, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus prints the kubelet's result of the registration.
func (d *driver) NotifyRegistrationStatus(_ context.Context, r *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	fmt.Println("registered:", r.PluginRegistered, r.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

// GetPluginInfo names the driver.
func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

// GetPluginCapabilities reports that there is a controller, and that volumes belong to a node.
func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	var has []*csi.PluginCapability
	for _, c := range []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS} {
		has = append(has, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: c}}})
	}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: has}, nil
}

// Probe reports that the driver is ready.
func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// ControllerGetCapabilities reports that volumes can be made and deleted.
func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	create := &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{Type: &csi.ControllerServiceCapability_Rpc{Rpc: create}}}}, nil
}

func (d *driver) topology() *csi.Topology {
	return &csi.Topology{Segments: map[string]string{d.name + "/node": d.node}}
}

// folder is the directory of a volume. An id that leads outside the shelf is an error.
func (d *driver) folder(id string) (string, error) {
	if id == "" || id == "." || id == ".." || strings.Contains(id, "/") {
		return "", status.Errorf(codes.InvalidArgument, "volume id %q is no name", id)
	}
	return filepath.Join(d.shelf, id), nil
}

// CreateVolume makes a directory of the requested name. Repeating it is harmless.
func (d *driver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	folder, err := d.folder(r.GetName())
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(folder, 0o777); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := os.Chmod(folder, 0o777); err != nil { // independent of the umask of this process
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: r.GetName(), CapacityBytes: r.GetCapacityRange().GetRequiredBytes(), AccessibleTopology: []*csi.Topology{d.topology()},
	}}, nil
}

// DeleteVolume removes a directory with the files in it. A missing one is no error. A directory
// with subdirectories stays, because something could be mounted there.
func (d *driver) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	folder, err := d.folder(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	files, err := os.ReadDir(folder)
	for _, file := range files {
		err = errors.Join(err, unix.Unlink(filepath.Join(folder, file.Name())))
	}
	if err == nil {
		err = os.Remove(folder)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// NodeGetCapabilities reports that volumes are published without being staged.
func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// NodeGetInfo names the node.
func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node, AccessibleTopology: d.topology()}, nil
}

// NodePublishVolume bind-mounts a directory. Repeating it is harmless.
func (d *driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	folder, err := d.folder(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	switch err := os.Mkdir(r.GetTargetPath(), 0o750); {
	case errors.Is(err, os.ErrExist):
		return &csi.NodePublishVolumeResponse{}, nil
	case err != nil:
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := unix.Mount(folder, r.GetTargetPath(), "", unix.MS_BIND, ""); err != nil {
		return nil, status.Error(codes.Internal, errors.Join(err, os.Remove(r.GetTargetPath())).Error())
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume unmounts the volume and removes the mount point, which is empty then.
func (d *driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	err := unix.Unmount(r.GetTargetPath(), 0)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // not a mount
		err = nil
	}
	if err == nil {
		err = os.Remove(r.GetTargetPath())
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}
