// Package mounts is the node agent's hands on the mount table: bind, unmount,
// list, and the removal of folders that may have had mounts in them.
//
// It needs Linux 5.12 or newer (open_tree, move_mount, mount_setattr, openat2).
// It must not know of volumes, pods or the API; it is told paths.
package mounts
