package image

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Program packs an image of one static program, as Build does, under a tag that tells its content, and returns the reference.
func Program(archive, repository, binary string) (string, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return "", fmt.Errorf("reading the program of image %s: %w", repository, err)
	}
	sum := sha256.Sum256(content)
	reference := fmt.Sprintf("%s:%x", repository, sum[:6])
	return reference, Build(archive, reference, "", binary, nil)
}

// Build packs an image of a folder or of one program and writes it as an archive. Exactly one of rootfs and binary is given. A program
// becomes /<its name> and, unless an entry point is given, the entry point; it must be static, for nothing else is in the image.
func Build(archive, tag, rootfs, binary string, entrypoint []string) error {
	t := tree{}
	switch {
	case rootfs != "":
		if info, err := os.Stat(rootfs); err != nil || !info.IsDir() {
			return fmt.Errorf("--rootfs %s is no folder: give the root of the image's file system", rootfs)
		}
		if err := t.addDir(rootfs); err != nil {
			return err
		}
	default:
		content, err := os.ReadFile(binary)
		if err != nil {
			return fmt.Errorf("--binary: %w", err)
		}
		name := "/" + filepath.Base(binary)
		t = base()
		t.file(name, 0o755, content)
		if len(entrypoint) == 0 {
			entrypoint = []string{name}
		}
	}
	image, err := assemble(t, v1.Config{Entrypoint: entrypoint})
	if err != nil {
		return err
	}
	return save(archive, map[string]v1.Image{tag: image})
}
