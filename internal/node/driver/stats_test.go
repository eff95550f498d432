package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/nodetest"
)

func TestMain(m *testing.M) { nodetest.Main(m.Run) }

// statsOf gives the statistics of the file system mounted at a path.
func statsOf(t *testing.T, path string) (map[csi.VolumeUsage_Unit]*csi.VolumeUsage, error) {
	t.Helper()
	s := &service{mounts: mounts.Kernel{}}
	answer, err := s.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: path})
	found := map[csi.VolumeUsage_Unit]*csi.VolumeUsage{}
	for _, usage := range answer.GetUsage() {
		found[usage.Unit] = usage
	}
	return found, err
}

func TestTheBytesAndInodesOfAFileSystemAreTold(t *testing.T) {
	const page = 4096
	dir := nodetest.Tmpfs(t)
	nodetest.Must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, "size=1m,nr_inodes=64"))
	nodetest.Must(t, os.WriteFile(filepath.Join(dir, "data"), make([]byte, 5*page), 0o600))
	found, err := statsOf(t, dir)
	nodetest.Must(t, err)
	for unit, want := range map[csi.VolumeUsage_Unit]struct{ total, used int64 }{
		csi.VolumeUsage_BYTES:  {1 << 20, 5 * page},
		csi.VolumeUsage_INODES: {64, 2}, // the directory and the file
	} {
		got := found[unit]
		if got.GetTotal() != want.total || got.GetUsed() != want.used || got.GetAvailable() != want.total-want.used {
			t.Errorf("%s: %v, want %d of %d used and the rest available", unit, got, want.used, want.total)
		}
	}
}

func TestTheQuotaOfABtrfsSubvolumeIsTold(t *testing.T) {
	for _, program := range []string{"mkfs.btrfs", "btrfs"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	const written, limit = 3 << 20, 32 << 20
	dir := nodetest.Tmpfs(t)
	device, top, volume := filepath.Join(dir, "device"), filepath.Join(dir, "top"), filepath.Join(dir, "volume")
	if err := unix.Mknod(device, unix.S_IFBLK|0o600, int(nodetest.Loop(t, 128<<20))); err != nil { //nolint:gosec // a device number fits
		t.Fatal(err)
	}
	for _, made := range []string{top, volume} {
		nodetest.Must(t, os.Mkdir(made, 0o700))
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	run("mkfs.btrfs", "-q", device)
	if err := unix.Mount(device, top, "btrfs", 0, ""); errors.Is(err, unix.ENODEV) {
		t.Skip("the kernel has no btrfs")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nodetest.Must(t, unix.Unmount(top, 0)) })
	run("btrfs", "subvolume", "create", filepath.Join(top, "sub"))
	nodetest.Must(t, unix.Mount(device, volume, "btrfs", 0, "subvol=sub"))
	t.Cleanup(func() { nodetest.Must(t, unix.Unmount(volume, 0)) })
	told := func() *csi.VolumeUsage {
		t.Helper()
		found, err := statsOf(t, volume)
		nodetest.Must(t, err)
		return found[csi.VolumeUsage_BYTES]
	}
	if got := told(); got.GetTotal() != 128<<20 {
		t.Errorf("without quotas: %v, want the size of the file system", got)
	}
	run("btrfs", "quota", "enable", top)
	if got := told(); got.GetTotal() != 128<<20 {
		t.Errorf("without a limit: %v, want the size of the file system", got)
	}
	run("btrfs", "qgroup", "limit", strconv.Itoa(limit), volume)
	nodetest.Must(t, os.WriteFile(filepath.Join(volume, "data"), make([]byte, written), 0o600))
	run("btrfs", "filesystem", "sync", top)
	got := told()
	if used := got.GetUsed(); got.GetTotal() != limit || used < written || used > written+1<<20 || got.GetAvailable() != limit-used {
		t.Errorf("%v, want a little over %d of %d used and the rest available", got, written, limit)
	}
}

func TestTheSizeOfABlockDeviceIsTold(t *testing.T) {
	const size = 3 << 20
	dir := nodetest.Tmpfs(t)
	device, target := filepath.Join(dir, "device"), filepath.Join(dir, "target")
	if err := unix.Mknod(device, unix.S_IFBLK|0o600, int(nodetest.Loop(t, size))); err != nil { //nolint:gosec // a device number fits
		t.Fatal(err)
	}
	nodetest.Must(t, os.WriteFile(target, nil, 0o600))
	nodetest.Must(t, unix.Mount(device, target, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
	found, err := statsOf(t, target)
	nodetest.Must(t, err)
	if got := found[csi.VolumeUsage_BYTES]; got.GetTotal() != size || len(found) != 1 {
		t.Errorf("%v, want %d bytes in all and nothing else", found, size)
	}
}

func TestAFileSystemThatHangsIsMeasuredOnceHoweverOftenItIsAskedForAndNotKept(t *testing.T) {
	dir := filepath.Join(nodetest.Tmpfs(t), "data")
	nodetest.Must(t, os.Mkdir(dir, 0o755))
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	nodetest.Must(t, err)
	options := fmt.Sprintf("fd=%d,rootmode=40755,user_id=0,group_id=0", device.Fd())
	nodetest.Must(t, unix.Mount("tarn-test", dir, "fuse", 0, options))
	t.Cleanup(func() {
		_ = device.Close() // the server's end, upon which the question is answered
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	})
	s := &service{mounts: mounts.Kernel{}}
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := s.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: dir})
		cancel()
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("got %v, want DeadlineExceeded", err)
		}
	}
	stacks := make([]byte, 1<<20)
	if hang := strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "driver.usageOf("); hang != 1 {
		t.Errorf("%d questions hang, want one", hang)
	}
	if err := (mounts.Kernel{}).Unmount(dir); err != nil {
		t.Errorf("while the question hangs: %v, want that it is unmounted", err)
	}
}

func TestOfWhatIsNotMountedNothingIsTold(t *testing.T) {
	dir := filepath.Join(nodetest.Tmpfs(t), "target")
	nodetest.Must(t, os.Mkdir(dir, 0o700))
	if found, err := statsOf(t, dir); status.Code(err) != codes.NotFound {
		t.Errorf("got %v, %v for a folder on the node's own disk, want NotFound", found, err)
	}
}
