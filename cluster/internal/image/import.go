package image

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

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
