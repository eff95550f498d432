package main

import (
	"archive/tar"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// The annotations that name the image of an archive. OCI's has only the tag, containerd's the whole
// reference.
const (
	tagAnnotation       = "org.opencontainers.image.ref.name"
	referenceAnnotation = "io.containerd.image.name"
)

// writeArchive writes an index as an OCI layout in one archive. `ctr images import`, `skopeo copy
// oci-archive:` and Docker from version 25 can read it. writeArchive makes the directory folder for
// the layout.
func writeArchive(archive, folder string, image name.Tag, index v1.ImageIndex) error {
	at, err := layout.Write(folder, empty.Index)
	if err != nil {
		return fmt.Errorf("laying the image out: %w", err)
	}
	names := map[string]string{tagAnnotation: image.TagStr(), referenceAnnotation: image.Name()}
	if err := at.AppendIndex(index, layout.WithAnnotations(names)); err != nil {
		return fmt.Errorf("laying the image out: %w", err)
	}
	file, err := os.Create(archive)
	if err != nil {
		return fmt.Errorf("making the archive: %w", err)
	}
	defer file.Close()
	if err := archiveFolder(file, folder); err != nil {
		return fmt.Errorf("writing %s: %w", archive, err)
	}
	return file.Close()
}

// archiveFolder archives the files below a directory. WalkDir visits them in the order of names, so
// the same files give the same archive.
func archiveFolder(file *os.File, folder string) error {
	w := tar.NewWriter(file)
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		return addFile(w, filepath.ToSlash(relative), 0o644, content)
	})
	if err != nil {
		return err
	}
	return w.Close()
}

// push uploads the image of all architectures to its registry.
func push(image name.Tag, index v1.ImageIndex) error {
	return remote.WriteIndex(image, index, remote.WithAuthFromKeychain(authn.DefaultKeychain))
}
