package driver

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/pavdir"
)

// NodeGetVolumeStats implements the Node service: bytes and inodes of a file system,
// bytes of a block device.
func (s *service) NodeGetVolumeStats(ctx context.Context, request *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	path := request.GetVolumePath()
	if err := require("volume_id", request.GetVolumeId(), "volume_path", path); err != nil {
		return nil, err
	}
	table, err := s.mounts.List()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if len(mounts.At(table, path)) == 0 {
		return nil, status.Errorf(codes.NotFound, "no volume is mounted at %s", path)
	}
	// A file system whose server hangs would hang the call.
	type answer struct {
		usage []*csi.VolumeUsage
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		usage, err := usageOf(path)
		done <- answer{usage, err}
	}()
	select {
	case <-ctx.Done():
		return nil, status.Errorf(codes.DeadlineExceeded, "the file system at %s does not answer", path)
	case a := <-done:
		if a.err != nil {
			return nil, status.Errorf(codes.Internal, "measure %s: %v", path, a.err)
		}
		return &csi.NodeGetVolumeStatsResponse{Usage: a.usage}, nil
	}
}

func usageOf(path string) ([]*csi.VolumeUsage, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return nil, err
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFBLK {
		size, err := pavdir.DeviceSize(fmt.Sprintf("%d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev)))
		if err != nil {
			return nil, err
		}
		return []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: size}}, nil
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return nil, err
	}
	block := fs.Frsize
	if block == 0 {
		block = fs.Bsize
	}
	return []*csi.VolumeUsage{
		{
			Unit:      csi.VolumeUsage_BYTES,
			Total:     int64(fs.Blocks) * block,
			Available: int64(fs.Bavail) * block,
			Used:      int64(fs.Blocks-fs.Bfree) * block,
		},
		{
			Unit:      csi.VolumeUsage_INODES,
			Total:     int64(fs.Files),
			Available: int64(fs.Ffree),
			Used:      int64(fs.Files - fs.Ffree),
		},
	}, nil
}
