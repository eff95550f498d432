package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Program packs an image of one static program, as Build does, under a tag derived from its
// content. It returns the reference.
func Program(archive, repository, binary string) (string, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return "", fmt.Errorf("reading the program of image %s: %w", repository, err)
	}
	sum := sha256.Sum256(content)
	reference := fmt.Sprintf("%s:%x", repository, sum[:6])
	return reference, Build(archive, reference, "", binary, nil)
}

// Build packs an image of a directory or of one program and writes it as an archive. Exactly one of
// rootfs and binary is given. A program becomes /<its name> and, unless an entry point is given,
// the entry point. It must be static, because the image contains nothing else.
func Build(archive, tag, rootfs, binary string, entrypoint []string) error {
	t := tree{}
	switch {
	case rootfs != "":
		if info, err := os.Stat(rootfs); err != nil || !info.IsDir() {
			return fmt.Errorf("--rootfs %s is not a directory: give the root of the image's file system", rootfs)
		}
		if err := t.addDir(rootfs); err != nil {
			return err
		}
	default:
		content, err := os.ReadFile(binary)
		if err != nil {
			return fmt.Errorf("--binary: %w", err)
		}
		if loader := loaderOf(content); loader != "" {
			return fmt.Errorf("--binary %s is linked dynamically and would not start: its loader %s is not in an image of one program; build it static (Go: CGO_ENABLED=0), or give --rootfs", binary, loader)
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

// loaderOf is the dynamic loader of a program. It is empty for a static program, and for a file
// that is not ELF, such as a script.
func loaderOf(program []byte) string {
	file, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return ""
	}
	for _, part := range file.Progs {
		if part.Type == elf.PT_INTERP {
			path, err := io.ReadAll(part.Open())
			if err != nil {
				return ""
			}
			return string(bytes.TrimRight(path, "\x00"))
		}
	}
	return ""
}

// ImportArgs are the arguments with which ctr imports an archive. The images get two labels. One
// pins them until they are first pulled (the kubelet's own collection is off anyway). The other
// lets the mirror serve them.
func ImportArgs(socket, archive string) []string {
	return []string{
		// ctr resolves a relative address in the caller's directory, so this one must be absolute.
		"--address=" + socket, "--namespace=" + namespace,
		"images", "import",
		"--local", // importing without it needs a running transfer service that knows the platform, and is no faster
		"--label=" + importedLabel + "=yes", "--label=io.cri-containerd.pinned=pinned",
		archive,
	}
}

// Import loads the images of an archive into a running cluster and returns the output of ctr.
func Import(ctx context.Context, ctr, socket, archive string) (string, error) {
	abs, err := filepath.Abs(archive)
	if err != nil {
		return "", fmt.Errorf("finding %s: %w", archive, err)
	}
	out, err := exec.CommandContext(ctx, ctr, ImportArgs(socket, abs)...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return "", fmt.Errorf("importing %s: %w: %s", archive, err, text)
	}
	return text, nil
}
