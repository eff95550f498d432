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

// resolved is a package that apt would install on an empty system.
type resolved struct {
	file string // its name in apt's cache
	size int64
}

// resolve lists packages with everything they depend on, as apt would install them on an empty
// system. Nothing that is installed on this machine counts.
func (d debs) resolve(ctx context.Context, packages []string) ([]resolved, error) {
	out, err := d.install(ctx, packages, "--print-uris", "-qq")
	if err != nil {
		return nil, err
	}
	var all []resolved
	for line := range strings.Lines(string(out)) {
		p := resolved{}
		if _, err := fmt.Sscanf(line, "%s %s %d", new(string), &p.file, &p.size); err == nil {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("apt-get lists no files for packages %s", strings.Join(packages, ", "))
	}
	return all, nil
}

// download fetches packages and everything they depend on, and returns the files in the order of
// apt. Files from an earlier download are kept and used.
func (d debs) download(ctx context.Context, packages []string, say func(string)) ([]string, error) {
	all, err := d.resolve(ctx, packages)
	if err != nil {
		return nil, err
	}
	kept := d.packages()
	files, missing, size := make([]string, len(all)), 0, int64(0)
	for i, p := range all {
		files[i] = filepath.Join(kept, p.file)
		if info, err := os.Stat(files[i]); err != nil || info.Size() != p.size {
			missing, size = missing+1, size+p.size
		}
	}
	if missing > 0 {
		say(fmt.Sprintf("downloading %d of %d Debian packages, %d MB", missing, len(all), (size+999_999)/1_000_000))
		if _, err := d.install(ctx, packages, "--download-only", "-qq", "-o", "Dir::Cache::archives="+kept); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// packages is apt's directory of downloads. A later run completes what a killed one has begun.
func (d debs) packages() string { return filepath.Join(d.cache, "packages") }

// install runs apt-get install as on an empty system.
func (d debs) install(ctx context.Context, packages []string, options ...string) ([]byte, error) {
	kept := d.packages()
	if err := os.MkdirAll(filepath.Join(kept, "partial"), 0o755); err != nil {
		return nil, fmt.Errorf("creating the package cache: %w", err)
	}
	status := filepath.Join(kept, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return nil, fmt.Errorf("creating an empty package list: %w", err)
	}
	args := slices.Concat([]string{"install", "--yes", "--no-install-recommends", "-o", "Dir::State::status=" + status}, options, packages)
	return apt(ctx, kept, args...)
}

// apt runs apt-get. If that fails, apt runs it again after an update, because the machine's package
// lists may be missing or old.
func apt(ctx context.Context, dir string, args ...string) ([]byte, error) {
	out, err := run(ctx, dir, "apt-get", args...)
	if err == nil || errors.Is(err, exec.ErrNotFound) {
		return out, err
	}
	if _, update := run(ctx, dir, "apt-get", "update", "-qq"); update != nil {
		return nil, errors.Join(err, update)
	}
	return run(ctx, dir, "apt-get", args...)
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
	if _, err := apt(ctx, dir, append([]string{"download", "-qq"}, packages...)...); err != nil {
		return nil, err
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
			return nil, fmt.Errorf("program %s is missing, and images are built from Debian packages: %w", program, exec.ErrNotFound)
		}
		last := strings.TrimSpace(complaint.String())
		if i := strings.LastIndexByte(last, '\n'); i >= 0 {
			last = last[i+1:]
		}
		return nil, fmt.Errorf("%s %s: %w: %s", program, args[0], err, last)
	}
	return out.Bytes(), nil
}
