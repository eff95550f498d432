package driver

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"tarn.dev/tarn/internal/node/mounts"
)

// Volumes makes the volumes of a driver available on this node. Errors are gRPC statuses. Calls may
// be repeated, and run concurrently for different targets.
type Volumes interface {
	// Publish makes the volume available at the request's target path.
	Publish(ctx context.Context, driver string, request *csi.NodePublishVolumeRequest) error
	// Unpublish removes it from there again.
	Unpublish(ctx context.Context, driver string, request *csi.NodeUnpublishVolumeRequest) error
	// Expands says whether volumes of the driver may grow.
	Expands(ctx context.Context, driver string) (bool, error)
	// Expand expands a published volume, and gives its new size in bytes.
	Expand(ctx context.Context, driver string, request *csi.NodeExpandVolumeRequest) (int64, error)
}

// service answers for one driver.
type service struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer

	name    string
	version string
	node    string
	volumes Volumes
	mounts  mounts.Mounter

	measures singleflight.Group // by path
}

// GetPluginInfo implements the Identity service.
func (s *service) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: s.name, VendorVersion: s.version}, nil
}

// GetPluginCapabilities implements the Identity service. There is no controller service: Tarn's
// controllers talk only to the API server.
func (s *service) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

// Probe implements the Identity service. It always answers ready, because a socket is served only
// then.
func (s *service) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// NodeGetInfo implements the Node service.
func (s *service) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: s.node}, nil
}

// NodeGetCapabilities implements the Node service. There is no NodeStageVolume: pods on a node
// share a volume through its PavStage, which outlives both agent and kubelet.
func (s *service) NodeGetCapabilities(ctx context.Context, _ *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	rpc := func(t csi.NodeServiceCapability_RPC_Type) *csi.NodeServiceCapability {
		return &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}}}
	}
	capabilities := []*csi.NodeServiceCapability{rpc(csi.NodeServiceCapability_RPC_GET_VOLUME_STATS)}
	expands, err := s.volumes.Expands(ctx, s.name)
	if err != nil {
		return nil, err
	}
	if expands {
		capabilities = append(capabilities, rpc(csi.NodeServiceCapability_RPC_EXPAND_VOLUME))
	}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: capabilities}, nil
}

// NodeExpandVolume implements the Node service.
func (s *service) NodeExpandVolume(ctx context.Context, request *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	if err := require("volume_id", request.GetVolumeId(), "volume_path", request.GetVolumePath()); err != nil {
		return nil, err
	}
	bytes, err := s.volumes.Expand(ctx, s.name, request)
	if err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: bytes}, nil
}

// NodePublishVolume implements the Node service.
func (s *service) NodePublishVolume(ctx context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := require("volume_id", request.GetVolumeId(), "target_path", request.GetTargetPath()); err != nil {
		return nil, err
	}
	if request.GetVolumeCapability() == nil {
		return nil, status.Error(codes.InvalidArgument, "volume_capability is missing")
	}
	if err := s.volumes.Publish(ctx, s.name, request); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume implements the Node service.
func (s *service) NodeUnpublishVolume(ctx context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := require("volume_id", request.GetVolumeId(), "target_path", request.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := s.volumes.Unpublish(ctx, s.name, request); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func require(fields ...string) error {
	for i := 0; i < len(fields); i += 2 {
		if fields[i+1] == "" {
			return status.Errorf(codes.InvalidArgument, "%s is missing", fields[i])
		}
	}
	return nil
}

// observe logs a call that ends in an error, and turns a panic into an error: one bad request must
// not affect every volume of the node.
func observe(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
	begun := time.Now()
	logger := log.FromContext(ctx).WithName("csi").WithValues("method", info.FullMethod)
	if r, ok := request.(interface{ GetTargetPath() string }); ok {
		logger = logger.WithValues("target", r.GetTargetPath())
	}
	defer func() {
		if p := recover(); p != nil {
			logger.Info("panic in a call", "panic", p, "stack", string(debug.Stack()))
			answer, err = nil, status.Errorf(codes.Unavailable, "panic: %v", p)
		}
		if code := status.Code(err); code != codes.OK && code != codes.Unimplemented {
			logger.Info("call failed", "code", code.String(), "error", status.Convert(err).Message(), "took", time.Since(begun).String())
			return
		}
		logger.V(1).Info("call done", "took", time.Since(begun).String())
	}()
	return handler(log.IntoContext(ctx, logger), request)
}
