package image

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

var packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)

// Packages makes an image of Debian packages, with everything they depend on and the programs of
// debian:12-slim. It returns the image's archive, which stays in the cache: the same arguments give
// the same archive again. Packages calls say before each slow step.
func Packages(ctx context.Context, tag string, packages, entrypoint []string, cache string, say func(string)) (string, error) {
	for _, p := range packages {
		if !packageName.MatchString(p) {
			return "", fmt.Errorf("--packages: %q is not the name of a Debian package; write names as apt-get install takes them, such as btrfs-progs,mount", p)
		}
	}
	start := func() { say(fmt.Sprintf("building %s from Debian packages: %s", tag, strings.Join(packages, ", "))) }
	made, err := cached(packagesArchive(cache, tag, packages, entrypoint), start, func() (map[string]v1.Image, error) {
		d := debs{cache}
		files, err := d.download(ctx, withSlim(packages), say)
		if err != nil {
			return nil, err
		}
		say(fmt.Sprintf("unpacking %d packages", len(files)))
		t, err := system(ctx, d, files)
		if err != nil {
			return nil, err
		}
		image, err := assemble(t, v1.Config{Entrypoint: entrypoint})
		return map[string]v1.Image{tag: image}, err
	})
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("--packages: %w; on a host without apt-get and dpkg, build a Dockerfile with these packages elsewhere and load it with `tarn-cluster image import`", err)
	}
	return made, err
}

// packagesArchive names the archive by everything it is made from.
func packagesArchive(cache, tag string, packages, entrypoint []string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %q %s %q %q", recipe, release(), tag, withSlim(packages), entrypoint))
	return filepath.Join(cache, fmt.Sprintf("packages-%x.tar", sum[:6]))
}

// withSlim adds the packages of every image, and sorts.
func withSlim(packages []string) []string {
	all := slices.Concat(slimPackages, packages)
	slices.Sort(all)
	return slices.Compact(all)
}
