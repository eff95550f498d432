package stages

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"tarn.dev/tarn/internal/node/mounts"
)

// secretsFolder is the name of two directories. The one beside the stage's pav is a tmpfs with the
// keys of the volume's Secret. The one in pav shows it, read-only, to the stage's pods. The first
// outlives a loss of the volume, after which pav is made anew without a call of the kubelet.
const secretsFolder = "secrets"

const (
	// maxKeys is how many keys a Secret may have here. Each needs a page of memory at least.
	maxKeys = 64
	// secretsSize is the size of the tmpfs: a Secret has up to 1 MiB, and its largest key is twice
	// there while it changes.
	secretsSize = 3 << 20
)

// secretKey matches the keys that Kubernetes allows in a Secret.
var secretKey = regexp.MustCompile(`^[-._a-zA-Z0-9]{1,253}$`)

// checkSecrets rejects a Secret whose keys cannot be files.
func checkSecrets(secrets map[string]string) error {
	if len(secrets) > maxKeys {
		return status.Errorf(codes.InvalidArgument, "the volume's Secret has %d keys; the limit is %d: remove keys that the volume does not need", len(secrets), maxKeys)
	}
	for key := range secrets {
		if !secretKey.MatchString(key) || key == "." || strings.HasPrefix(key, "..") {
			return status.Errorf(codes.InvalidArgument, "the volume's Secret has key %q, which cannot be the name of a file: rename the key", key)
		}
	}
	return nil
}

// keepSecrets writes the keys of a Secret to the tmpfs of a stage, and mounts that before.
func (s *Stages) keepSecrets(uid types.UID, secrets map[string]string) error {
	folder := filepath.Join(s.folder(uid), secretsFolder)
	kept, err := s.hasSecrets(uid)
	if err != nil {
		return err
	}
	if !kept {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return fmt.Errorf("create the directory of the volume's Secret: %w", err)
		}
		if err := mounts.Tmpfs(folder, secretsSize); err != nil {
			return fmt.Errorf("keep the volume's Secret: %w", err)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(secrets)) {
		if err := writeSecret(folder, key, secrets[key]); err != nil {
			return fmt.Errorf("keep key %s of the volume's Secret: %w", key, err)
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("read the keys of the volume's Secret: %w", err)
	}
	for _, e := range entries {
		if _, ok := secrets[e.Name()]; ok {
			continue
		}
		if err := os.Remove(filepath.Join(folder, e.Name())); err != nil {
			return fmt.Errorf("remove a former key of the volume's Secret: %w", err)
		}
	}
	return nil
}

// writeSecret replaces the file of a key atomically, if its content changes.
func writeSecret(folder, key, value string) error {
	path, fresh := filepath.Join(folder, key), filepath.Join(folder, "..new") // no key begins with two dots
	if old, err := os.ReadFile(path); err == nil && string(old) == value {
		return nil
	}
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(fresh, []byte(value), 0o400); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}

// hasSecrets says whether the stage's tmpfs is mounted. It is not after a restart of the node.
func (s *Stages) hasSecrets(uid types.UID) (bool, error) {
	table, err := s.Mounts.List()
	return err == nil && len(mounts.At(table, filepath.Join(s.folder(uid), secretsFolder))) > 0, err
}

// showSecrets mounts the stage's tmpfs below pav, if there is one.
func (s *Stages) showSecrets(uid types.UID, pav string) error {
	if has, err := s.hasSecrets(uid); err != nil || !has {
		return err
	}
	source, err := os.Open(filepath.Join(s.folder(uid), secretsFolder))
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	return mounts.EnsureBind(s.Mounts, source, filepath.Join(pav, secretsFolder), true)
}
