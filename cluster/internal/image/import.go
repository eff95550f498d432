package image

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// ImportArgs are the arguments with which ctr imports an archive. The images get a label that pins them until they are first
// pulled (the kubelet is told to collect none anyway), and one that lets the mirror serve them.
func ImportArgs(socket, archive string) []string {
	return []string{
		// ctr takes the address as it is: a relative one would be looked for in the folder of the caller.
		"--address=" + socket, "--namespace=" + namespace,
		"images", "import",
		"--local", // the other way of importing needs a running transfer service that knows the platform, and is no faster
		"--label=" + importedLabel + "=yes", "--label=io.cri-containerd.pinned=pinned",
		archive,
	}
}

// Import puts the images of an archive into a running cluster and returns what ctr said of it.
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
