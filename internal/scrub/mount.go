package scrub

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// mount is what the kernel reports of a mounted file system: which of its directories is mounted,
// its type, and its own options.
type mount struct {
	root, kind string
	options    []string
}

// mountOf gives the mount that contains an open directory.
func mountOf(dir *os.File) (mount, error) {
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(int(dir.Fd())))
	if err != nil {
		return mount{}, fmt.Errorf("asking where the volume is mounted: %w", err)
	}
	_, id, found := strings.Cut(string(info), "mnt_id:")
	if !found {
		return mount{}, errors.New("asking where the volume is mounted: the kernel does not say")
	}
	id = strings.Fields(id)[0]
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return mount{}, fmt.Errorf("reading the mounts: %w", err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(mounts)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		end := slices.Index(fields, "-")
		if len(fields) < 6 || fields[0] != id || end < 0 || end+1 >= len(fields) {
			continue
		}
		m := mount{root: fields[3], kind: fields[end+1]}
		if end+3 < len(fields) {
			m.options = strings.Split(fields[end+3], ",")
		}
		return m, nil
	}
	return mount{}, fmt.Errorf("asking where the volume is mounted: there is no mount %s", id)
}

// discards says whether the file system discards freed blocks by itself. A trim may then find
// nothing left to discard.
func (m mount) discards() bool {
	return slices.ContainsFunc(m.options, func(o string) bool { return o == "discard" || strings.HasPrefix(o, "discard=") })
}
