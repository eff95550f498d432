package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// epoch is the time of every file we make, so that the same input gives the same image.
var epoch = time.Unix(0, 0).UTC()

// tree is a root file system in memory: entries by cleaned path without a leading slash.
type tree map[string]entry

type entry struct {
	header  tar.Header
	content []byte
}

func (t tree) dir(name string, mode int64) {
	t.put(tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode, ModTime: epoch}, nil)
}

func (t tree) file(name string, mode int64, content []byte) {
	t.put(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, ModTime: epoch}, content)
}

func (t tree) link(name, target string) {
	t.put(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, ModTime: epoch}, nil)
}

func (t tree) put(h tar.Header, content []byte) {
	h.Name = clean(h.Name)
	if h.Name == "" {
		return
	}
	h.Size = int64(len(content))
	t[h.Name] = entry{h, content}
}

// has reports whether there is an entry at the path.
func (t tree) has(name string) bool {
	_, ok := t[clean(name)]
	return ok
}

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// layer packs the tree, parents before children.
func (t tree) layer() (v1.Layer, error) {
	var names []string
	for name := range t {
		names = append(names, name)
		// A missing parent directory is added.
		for dir := path.Dir(name); dir != "." && !t.has(dir); dir = path.Dir(dir) {
			t.dir(dir, 0o755)
			names = append(names, dir)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	// Hard links must come after what they point to.
	for _, hard := range []bool{false, true} {
		for _, name := range names {
			e := t[name]
			if (e.header.Typeflag == tar.TypeLink) != hard {
				continue
			}
			if err := w.WriteHeader(&e.header); err != nil {
				return nil, fmt.Errorf("packing %s: %w", name, err)
			}
			if _, err := w.Write(e.content); err != nil {
				return nil, fmt.Errorf("packing %s: %w", name, err)
			}
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("packing a layer: %w", err)
	}
	// The layer is not compressed: it never crosses a network, and a start waits for the unpacking.
	return static.NewLayer(out.Bytes(), types.DockerUncompressedLayer), nil
}

// addTar adds the entries of a tar stream under the names that rename gives them. An empty name
// leaves an entry out.
func (t tree) addTar(r io.Reader, rename func(string) string) error {
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading a tar stream: %w", err)
		}
		name := rename(clean(h.Name))
		if name == "" {
			continue
		}
		content, err := io.ReadAll(in)
		if err != nil {
			return fmt.Errorf("reading %s: %w", h.Name, err)
		}
		next := tar.Header{Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Mode: h.Mode, Uid: h.Uid, Gid: h.Gid, ModTime: epoch, Devmajor: h.Devmajor, Devminor: h.Devminor}
		if h.Typeflag == tar.TypeLink {
			next.Linkname = rename(clean(h.Linkname))
		}
		t.put(next, content)
	}
}

// addDir adds a directory of this machine. It follows no links, and leaves out sockets and named
// pipes.
func (t tree) addDir(root string) error {
	return filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("reading the root file system: %w", err)
		}
		name, err := filepath.Rel(root, file)
		if err != nil || name == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return fmt.Errorf("reading %s: %w", file, err)
		}
		target := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(file); err != nil {
				return fmt.Errorf("reading %s: %w", file, err)
			}
		}
		if info.Mode()&(fs.ModeSocket|fs.ModeNamedPipe) != 0 {
			return nil
		}
		h, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return fmt.Errorf("describing %s: %w", file, err)
		}
		h.Name, h.Uname, h.Gname, h.ModTime, h.AccessTime, h.ChangeTime = name, "", "", epoch, time.Time{}, time.Time{}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			h.Uid, h.Gid = int(stat.Uid), int(stat.Gid)
		}
		var content []byte
		if info.Mode().IsRegular() {
			if content, err = os.ReadFile(file); err != nil {
				return fmt.Errorf("reading %s: %w", file, err)
			}
		}
		t.put(*h, content)
		return nil
	})
}
