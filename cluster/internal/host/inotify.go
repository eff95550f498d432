package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"tarn.dev/tarn/cluster/internal/layout"
)

const (
	inotifySysctl = "/proc/sys/fs/inotify/max_user_instances"
	// inotifyInstances is enough for some forty clusters: a whole one holds 21 (measured: kubelet 6, API server 6, controller manager 5,
	// containerd 2, proxy and node agent 1 each), and Linux gives a user 128 by default, so a sixth kubelet would not start.
	inotifyInstances = 1024
)

// inotifyFile remembers what the machine had before.
func inotifyFile() string { return filepath.Join(layout.RunRoot(), "inotify-instances-before") }

// RaiseInotify lets root watch more files than Linux does by default. It is the one setting of the machine that clusters change; the last one to
// go puts it back.
func RaiseInotify() error {
	before, err := readInt(inotifySysctl)
	if err != nil || before >= inotifyInstances {
		return err
	}
	if err := layout.WriteFile(inotifyFile(), []byte(strconv.Itoa(before)), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(inotifySysctl, []byte(strconv.Itoa(inotifyInstances)), 0); err != nil {
		return fmt.Errorf("raising fs.inotify.max_user_instances from %d to %d: %w", before, inotifyInstances, err)
	}
	return nil
}

// restoreInotify puts the setting back, unless somebody else has changed it meanwhile.
func restoreInotify() error {
	before, err := readInt(inotifyFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if now, err := readInt(inotifySysctl); err != nil || now != inotifyInstances {
		return errors.Join(err, os.Remove(inotifyFile()))
	}
	if err := os.WriteFile(inotifySysctl, []byte(strconv.Itoa(before)), 0); err != nil {
		return fmt.Errorf("putting fs.inotify.max_user_instances back to %d: %w", before, err)
	}
	return os.Remove(inotifyFile())
}

func readInt(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading a number: %w", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("reading a number from %s: %w", path, err)
	}
	return n, nil
}
