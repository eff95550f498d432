package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// packed gives the image of a program that stands in for Tarn's, and the program's path.
func packed(t *testing.T, arguments ...string) (o options, index v1.ImageIndex, program string) {
	t.Helper()
	o, err := parse(append([]string{"--version=v1.2.3", "--image=example.org/storage/tarn:v1.2.3", "--out=" + t.TempDir()}, arguments...))
	if err != nil {
		t.Fatal(err)
	}
	if program, err = os.Executable(); err != nil {
		t.Fatal(err)
	}
	binaries := map[string]string{}
	for _, architecture := range o.architectures {
		binaries[architecture] = program
	}
	if index, err = pack(o, binaries); err != nil {
		t.Fatal(err)
	}
	return o, index, program
}

// made writes image and bill of that program in a directory.
func made(t *testing.T, arguments ...string) string {
	t.Helper()
	o, index, program := packed(t, arguments...)
	if err := write(o, filepath.Join(t.TempDir(), "layout"), index, program); err != nil {
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
	if !slices.Equal(platforms, both) {
		t.Errorf("it is for %q, want %q", platforms, both)
	}
}

// both are the platforms an image is for.
var both = []string{"linux/amd64", "linux/arm64"}

func TestTheRegistryHasWhatWasPushed(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://") // plain HTTP, as to any registry of this machine
	o, index, _ := packed(t, "--image="+host+"/storage/tarn:v1.2.3")
	for range 2 { // the second push sends nothing again and changes nothing
		if err := push(o.image, index); err != nil {
			t.Fatal(err)
		}
	}
	want, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	there, err := remote.Index(o.image)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := there.Digest(); err != nil || got != want {
		t.Errorf("the registry has %s, %v, want %s", got, err, want)
	}
	if err := validate.Index(there); err != nil { // reads every layer back, and counts
		t.Error(err)
	}
	manifest, err := there.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, m := range manifest.Manifests {
		platforms = append(platforms, m.Platform.String())
		image, err := remote.Image(o.image, remote.WithPlatform(*m.Platform))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := image.Digest(); err != nil || got != m.Digest {
			t.Errorf("a node of %s is given %s, %v, want %s", m.Platform, got, err, m.Digest)
		}
		onlyTheBinary(t, image)
	}
	if !slices.Equal(platforms, both) {
		t.Errorf("the registry's image is for %q, want %q", platforms, both)
	}
}

func TestARegistryThatRefusesIsNamed(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	host := strings.TrimPrefix(server.URL, "http://")
	server.Close()
	o, index, _ := packed(t, "--image="+host+"/tarn:v1")
	if err := push(o.image, index); err == nil || !strings.Contains(err.Error(), host) {
		t.Errorf("got %v, want an error that names %s", err, host)
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
	// This test itself is linked with the module.
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

// Settings exported or made with `go env -w` where the image is packed must not show in it. Go must
// still find its modules there.
func TestTheBuildSeesNoOtherProcessorFlagsOrExperimentThanTheUsual(t *testing.T) {
	seen := func(architecture string) string {
		t.Helper()
		show := exec.Command("go", "env", "GOOS", "GOARCH", "CGO_ENABLED", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GOFIPS140", "GOFLAGS", "GOWORK", "GOPROXY", "GONOSUMDB")
		var err error
		if show.Env, err = environment(architecture); err != nil {
			t.Fatal(err)
		}
		out, err := show.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	for name, value := range map[string]string{
		"GOAMD64": "v3", "GOARM64": "v9.0", "GOEXPERIMENT": "jsonv2", "GOFIPS140": "latest", "GOFLAGS": "-tags=other", "CGO_ENABLED": "1", "GOOS": "windows", "GOARCH": "386",
	} {
		t.Setenv(name, value)
	}
	check := func() {
		t.Helper()
		for _, architecture := range known {
			if got, want := seen(architecture), "linux\n"+architecture+"\n0\nv1\nv8.0\n\noff\n-buildvcs=false\noff\nhttps://modules.example\nown.example\n"; got != want {
				t.Errorf("for %s the build sees %q, want %q", architecture, got, want)
			}
		}
	}
	t.Setenv("GOPROXY", "https://modules.example")
	t.Setenv("GONOSUMDB", "own.example")
	check()
	written := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(written, []byte("GOEXPERIMENT=jsonv2\nGOAMD64=v3\nGOPROXY=https://modules.example\nGONOSUMDB=own.example\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOENV", written)
	for _, name := range []string{"GOEXPERIMENT", "GOAMD64", "GOPROXY", "GONOSUMDB"} {
		t.Setenv(name, "")
	}
	check()
}

// A directory that is not sent to Docker breaks the build of the Dockerfile, which no test runs.
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

// No test builds the Dockerfile, so this one reads it.
func TestTheDockerfileSaysWhatThisPacks(t *testing.T) {
	text := strings.ReplaceAll(string(read(t, "..", "..", "Dockerfile")), "\\\n", " ")
	said := map[string][]string{} // instructions of the last stage, and of earlier ones the RUN instructions
	for line := range strings.Lines(text) {
		instruction, rest, _ := strings.Cut(strings.Join(strings.Fields(line), " "), " ")
		if instruction == "FROM" {
			said = map[string][]string{"RUN": said["RUN"]}
		}
		said[instruction] = append(said[instruction], rest)
	}
	build := arguments("$VERSION")
	build[len(build)-1] = `"` + build[len(build)-1] + `"`
	_, index, _ := packed(t, "--arch=amd64", "--version=$VERSION")
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	var labels []string
	for name, value := range file.Config.Labels {
		if strings.Contains(value, " ") {
			value = `"` + value + `"`
		}
		labels = append(labels, name+"="+value)
	}
	slices.Sort(labels)
	for instruction, want := range map[string]string{
		"FROM":       "scratch",
		"RUN":        "go mod download; CGO_ENABLED=0 GOOS=linux GOARCH=$TARGETARCH go " + strings.Join(build, " ") + " -o /tarn ./cmd/tarn",
		"COPY":       "--from=build /tarn " + entrypoint,
		"USER":       file.Config.User,
		"ENTRYPOINT": `["` + strings.Join(file.Config.Entrypoint, `", "`) + `"]`,
		"LABEL":      strings.Join(labels, " "),
	} {
		got := strings.Join(said[instruction], "; ")
		if instruction == "LABEL" { // in any order
			got = inOrder(got, labels)
		}
		if got != want {
			t.Errorf("%s %s, want %s", instruction, got, want)
		}
	}
}

// inOrder gives the parts in their order if a text consists of just those, in any order. Otherwise
// it gives the text unchanged.
func inOrder(text string, parts []string) string {
	rest := " " + text + " "
	for _, part := range parts {
		rest = strings.Replace(rest, " "+part+" ", " ", 1)
	}
	if strings.TrimSpace(rest) != "" || len(strings.Fields(text)) != len(strings.Fields(strings.Join(parts, " "))) {
		return text
	}
	return strings.Join(parts, " ")
}
