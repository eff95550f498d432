package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	images "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/api/types"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"tarn.dev/tarn/cluster/internal/layout"
)

// unpacked reads a layer back, in its order.
func unpacked(t *testing.T, layer v1.Layer) (names []string, headers map[string]*tar.Header) {
	t.Helper()
	r, err := layer.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	headers = map[string]*tar.Header{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return names, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		headers[h.Name] = h
	}
}

// Two clusters start at once on a machine that has no base images yet.
func TestWhatAnotherClusterIsMakingIsWaitedForAndNotMadeTwice(t *testing.T) {
	pause, cache := filepath.Join(t.TempDir(), "pause"), t.TempDir()
	if err := os.WriteFile(pause, []byte("pause"), 0o755); err != nil {
		t.Fatal(err)
	}
	unlock, err := layout.LockShared("images")
	if err != nil {
		t.Fatal(err)
	}
	want := archiveOf([]byte("pause"), cache)
	// The other cluster finishes after this one has seen that there are no images.
	got, err := BaseArchive(t.Context(), pause, cache, func(string) {
		if err := os.WriteFile(want, nil, 0o600); err != nil {
			t.Error(err)
		}
		unlock()
	})
	if err != nil || got != want {
		t.Fatalf("got %s, %v", got, err)
	}
	if made, err := os.ReadDir(cache); err != nil || len(made) != 1 {
		t.Errorf("the cache has %v, %v: want what the other has made alone", made, err)
	}
}

func TestLayersHaveParentsBeforeChildrenAndHardLinksLast(t *testing.T) {
	tr := tree{}
	tr.put(tar.Header{Typeflag: tar.TypeLink, Name: "a/hard", Linkname: "z/file", Mode: 0o755}, nil)
	tr.file("/z/file", 0o755, []byte("x"))
	tr.file("../q", 0o644, nil) // nothing leaves the root
	layer, err := tr.layer()
	if err != nil {
		t.Fatal(err)
	}
	names, headers := unpacked(t, layer)
	if got, want := strings.Join(names, " "), "a q z z/file a/hard"; got != want {
		t.Errorf("order %q, want %q", got, want)
	}
	if headers["a"].Typeflag != tar.TypeDir {
		t.Error("the folder of a file that named none was not made")
	}
}

func TestTheSameTreeMakesTheSameLayer(t *testing.T) {
	var digests [2]string
	for i := range digests {
		tr := base()
		tr.file("f", 0o644, []byte("x"))
		layer, err := tr.layer()
		if err != nil {
			t.Fatal(err)
		}
		d, err := layer.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests[i] = d.String()
	}
	if digests[0] != digests[1] {
		t.Errorf("two layers of one tree: %v", digests)
	}
}

func TestPackagesAreUnpackedBelowUsrAndWithoutTheirManuals(t *testing.T) {
	for name, want := range map[string]string{
		"bin/bash": "usr/bin/bash", "sbin": "usr/sbin", "lib/x86_64-linux-gnu/libc.so.6": "usr/lib/x86_64-linux-gnu/libc.so.6",
		"lib64/ld": "usr/lib64/ld", "usr/bin/x": "usr/bin/x", "library": "library",
		"usr/share/doc/x": "", "usr/share/man": "", "usr/share/docs": "usr/share/docs",
	} {
		if got := merged(name); got != want {
			t.Errorf("merged(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestAnImageOfAFolderKeepsModesOwnersAndLinks(t *testing.T) {
	root, archive := t.TempDir(), filepath.Join(t.TempDir(), "i.tar")
	if err := os.WriteFile(filepath.Join(root, "run.sh"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("run.sh", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	if err := Build(archive, "example.org/app:1", root, "", []string{"/run.sh", "-v"}); err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(config.Config.Entrypoint, " "); got != "/run.sh -v" {
		t.Errorf("entry point %q", got)
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	_, headers := unpacked(t, layers[0])
	if h := headers["run.sh"]; h == nil || h.Mode&0o777 != 0o755 || h.Uid != os.Getuid() {
		t.Errorf("run.sh became %+v", h)
	}
	if h := headers["link"]; h == nil || h.Linkname != "run.sh" {
		t.Errorf("link became %+v", h)
	}
}

func TestAnImageOfAProgramStartsIt(t *testing.T) {
	program, archive := filepath.Join(t.TempDir(), "hello"), filepath.Join(t.TempDir(), "i.tar")
	if err := os.WriteFile(program, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Build(archive, "example.org/hello:1", "", program, nil); err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(config.Config.Entrypoint, " "); got != "/hello" {
		t.Errorf("entry point %q", got)
	}
}

func TestWhatCannotBecomeAnImageIsSaid(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "i.tar")
	if err := Build(archive, "x:1", "/no/such/folder", "", nil); err == nil || !strings.Contains(err.Error(), "--rootfs") {
		t.Errorf("missing folder: %v", err)
	}
	if err := Build(archive, "x:1", "", "/bin/sh", nil); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("for a program linked dynamically: %v", err)
	}
	if err := Build(archive, "Not A Tag", t.TempDir(), "", nil); err == nil || !strings.Contains(err.Error(), "Not A Tag") {
		t.Errorf("bad reference: %v", err)
	}
	if _, err := os.Stat(archive); !os.IsNotExist(err) {
		t.Error("a failed build left an archive")
	}
}

func TestTheCertificatesOfAPackageAreWhereTLSClientsLook(t *testing.T) {
	tr := tree{}
	tr.trustAuthorities()
	if len(tr) != 0 {
		t.Errorf("a system without the package got %d files", len(tr))
	}
	tr.file("usr/share/ca-certificates/mozilla/b.crt", 0o644, []byte("B\n"))
	tr.file("usr/share/ca-certificates/mozilla/a.crt", 0o644, []byte("A"))
	tr.file("usr/share/ca-certificates/README", 0o644, []byte("x"))
	tr.trustAuthorities()
	if got := string(tr["etc/ssl/certs/ca-certificates.crt"].content); got != "A\nB\n" {
		t.Errorf("got %q", got)
	}
}

func TestAnImageOfPackagesIsMadeOnceForItsTagAndPackages(t *testing.T) {
	cache := t.TempDir()
	build := func(tag string, packages ...string) (string, error) {
		return Packages(t.Context(), tag, packages, nil, cache, func(string) {})
	}
	t.Setenv("PATH", "") // no apt-get, so nothing can be made
	if _, err := build("x.org/a:1", "git"); err == nil || !strings.Contains(err.Error(), "Dockerfile") {
		t.Errorf("without apt-get: %v, want another way", err)
	}
	if _, err := build("x.org/a:1", "git", "-o=x"); err == nil || !strings.Contains(err.Error(), `"-o=x" is not the name`) {
		t.Errorf("for an option in place of a name: %v", err)
	}
	// An archive from an earlier run: its name tells what is in it.
	archives := map[string]bool{}
	for _, c := range []struct {
		tag      string
		packages []string
	}{{"x.org/a:1", []string{"git"}}, {"x.org/b:1", []string{"git"}}, {"x.org/a:1", []string{"git", "fuse3"}}} {
		name := packagesArchive(cache, c.tag, c.packages, nil)
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		archives[name] = true
		if got, err := build(c.tag, c.packages...); got != name || err != nil {
			t.Errorf("%s of %v: %s, %v; want %s", c.tag, c.packages, got, err, name)
		}
	}
	if len(archives) != 3 {
		t.Errorf("three images have archives %v", archives)
	}
	if packagesArchive(cache, "a", []string{"git", "fuse3"}, nil) != packagesArchive(cache, "a", []string{"fuse3", "git", "bash"}, nil) {
		t.Error("another order of the same packages makes another image")
	}
}

// store stands in for containerd's image store.
type store struct {
	images.ImagesClient
	known map[string]*images.Image
}

func (s store) Get(_ context.Context, r *images.GetImageRequest, _ ...grpc.CallOption) (*images.GetImageResponse, error) {
	if image, ok := s.known[r.Name]; ok {
		return &images.GetImageResponse{Image: image}, nil
	}
	return nil, status.Error(codes.NotFound, "not found")
}

func TestTheMirrorServesImportedImagesAndNoOthers(t *testing.T) {
	const manifest, hex = `{"mediaType": "application/x"}`, "00ff"
	blobs := t.TempDir()
	if err := os.MkdirAll(filepath.Join(blobs, "sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(blobs, "sha256", hex), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	image := func(labels map[string]string) *images.Image {
		return &images.Image{Labels: labels, Target: &types.Descriptor{Digest: "sha256:" + hex}}
	}
	m := mirror{store{known: map[string]*images.Image{
		"docker.io/library/in:1":  image(map[string]string{importedLabel: "yes"}),
		"docker.io/library/out:1": image(nil), // pulled from its registry, which stays in charge of it
	}}, blobs, t.TempDir()}
	for url, want := range map[string]int{
		"/v2/library/in/manifests/1?ns=docker.io":             http.StatusOK,
		"/v2/library/in/manifests/1?ns=example.org":           http.StatusNotFound,
		"/v2/library/in/manifests/1":                          http.StatusNotFound,
		"/v2/library/out/manifests/1?ns=docker.io":            http.StatusNotFound,
		"/v2/library/in/manifests/sha256:" + hex + "?ns=d":    http.StatusOK,
		"/v2/library/in/blobs/sha256:" + hex + "?ns=d":        http.StatusOK,
		"/v2/library/in/blobs/sha256:beef?ns=d":               http.StatusNotFound,
		"/v2/library/in/blobs/sha256:..%2f..%2fpasswd?ns=d":   http.StatusNotFound,
		"/v2/library/in/tags/list?ns=docker.io":               http.StatusNotFound,
		"/v2/library/in/manifests/sha512:" + hex + "?ns=d.io": http.StatusNotFound,
	} {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /v2/{path...}", m.serve)
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, url, nil))
		if answer.Code != want {
			t.Errorf("%s: %d, want %d", url, answer.Code, want)
		}
		if want != http.StatusOK {
			continue
		}
		if answer.Body.String() != manifest || answer.Header().Get("Docker-Content-Digest") != "sha256:"+hex {
			t.Errorf("%s: %q with digest %q", url, answer.Body, answer.Header().Get("Docker-Content-Digest"))
		}
		if strings.Contains(url, "manifests") && answer.Header().Get("Content-Type") != "application/x" {
			t.Errorf("%s: media type %q", url, answer.Header().Get("Content-Type"))
		}
	}
}

func TestTheMirrorServesAnImportedImageAgainAfterAPullUntilAnotherOneComes(t *testing.T) {
	const reference, hex = "docker.io/library/in:latest", "00ff"
	served := t.TempDir()
	for _, c := range []struct {
		what, digest string
		labels       map[string]string
		serves       bool
	}{
		{"pulled before it was ever imported", "sha256:" + hex, nil, false},
		{"imported", "sha256:" + hex, map[string]string{importedLabel: "yes"}, true},
		{"pulled from the mirror", "sha256:" + hex, nil, true}, // containerd replaces the record, without its labels
		{"pulled from a registry, which has another", "sha256:beef", nil, false},
		{"imported anew", "sha256:beef", map[string]string{importedLabel: "yes"}, true},
		{"pulled from the mirror again", "sha256:beef", nil, true},
		{"removed", "", nil, false},
		{"pulled from a registry, which has the same", "sha256:beef", nil, false},
	} {
		known := map[string]*images.Image{
			reference:                    {Labels: c.labels, Target: &types.Descriptor{Digest: c.digest}},
			"docker.io/library/in:other": {Target: &types.Descriptor{Digest: c.digest}},
		}
		if c.digest == "" {
			delete(known, reference)
		}
		m := mirror{store{known: known}, t.TempDir(), served} // a new one each time, as after a restart
		if got, err := m.resolve(t.Context(), reference); (err == nil) != c.serves || (c.serves && got != c.digest) {
			t.Errorf("%s: the mirror says %q, %v; want it served: %t", c.what, got, err, c.serves)
		}
		if got, err := m.resolve(t.Context(), "docker.io/library/in:other"); err == nil {
			t.Errorf("%s: another reference, which was pulled, is served as %s", c.what, got)
		}
	}
}

func TestBusyboxHasALinkForEachOfItsNames(t *testing.T) {
	// A package as dpkg-deb prints it is a tar stream; here it holds a program that lists two names.
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	script := "#!/bin/sh\necho bin/sh\necho usr/bin/awk\n"
	if err := w.WriteHeader(&tar.Header{Name: "./bin/busybox", Mode: 0o755, Size: int64(len(script))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(script)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got := tree{}
	if err := got.addTar(&packed, merged); err != nil {
		t.Fatal(err)
	}
	root, err := busyboxTree(context.Background(), got["usr/bin/busybox"].content, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, applet := range []string{"bin/sh", "usr/bin/awk"} {
		if root[applet].header.Linkname != "/bin/busybox" {
			t.Errorf("%s is %+v", applet, root[applet].header)
		}
	}
}
