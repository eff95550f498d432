package resultdir

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"tarn.dev/tarn/api/v1alpha1"
)

// Limits in bytes. A handle becomes part of a PersistentVolume and a capacity is a number. An error
// becomes an annotation, and all annotations together may have 256 KiB.
const (
	maxValue     = 4 << 10
	maxErrorRead = 64 << 10
	maxError     = 4 << 10
)

// ReadResults reads handle, capacity and error of a pod that has ended. Unreadable says what is
// wrong with a file. The error is for a directory that cannot be read.
func ReadResults(folder string) (v1alpha1.PodResult, error) {
	var result v1alpha1.PodResult
	dir, err := openFolder(folder)
	if err != nil {
		return result, err
	}
	defer func() { _ = dir.Close() }()
	var wrong []string
	value := func(name string) *string {
		text, found, err := readFile(dir, name, maxValue, false)
		if err == nil && found && !utf8.ValidString(text) {
			err = errors.New("is not valid UTF-8")
		}
		if err != nil {
			wrong = append(wrong, "/pav/"+name+" "+err.Error())
			return nil
		}
		if !found {
			return nil
		}
		text = strings.TrimSpace(text)
		return &text
	}
	result.Handle = value("handle")
	result.Capacity = value("capacity")
	text, _, err := readFile(dir, "error", maxErrorRead, true)
	if err != nil {
		wrong = append(wrong, "/pav/error "+err.Error())
	}
	result.Error = tidy(text)
	result.Unreadable = strings.Join(wrong, "; ")
	return result, nil
}

// ReadError is the text of /pav/error without surrounding blanks, at most 4 KiB. If the file cannot
// be read, it says why. It is empty if there is no file.
func ReadError(folder string) string {
	dir, err := openFolder(folder)
	if err != nil {
		return ""
	}
	defer func() { _ = dir.Close() }()
	text, _, err := readFile(dir, "error", maxErrorRead, true)
	if err != nil {
		return "/pav/error " + err.Error()
	}
	return tidy(text)
}

// Ready says whether /pav/ready exists, as a file of any kind.
func Ready(folder string) bool {
	_, err := os.Lstat(filepath.Join(folder, "ready"))
	return err == nil
}

// tidy makes text fit for display: valid, trimmed, and cut between two characters.
func tidy(text string) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	text = strings.TrimSpace(text)
	if len(text) <= maxError {
		return text
	}
	const more = "..."
	cut := maxError - len(more)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + more
}

func openFolder(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open directory", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// readFile reads a regular file of the directory. It first opens the file without side effects,
// because a named pipe would block and a device might act. It opens a regular file for reading
// then. With cut, text beyond the limit is dropped; otherwise that is an error.
func readFile(dir *os.File, name string, limit int64, cut bool) (text string, found bool, err error) {
	fd, err := unix.Openat2(int(dir.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return "", false, nil
	case errors.Is(err, unix.ELOOP):
		return "", true, errors.New("is a symbolic link, which is not followed; write a regular file")
	case errors.Is(err, unix.EXDEV):
		return "", true, errors.New("is a mount, which is not read; write a regular file")
	case err != nil:
		return "", true, fmt.Errorf("cannot be opened: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return "", true, fmt.Errorf("cannot be read: %w", err)
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFLNK:
		return "", true, errors.New("is a symbolic link, which is not followed; write a regular file")
	default:
		return "", true, errors.New("is not a regular file; write a regular file")
	}
	if stat.Size > limit && !cut {
		return "", true, fmt.Errorf("has %d bytes; the limit is %d", stat.Size, limit)
	}
	file, err := os.Open("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return "", true, fmt.Errorf("cannot be opened: %w", err)
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, limit))
	if err != nil {
		return "", true, fmt.Errorf("cannot be read: %w", err)
	}
	return string(data), true, nil
}
