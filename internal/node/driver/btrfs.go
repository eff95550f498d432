package driver

import (
	"encoding/binary"
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// These are the parts of the kernel's include/uapi/linux/btrfs.h and btrfs_tree.h that quotaOf uses.
// Both structures of the calls take 4096 bytes.
const (
	btrfsTreeSearch = 0xd0009411 // BTRFS_IOC_TREE_SEARCH
	btrfsInoLookup  = 0xd0009412 // BTRFS_IOC_INO_LOOKUP

	btrfsRootInode  = 256 // BTRFS_FIRST_FREE_OBJECTID, the root directory of each subvolume
	btrfsQuotaTree  = 8   // BTRFS_QUOTA_TREE_OBJECTID
	btrfsQuotaUse   = 242 // BTRFS_QGROUP_INFO_KEY
	btrfsQuotaLimit = 244 // BTRFS_QGROUP_LIMIT_KEY

	btrfsLimitsReferenced = 1 // BTRFS_QGROUP_LIMIT_MAX_RFER

	btrfsSearchKey  = 104 // bytes of struct btrfs_ioctl_search_key
	btrfsItemHeader = 32  // bytes of struct btrfs_ioctl_search_header
)

// quotaOf gives the quota of the btrfs subvolume that a directory lies in, in bytes, and how much
// of it is used. statfs shows the whole file system instead. limit is 0 if the subvolume has no
// quota, or if this process may not read quotas. The use is that of the last commit, which is at
// most 30 s old by default.
func quotaOf(dir *os.File) (limit, used uint64, err error) {
	// The file may be open as a path only.
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, &os.PathError{Op: "open", Path: dir.Name(), Err: err}
	}
	defer func() { _ = unix.Close(fd) }()

	var lookup [4096]byte
	binary.NativeEndian.PutUint64(lookup[8:], btrfsRootInode)
	if err := ioctl(fd, btrfsInoLookup, &lookup); err != nil {
		return 0, 0, os.NewSyscallError("BTRFS_IOC_INO_LOOKUP", err)
	}
	subvolume := binary.NativeEndian.Uint64(lookup[:])

	item, err := quotaItem(fd, btrfsQuotaLimit, subvolume)
	if len(item) < 16 || err != nil {
		return 0, 0, err
	}
	if flags := binary.LittleEndian.Uint64(item); flags&btrfsLimitsReferenced == 0 {
		return 0, 0, nil
	}
	limit = binary.LittleEndian.Uint64(item[8:])
	if item, err = quotaItem(fd, btrfsQuotaUse, subvolume); len(item) < 16 || err != nil {
		return 0, 0, err
	}
	return limit, binary.LittleEndian.Uint64(item[8:]), nil
}

// quotaItem reads an item of a subvolume from the quota tree. It is empty if there is none.
func quotaItem(fd int, kind uint32, subvolume uint64) ([]byte, error) {
	var search [4096]byte
	put := binary.NativeEndian.PutUint64
	put(search[0:], btrfsQuotaTree)
	put(search[24:], subvolume)  // min_offset
	put(search[32:], subvolume)  // max_offset
	put(search[48:], ^uint64(0)) // max_transid
	for _, at := range []int{56, 60} {
		binary.NativeEndian.PutUint32(search[at:], kind) // min_type, max_type
	}
	binary.NativeEndian.PutUint32(search[64:], 1) // nr_items
	switch err := ioctl(fd, btrfsTreeSearch, &search); {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EPERM): // no quotas; not CAP_SYS_ADMIN
		return nil, nil
	case err != nil:
		return nil, os.NewSyscallError("BTRFS_IOC_TREE_SEARCH", err)
	}
	if binary.NativeEndian.Uint32(search[64:]) == 0 {
		return nil, nil
	}
	size := int(binary.NativeEndian.Uint32(search[btrfsSearchKey+28:]))
	item := search[btrfsSearchKey+btrfsItemHeader:]
	return item[:min(size, len(item))], nil
}

func ioctl(fd int, request uintptr, argument *[4096]byte) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(argument))); errno != 0 {
		return errno
	}
	return nil
}
