package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// entrypoint is the path of the binary, the only file in the image.
const entrypoint = "/tarn"

// user runs the image unless its pod sets another user. It must not be root; the node agent's pod
// sets root.
const user = "65532:65532"

// beginning is the time of every file and image, so that the same tree gives the same bytes.
var beginning = time.Unix(0, 0).UTC()

// pack makes an image of each binary, by its architecture, and an index of them.
func pack(o options, binaries map[string]string) (v1.ImageIndex, error) {
	var images []mutate.IndexAddendum
	for _, architecture := range o.architectures {
		image, err := packOne(o, architecture, binaries[architecture])
		if err != nil {
			return nil, fmt.Errorf("packing the image for %s: %w", architecture, err)
		}
		images = append(images, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			MediaType: types.OCIManifestSchema1,
			Platform:  &v1.Platform{OS: "linux", Architecture: architecture},
		}})
	}
	return mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), images...), nil
}

func packOne(o options, architecture, binary string) (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return files(binary) }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("making the layer: %w", err)
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: architecture, OS: "linux", Created: v1.Time{Time: beginning},
		RootFS: v1.RootFS{Type: "layers"}, // OCI requires the word, and some registries check it
		Config: v1.Config{Entrypoint: []string{entrypoint}, User: user, WorkingDir: "/", Labels: map[string]string{
			"org.opencontainers.image.title":       "tarn",
			"org.opencontainers.image.description": "Persistent volumes for Kubernetes",
			"org.opencontainers.image.version":     o.version,
			"org.opencontainers.image.licenses":    "Apache-2.0",
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("setting the configuration: %w", err)
	}
	return mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: beginning}, CreatedBy: "hack/image"}})
}

// files is the file system of the image, as an archive.
func files(binary string) (io.ReadCloser, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("reading the binary: %w", err)
	}
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	if err := addFile(w, entrypoint[1:], 0o755, content); err != nil {
		return nil, fmt.Errorf("archiving the binary: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("archiving the binary: %w", err)
	}
	return io.NopCloser(&packed), nil
}

func addFile(w *tar.Writer, name string, mode int64, content []byte) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content)), ModTime: beginning, Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}
