package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// debs makes trees of Debian packages. apt downloads the packages from the machine's own sources
// and checks their signatures. Nothing is installed.
type debs struct {
	cache string // directory for the downloaded packages
}

// closure returns the packages and those of their dependencies that are libraries. That is enough
// to run their programs, without the package manager's own machinery.
func (d debs) closure(ctx context.Context, packages []string) ([]string, error) {
	args := append([]string{"depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances"}, packages...)
	out, err := run(ctx, "", "apt-cache", args...)
	if err != nil {
		return nil, err
	}
	all := slices.Clone(packages)
	for line := range strings.Lines(string(out)) {
		name := strings.TrimSpace(line)
		if name != line[:len(line)-1] || !strings.HasPrefix(name, "lib") {
			continue // indented: a dependency's kind; not a library, or virtual
		}
		name, _, _ = strings.Cut(name, ":")
		all = append(all, name)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// fetch downloads packages into the cache and returns their files.
func (d debs) fetch(ctx context.Context, packages []string) ([]string, error) {
	dir, err := os.MkdirTemp(d.cache, "debs-")
	if err != nil {
		return nil, fmt.Errorf("creating the package directory: %w", err)
	}
	defer os.RemoveAll(dir)
	// apt downloads as a user of its own, which must be able to write here.
	if err := os.Chmod(dir, 0o777); err != nil {
		return nil, fmt.Errorf("opening the package directory: %w", err)
	}
	args := append([]string{"download", "-qq"}, packages...)
	if _, err := run(ctx, dir, "apt-get", args...); err != nil {
		// The machine's package lists may be missing or old.
		if _, update := run(ctx, dir, "apt-get", "update", "-qq"); update != nil {
			return nil, errors.Join(err, update)
		}
		if _, err := run(ctx, dir, "apt-get", args...); err != nil {
			return nil, err
		}
	}
	kept := filepath.Join(d.cache, "debs")
	if err := os.MkdirAll(kept, 0o755); err != nil {
		return nil, fmt.Errorf("creating the package cache: %w", err)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return nil, fmt.Errorf("listing downloaded packages: %w", err)
	}
	for i, file := range found {
		to := filepath.Join(kept, filepath.Base(file))
		if err := os.Rename(file, to); err != nil {
			return nil, fmt.Errorf("keeping a package: %w", err)
		}
		found[i] = to
	}
	return found, nil
}

// cached returns the cached files of packages, or none if one of them is missing.
func (d debs) cached(packages []string) []string {
	var files []string
	for _, p := range packages {
		found, err := filepath.Glob(filepath.Join(d.cache, "debs", p+"_*.deb"))
		if err != nil || len(found) == 0 {
			return nil
		}
		files = append(files, found[len(found)-1])
	}
	return files
}

// unpack adds the files of packages to a tree.
func (d debs) unpack(ctx context.Context, t tree, files []string) error {
	for _, file := range files {
		out, err := run(ctx, "", "dpkg-deb", "--fsys-tarfile", file)
		if err != nil {
			return err
		}
		if err := t.addTar(bytes.NewReader(out), merged); err != nil {
			return fmt.Errorf("unpacking %s: %w", file, err)
		}
	}
	return nil
}

// merged moves what a package puts in /bin, /sbin and /lib below /usr, where those directories link
// to. It drops files that only people read, such as documentation.
func merged(name string) string {
	for _, top := range []string{"bin", "sbin", "lib", "lib64"} {
		if name == top || strings.HasPrefix(name, top+"/") {
			name = "usr/" + name
		}
	}
	for _, unread := range []string{"usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian", "usr/share/bash-completion", "usr/share/bug", "usr/share/menu"} {
		if name == unread || strings.HasPrefix(name, unread+"/") {
			return ""
		}
	}
	return name
}

// run runs a program of the machine and returns what it printed.
func run(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("program %s is missing: the base images are built from Debian packages; install apt and dpkg, or copy the cache of another machine to %s", program, "/var/cache/tarn-cluster")
		}
		last := strings.TrimSpace(complaint.String())
		if i := strings.LastIndexByte(last, '\n'); i >= 0 {
			last = last[i+1:]
		}
		return nil, fmt.Errorf("%s %s: %w: %s", program, args[0], err, last)
	}
	return out.Bytes(), nil
}
