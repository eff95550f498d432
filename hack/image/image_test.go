package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// made writes image and bill of a program that stands for Tarn's in a folder.
func made(t *testing.T, arguments ...string) string {
	t.Helper()
	o, err := parse(append([]string{"--version=v1.2.3", "--image=example.org/storage/tarn:v1.2.3", "--out=" + t.TempDir()}, arguments...))
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binaries := map[string]string{}
	for _, architecture := range o.architectures {
		binaries[architecture] = self
	}
	index, err := pack(o, binaries)
	if err != nil {
		t.Fatal(err)
	}
	if err := write(o, filepath.Join(t.TempDir(), "layout"), index, self); err != nil {
		t.Fatal(err)
	}
	return o.out
}

func read(t *testing.T, parts ...string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestTheSameBinaryGivesTheSameBytes(t *testing.T) {
	first, second := made(t), made(t)
	for _, file := range []string{"tarn.tar", "tarn.cdx.json"} {
		if !bytes.Equal(read(t, first, file), read(t, second, file)) {
			t.Errorf("%s differs between two runs", file)
		}
	}
	if bytes.Equal(read(t, first, "tarn.tar"), read(t, made(t, "--version=v1.2.4"), "tarn.tar")) {
		t.Error("the archive of another version is the same")
	}
}

// unpacked gives the image index of an archive.
func unpacked(t *testing.T, archive []byte) v1.ImageIndex {
	t.Helper()
	folder := t.TempDir()
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(folder, header.Name)
		content, err := io.ReadAll(r)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func TestTheArchiveNamesOneImageOfBothArchitectures(t *testing.T) {
	manifest, err := unpacked(t, read(t, made(t), "tarn.tar")).IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("the archive has %+v, %v, want one index", manifest, err)
	}
	if got := manifest.Manifests[0].Annotations; got[tagAnnotation] != "v1.2.3" || got[referenceAnnotation] != "example.org/storage/tarn:v1.2.3" {
		t.Errorf("it is called %v", got)
	}
	images, err := unpacked(t, read(t, made(t), "tarn.tar")).ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := images.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, m := range inner.Manifests {
		platforms = append(platforms, m.Platform.String())
		image, err := images.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		onlyTheBinary(t, image)
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(platforms, want) {
		t.Errorf("it is for %q, want %q", platforms, want)
	}
}

func onlyTheBinary(t *testing.T, image v1.Image) {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v, want one", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(content)
	header, err := r.Next()
	if err != nil || header.Name != "tarn" || header.Mode != 0o755 || header.Uid != 0 {
		t.Errorf("the first file is %+v, %v, want root's program tarn", header, err)
	}
	if another, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("there is more than the binary: %+v, %v", another, err)
	}
	config, err := image.ConfigFile()
	if err != nil || config.Config.User != user || !slices.Equal(config.Config.Entrypoint, []string{"/tarn"}) {
		t.Errorf("it runs %+v, %v, want /tarn as %s", config, err, user)
	}
}

func TestTheBillNamesTheVersionsOfGoAndModules(t *testing.T) {
	var bom cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(bytes.NewReader(read(t, made(t), "tarn.cdx.json")), cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	if got := bom.Metadata.Component.Version; got != "v1.2.3" {
		t.Errorf("the bill is of version %q", got)
	}
	versions := map[string]string{}
	for _, c := range *bom.Components {
		versions[c.Name] = c.Version
	}
	if want := "v" + strings.TrimPrefix(runtime.Version(), "go"); versions["std"] != want {
		t.Errorf("Go is %q, want %q", versions["std"], want)
	}
	// This test is linked with it.
	if got := versions["github.com/CycloneDX/cyclonedx-go"]; !strings.HasPrefix(got, "v") {
		t.Errorf("a linked module has version %q", got)
	}
}

func TestWhatCannotBeBuiltIsRefused(t *testing.T) {
	for _, c := range []struct{ argument, want string }{
		{"--arch=amd64,sparc", `there is no "sparc"`},
		{"--arch=", `there is no ""`},
		{"--image=Tarn", "give REPOSITORY:TAG"},
	} {
		if _, err := parse([]string{c.argument}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.argument, err, c.want)
		}
	}
}

// A folder that is not sent to Docker fails the build of the Dockerfile, which is not
// tried here.
func TestDockerIsSentAllThatTheBinaryIsBuiltFrom(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	sent := strings.Split(string(read(t, root, ".dockerignore")), "\n")
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.Dir}}{{end}}{{end}}", "./cmd/tarn")
	list.Dir, list.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	folders, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for folder := range strings.FieldsSeq(string(folders)) {
		relative, err := filepath.Rel(root, folder)
		if err != nil {
			t.Fatal(err)
		}
		if top := strings.Split(relative, "/")[0]; !slices.Contains(sent, "!"+top) {
			t.Errorf("%s is linked, but .dockerignore does not let %s through", relative, top)
		}
	}
}
