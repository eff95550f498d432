package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"tarn.dev/tarn/cluster/internal/layout"
)

// recipe changes with the content of the base images, so that cached images are made again.
const recipe = "4"

// slimPackages are the programs that a script finds in debian:12-slim.
var slimPackages = []string{
	"base-files", "bash", "coreutils", "dash", "diffutils", "findutils", "grep", "gzip", "hostname", "mawk", "mount", "sed", "tar", "util-linux",
}

// toolPackages are the packages of the image that stands for ubuntu and alpine: shells and text
// tools for the scripts of volume provisioners, and programs that make and mount file systems.
var toolPackages = append([]string{"e2fsprogs", "fuse3"}, slimPackages...)

// xfsPackages are the packages needed to make, grow and limit an xfs file system, by the beginning
// of their names. The names contain numbers that differ between releases. The other dependencies,
// Python and 36 MB of Unicode tables, serve programs that are not used here.
var xfsPackages = []string{"xfsprogs", "libinih", "liburcu", "libedit", "libbsd", "libmd"}

// The references of the base images.
var (
	pauseTags   = []string{"tarn.dev/pause:1"}
	busyboxTags = []string{"docker.io/library/busybox:latest", "docker.io/library/busybox:1.36"}
	toolTags    = []string{"docker.io/library/ubuntu:20.04", "docker.io/library/alpine:3.15", "tarn.dev/volume-tools:1"}
)

// BaseArchive returns the archive of the images every cluster starts with. It is made once for a
// machine and pause program, and cached. BaseArchive calls say before it makes one.
func BaseArchive(ctx context.Context, pause, cache string, say func(string)) (string, error) {
	program, err := os.ReadFile(pause)
	if err != nil {
		return "", fmt.Errorf("reading the pause program: %w", err)
	}
	start := func() { say("building the base images from Debian packages (once for this machine, usually 15 s)") }
	made, err := cached(archiveOf(program, cache), start, func() (map[string]v1.Image, error) {
		return baseImages(ctx, program, debs{cache})
	})
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%w; install apt and dpkg, or copy the directory %s of another machine", err, cache)
	}
	return made, err
}

// cached returns an archive, and has its images built if there is none. It calls start before it
// waits for another command that builds.
func cached(archive string, start func(), build func() (map[string]v1.Image, error)) (string, error) {
	if _, err := os.Stat(archive); err == nil {
		return archive, nil
	}
	start()
	unlock, err := layout.LockShared("images")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(archive); err == nil {
		return archive, nil // made for another cluster meanwhile
	}
	if err := os.MkdirAll(filepath.Dir(archive), 0o755); err != nil {
		return "", fmt.Errorf("creating the cache: %w", err)
	}
	images, err := build()
	if err != nil {
		return "", fmt.Errorf("building images: %w", err)
	}
	return archive, save(archive, images)
}

// archiveOf names the archive by everything it is made from.
func archiveOf(pause []byte, cache string) string {
	sum := sha256.Sum256(slices.Concat([]byte(recipe), release(), pause))
	return filepath.Join(cache, fmt.Sprintf("images-%x.tar", sum[:6]))
}

// release identifies the distribution the packages come from.
func release() []byte {
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return []byte("unknown")
	}
	return text
}

func baseImages(ctx context.Context, pause []byte, d debs) (map[string]v1.Image, error) {
	images := map[string]v1.Image{}
	add := func(tags []string, t tree, c v1.Config) error {
		image, err := assemble(t, c)
		for _, tag := range tags {
			images[tag] = image
		}
		return err
	}
	t := tree{}
	t.file("pause", 0o755, pause)
	if err := add(pauseTags, t, v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"}); err != nil {
		return nil, err
	}
	t, err := busybox(ctx, d)
	if err != nil {
		return nil, err
	}
	if err := add(busyboxTags, t, v1.Config{Cmd: []string{"sh"}}); err != nil {
		return nil, err
	}
	if t, err = tools(ctx, d); err != nil {
		return nil, err
	}
	return images, add(toolTags, t, v1.Config{Cmd: []string{"/bin/bash"}})
}

// busybox is one static program with a link for every name it can be called by.
func busybox(ctx context.Context, d debs) (tree, error) {
	files, err := d.files(ctx, []string{"busybox-static"})
	if err != nil {
		return nil, err
	}
	packed := tree{}
	if err := d.unpack(ctx, packed, files); err != nil {
		return nil, err
	}
	program := packed["usr/bin/busybox"].content
	if program == nil {
		return nil, fmt.Errorf("package busybox-static has no /bin/busybox: %s", files[0])
	}
	return busyboxTree(ctx, program, d.cache)
}

// busyboxTree runs the program, in a scratch directory, to list its names. It is of this machine's
// architecture, or the containers would not run either.
func busyboxTree(ctx context.Context, program []byte, scratch string) (tree, error) {
	file := filepath.Join(scratch, "busybox")
	if err := os.WriteFile(file, program, 0o755); err != nil {
		return nil, fmt.Errorf("writing busybox: %w", err)
	}
	defer os.Remove(file)
	list, err := run(ctx, "", file, "--list-full")
	if err != nil {
		return nil, err
	}
	t := base()
	t.file("bin/busybox", 0o755, program)
	for applet := range strings.FieldsSeq(string(list)) {
		if !t.has(applet) {
			t.link(applet, "/bin/busybox")
		}
	}
	return t, nil
}

// tools is a small Debian that stands in for other systems under their names.
func tools(ctx context.Context, d debs) (tree, error) {
	packages, err := d.closure(ctx, toolPackages)
	if err != nil {
		return nil, err
	}
	xfs, err := d.closure(ctx, []string{"xfsprogs"})
	if err != nil {
		return nil, err
	}
	for _, name := range xfs {
		wanted := slices.ContainsFunc(xfsPackages, func(begin string) bool { return strings.HasPrefix(name, begin) })
		if wanted && !slices.Contains(packages, name) {
			packages = append(packages, name)
		}
	}
	files, err := d.files(ctx, packages)
	if err != nil {
		return nil, err
	}
	return system(ctx, d, files)
}

// system unpacks packages into a root file system, and makes what their scripts make when they are
// installed. No such script runs.
func system(ctx context.Context, d debs, files []string) (tree, error) {
	t := base()
	if err := d.unpack(ctx, t, files); err != nil {
		return nil, err
	}
	for _, top := range []string{"bin", "sbin", "lib", "lib64"} {
		delete(t, top)
		t.link(top, "usr/"+top)
	}
	for link, target := range map[string]string{"usr/bin/sh": "dash", "usr/bin/awk": "mawk"} {
		if !t.has(link) {
			t.link(link, target)
		}
	}
	t.trustAuthorities()
	return t, nil
}

// trustAuthorities writes the file of certificates that TLS clients read, if the tree has the
// package ca-certificates.
func (t tree) trustAuthorities() {
	const from = "usr/share/ca-certificates/"
	var names []string
	for name, e := range t {
		if strings.HasPrefix(name, from) && strings.HasSuffix(name, ".crt") && e.header.Typeflag == tar.TypeReg {
			names = append(names, name)
		}
	}
	slices.Sort(names) // the same packages make the same image
	var all []byte
	for _, name := range names {
		all = append(append(all, bytes.TrimSpace(t[name].content)...), '\n')
	}
	if len(all) > 0 {
		t.file("etc/ssl/certs/ca-certificates.crt", 0o644, all)
	}
}

// base is the directories and files every root file system has.
func base() tree {
	t := tree{}
	for _, dir := range []string{"dev", "etc", "home", "mnt", "opt", "proc", "run", "srv", "sys", "usr/bin", "usr/sbin", "var"} {
		t.dir(dir, 0o755)
	}
	t.dir("root", 0o700)
	t.dir("tmp", 0o1777)
	t.dir("var/tmp", 0o1777)
	t.file("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"))
	t.file("etc/group", 0o644, []byte("root:x:0:\ntty:x:5:\ndisk:x:6:\nnogroup:x:65534:\n"))
	return t
}

// files returns the packages from the cache, or downloads them all.
func (d debs) files(ctx context.Context, packages []string) ([]string, error) {
	if files := d.cached(packages); files != nil {
		return files, nil
	}
	return d.fetch(ctx, packages)
}

// assemble makes an image of one layer.
func assemble(t tree, c v1.Config) (v1.Image, error) {
	layer, err := t.layer()
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, fmt.Errorf("assembling an image: %w", err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("assembling an image: %w", err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config = "linux", runtime.GOARCH, c
	config.Config.Env = append(config.Config.Env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, fmt.Errorf("configuring an image: %w", err)
	}
	return image, nil
}

// save writes the images into one archive. A failure leaves no partial archive.
func save(archive string, images map[string]v1.Image) error {
	tagged := map[name.Reference]v1.Image{}
	for tag, image := range images {
		ref, err := name.NewTag(tag)
		if err != nil {
			return fmt.Errorf("image reference %q: %w", tag, err)
		}
		tagged[ref] = image
	}
	next := archive + ".new"
	defer os.Remove(next) // unless it has got its name
	out, err := os.OpenFile(next, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("writing %s: %w", archive, err)
	}
	if err := errors.Join(tarball.MultiRefWrite(tagged, out), out.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", archive, err)
	}
	if err := os.Rename(next, archive); err != nil {
		return fmt.Errorf("writing %s: %w", archive, err)
	}
	return nil
}
