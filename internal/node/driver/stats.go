package driver

import (
	"context"
	"fmt"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/resultdir"
)

// NodeGetVolumeStats implements the Node service: bytes and inodes of a file system, the quota of a
// btrfs subvolume that has one, bytes of a block device.
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
	// If the server of the file system hangs, the call hangs and keeps a thread of the process. The
	// kubelet asks again and again, and the process may not have ten thousand threads.
	done := s.measures.DoChan(path, func() (any, error) { return usageOf(path) })
	select {
	case <-ctx.Done():
		return nil, status.Errorf(codes.DeadlineExceeded, "the file system at %s does not answer", path)
	case answer := <-done:
		usage, ok := answer.Val.([]*csi.VolumeUsage)
		if answer.Err != nil || !ok {
			return nil, status.Errorf(codes.Internal, "measure %s: %v", path, answer.Err)
		}
		return &csi.NodeGetVolumeStatsResponse{Usage: usage}, nil
	}
}

func usageOf(path string) ([]*csi.VolumeUsage, error) {
	file, err := ownMount(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return nil, err
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFBLK {
		size, err := resultdir.DeviceSize(fmt.Sprintf("%d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev)))
		if err != nil {
			return nil, err
		}
		return []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: size}}, nil
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &fs); err != nil {
		return nil, err
	}
	block := fs.Frsize
	if block == 0 {
		block = fs.Bsize
	}
	bytes := &csi.VolumeUsage{
		Unit:      csi.VolumeUsage_BYTES,
		Total:     int64(fs.Blocks) * block,
		Available: int64(fs.Bavail) * block,
		Used:      int64(fs.Blocks-fs.Bfree) * block,
	}
	if fs.Type == unix.BTRFS_SUPER_MAGIC && stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		switch limit, used, err := quotaOf(file); {
		case err != nil:
			return nil, err
		case limit > 0:
			bytes.Total, bytes.Used = int64(limit), int64(used)
			bytes.Available = min(bytes.Available, max(0, bytes.Total-bytes.Used))
		}
	}
	return []*csi.VolumeUsage{
		bytes,
		{
			Unit:      csi.VolumeUsage_INODES,
			Total:     int64(fs.Files),
			Available: int64(fs.Ffree),
			Used:      int64(fs.Files - fs.Ffree),
		},
	}, nil
}

// ownMount opens the file system at a path through a private mount. A query that hangs on the path
// itself would keep that mount busy, and so the pod that must release it.
func ownMount(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	defer func() { _ = file.Close() }()
	return mounts.Clone(file, false, false)
}
