package cli

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// sizeOf returns the size of a mounted file system in bytes.
func sizeOf(t *testing.T, folder string) int64 {
	t.Helper()
	var stat unix.Statfs_t
	if err := unix.Statfs(folder, &stat); err != nil {
		t.Fatal(err)
	}
	return int64(stat.Blocks) * stat.Bsize //nolint:gosec // no file system of a test comes near
}

// The e2e tests do the same with pods, and with xfs, which every kernel can grow.
func TestAnExt4OfAVolumeGrowsWhileItIsWrittenTo(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("file systems are mounted by root alone")
	}
	s := &shelf{t: t, provisioner: "xfs", volumes: t.TempDir(), pav: t.TempDir()}
	vars := map[string]any{
		"defaultHandle": "v", "handle": "v", "requestedMinCapacity": 64 << 20, "newCapacity": 256 << 20, "fsType": "ext4", "mountOptions": []any{},
		"params": map[string]any{"csi.storage.k8s.io/fstype": "ext4"},
	}
	steps := func(paths ...[]string) string {
		t.Helper()
		for _, path := range paths {
			if out, err := s.step(vars, path...); err != nil {
				return cmp.Or(out, err.Error())
			}
		}
		return ""
	}
	if said := steps([]string{"volumeCreation", "podTemplate"}, []string{"volumeStaging", "podTemplate"}); said != "" {
		t.Fatal(said)
	}
	folder := filepath.Join(s.pav, "volume")
	t.Cleanup(func() {
		if err := unix.Unmount(folder, 0); err != nil {
			t.Errorf("unmounting %s: %v", folder, err)
		}
	})
	before := sizeOf(t, folder)
	file, err := os.Create(filepath.Join(folder, "log"))
	if err != nil {
		t.Fatal(err)
	}
	end, written := make(chan bool), make(chan int, 1)
	line := []byte(strings.Repeat("x", 4095) + "\n")
	go func() {
		count := 0
		defer func() { written <- count }()
		for ; ; count++ {
			select {
			case <-end:
				return
			default:
			}
			if _, err := file.WriteAt(line, int64(count%1000*len(line))); err != nil {
				t.Errorf("writing while it grows: %v", err)
				return
			}
		}
	}()
	said := steps([]string{"volumeExpansion", "podTemplate"}, []string{"volumeExpansion", "nodePodTemplate"})
	close(end)
	count := <-written
	if err := file.Close(); err != nil {
		t.Error(err)
	}
	if strings.Contains(said, "does not let a mounted ext4 grow") {
		t.Skip(said)
	}
	if after := sizeOf(t, folder); said != "" || after < 3*before {
		t.Errorf("it had %d bytes and has %d now: %s", before, after, said)
	}
	got, err := os.ReadFile(filepath.Join(folder, "log"))
	if err != nil || count == 0 || !bytes.Equal(got, bytes.Repeat(line, min(count, 1000))) {
		t.Errorf("of %d lines %d bytes are there: %v", count, len(got), err)
	}
}
