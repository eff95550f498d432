package hostpath

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

const (
	// marker is a file in a root that contains its ID. It tells the root from another directory at
	// the same path, such as the one beneath a disk that is not mounted. No volume's name begins
	// with a dot.
	marker = ".tarn-root"
	// markerMode lets only user root read it, like the root itself.
	markerMode = 0o600
	// idBytes is the length of an ID, which is written as twice as many digits.
	idBytes = 16
	// mostMarker is how much of a marker is read: an ID, and blanks that an editor left.
	mostMarker = 64
	// idAfter separates the path of a root from its ID in a place. A volume begun in another root
	// is so not looked for in this one.
	idAfter = "#"
)

// IsMarker says whether an entry of a root is its marker, or the rest of one from a killed start.
func IsMarker(entry string) bool { return entry == marker || strings.HasPrefix(entry, marker+".") }

// place identifies the root among all that may be found at its path. It is empty if the root cannot
// have a marker.
func (f folders) place() string {
	if f.id == "" {
		return ""
	}
	return f.root + idAfter + f.id
}

// mark reads the ID of a root, and first creates one if there is none. Processes that start at the
// same time get the same ID. A root that is full or read-only gets none. Its volumes are served all
// the same, because a deletion may be what frees space.
func (f folders) mark(top *os.File) (string, error) {
	id, err := f.readMarker(top)
	if !errors.Is(err, unix.ENOENT) {
		return id, err
	}
	if f.makeMarker(top) != nil {
		return "", nil //nolint:nilerr // as said above
	}
	return f.readMarker(top)
}

// makeMarker creates the marker, or leaves the one that another process has created meanwhile. The
// file gets its name only when it is complete.
func (f folders) makeMarker(top *os.File) error {
	random := make([]byte, idBytes)
	if _, err := rand.Read(random); err != nil {
		return err
	}
	id := hex.EncodeToString(random)
	half := marker + "." + id // unique to this process
	file, err := openAt(top, half, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	_, err = file.WriteString(id + "\n")
	err = errors.Join(err, f.sync(file), file.Close())
	if err == nil { // a link replaces nothing, on every file system
		if err = unix.Linkat(int(top.Fd()), half, int(top.Fd()), marker, 0); errors.Is(err, unix.EEXIST) {
			err = nil
		}
	}
	return errors.Join(err, unix.Unlinkat(int(top.Fd()), half, 0), f.sync(top))
}

// readMarker gives the ID of a root, or ENOENT if it has no marker. Any other content is an error:
// the owner of these volumes must not be guessed.
func (f folders) readMarker(top *os.File) (string, error) {
	file, err := openAt(top, marker, unix.O_RDONLY|unix.O_NONBLOCK) // that of a pipe would wait
	switch {
	case errors.Is(err, unix.ELOOP):
		return "", f.notPlain()
	case err != nil:
		return "", fmt.Errorf("opening %s: %w", f.path(marker), err)
	}
	defer file.Close()
	switch info, err := file.Stat(); {
	case err != nil:
		return "", fmt.Errorf("reading the marker: %w", err)
	case !info.Mode().IsRegular():
		return "", f.notPlain()
	}
	text, err := io.ReadAll(io.LimitReader(file, mostMarker))
	if err != nil {
		return "", fmt.Errorf("reading the marker: %w", err)
	}
	id := strings.TrimSpace(string(text))
	if read, err := hex.DecodeString(id); err != nil || len(read) != idBytes || id != strings.ToLower(id) {
		return "", fmt.Errorf("%s is damaged: it has %q instead of an id of %d hexadecimal digits; %s", f.path(marker), text, 2*idBytes, f.mend())
	}
	return id, nil
}

func (f folders) notPlain() error {
	return fmt.Errorf("%s is not the plain file that %s created; remove it, and %s", f.path(marker), Provisioner, f.mend())
}

// mend says how a root gets its ID back.
func (f folders) mend() string {
	return fmt.Sprintf("write into it what annotation %s of the PersistentVolumes in %s has after #; if none has that, remove the file", tarnv1.AnnotationPlace, f.root)
}

// openAt opens a file that is an entry of a root, and follows no link.
func openAt(top *os.File, name string, flags int) (*os.File, error) {
	for {
		fd, err := unix.Openat(int(top.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, markerMode)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), name), nil
	}
}
