// Command image builds Tarn's container image without Docker: one static binary for each
// architecture and nothing else. It packs the image as an OCI archive or pushes it to a registry,
// with a bill of materials beside it. The same tree gives the same bytes. It must not know what the
// binary does.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// options are the flags.
type options struct {
	version, root, out string
	image              name.Tag
	architectures      []string
	push               bool
}

func main() {
	o, err := parse(os.Args[1:])
	if err == nil {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// known are the architectures that Tarn is made for.
var known = []string{"amd64", "arm64"}

func parse(args []string) (options, error) {
	var o options
	var image, architectures string
	flags := flag.NewFlagSet("image", flag.ExitOnError)
	flags.StringVar(&o.version, "version", "unknown", "version for the binary and the image's label")
	flags.StringVar(&image, "image", "tarn.dev/tarn:latest", "reference of the image: REPOSITORY:TAG")
	flags.StringVar(&o.root, "root", ".", "directory of the checkout")
	flags.StringVar(&o.out, "out", "bin/image", "directory for tarn.tar, the image of all architectures, and tarn.cdx.json, its bill of materials")
	flags.StringVar(&architectures, "arch", strings.Join(known, ","), "architectures, separated by commas")
	flags.BoolVar(&o.push, "push", false, "push the image to its registry too, with the credentials of `docker login`")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var err error
	if o.image, err = name.NewTag(image); err != nil {
		return o, fmt.Errorf("--image=%s: %w: give REPOSITORY:TAG", image, err)
	}
	o.architectures = strings.Split(architectures, ",")
	for _, architecture := range o.architectures {
		if !slices.Contains(known, architecture) {
			return o, fmt.Errorf("--arch=%s: there is no %q: give one or more of %s", architectures, architecture, strings.Join(known, ", "))
		}
	}
	return o, nil
}

func run(o options) error {
	work, err := os.MkdirTemp("", "tarn-image")
	if err != nil {
		return fmt.Errorf("creating the build directory: %w", err)
	}
	defer os.RemoveAll(work)
	binaries := map[string]string{}
	for _, architecture := range o.architectures {
		fmt.Printf("  building tarn for linux/%s (minutes the first time, then seconds)\n", architecture)
		if binaries[architecture], err = compile(o, work, architecture); err != nil {
			return err
		}
	}
	index, err := pack(o, binaries)
	if err != nil {
		return err
	}
	if err := write(o, filepath.Join(work, "layout"), index, binaries[o.architectures[0]]); err != nil {
		return err
	}
	if !o.push {
		return nil
	}
	if err := push(o.image, index); err != nil {
		return fmt.Errorf("pushing %s: %w", o.image, err)
	}
	fmt.Printf("  pushed %s\n", o.image)
	return nil
}

// write leaves archive and bill in the directory of --out. It makes the directory folder for the
// layout.
func write(o options, folder string, index v1.ImageIndex, binary string) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("creating the directory of --out: %w", err)
	}
	archive, bill := filepath.Join(o.out, "tarn.tar"), filepath.Join(o.out, "tarn.cdx.json")
	if err := writeArchive(archive, folder, o.image, index); err != nil {
		return err
	}
	if err := writeBill(bill, o.version, binary); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return fmt.Errorf("reading the digest of the image: %w", err)
	}
	fmt.Printf("  %s: %s for %s, %s\n  %s: what is in it\n", archive, o.image, strings.Join(o.architectures, " and "), digest, bill)
	return nil
}

// compile builds the binary of an architecture and gives its path.
func compile(o options, work, architecture string) (string, error) {
	binary := filepath.Join(work, "tarn-"+architecture)
	build := exec.Command("go", append(arguments(o.version), "-o", binary, "./cmd/tarn")...)
	build.Dir = o.root
	var err error
	if build.Env, err = environment(architecture); err != nil {
		return "", err
	}
	build.Stdout, build.Stderr = os.Stdout, os.Stderr
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("building tarn for linux/%s: %w", architecture, err)
	}
	return binary, nil
}

// arguments are the build arguments for the binary of a version.
func arguments(version string) []string {
	return []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X tarn.dev/tarn/internal/cli.Version=" + version}
}

// whereabouts are the settings that tell Go where to find things. They do not affect the result.
var whereabouts = []string{"GOAUTH", "GOCACHE", "GOINSECURE", "GOMODCACHE", "GONOPROXY", "GONOSUMDB", "GOPATH", "GOPRIVATE", "GOPROXY", "GOSUMDB", "GOTMPDIR", "GOTOOLCHAIN", "GOVCS"}

// environment is the environment of the build. Of the caller's settings it passes on only where Go
// finds things. Others could give other bytes, or a binary that only some processors run. The build
// does not read settings of `go env -w`, so environment reads those first.
func environment(architecture string) ([]string, error) {
	out, err := exec.Command("go", append([]string{"env", "-json"}, whereabouts...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("reading go env: %w", err)
	}
	where := map[string]string{}
	if err := json.Unmarshal(out, &where); err != nil {
		return nil, fmt.Errorf("reading go env: %w", err)
	}
	all := append(os.Environ(), "GOENV=off", "GOWORK=off", "GOOS=linux", "GOARCH="+architecture, "CGO_ENABLED=0",
		"GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOFIPS140=off", "GOFLAGS=-buildvcs=false")
	for name, value := range where {
		all = append(all, name+"="+value)
	}
	return all, nil
}
