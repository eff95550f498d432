// Package mounts is the node agent's access to the mount table: it binds, unmounts and lists
// mounts, and removes directories that may contain mounts.
//
// It needs Linux 5.12 or newer (open_tree, move_mount, mount_setattr, openat2). It must not know of
// volumes, pods or the API: callers pass paths.
package mounts
