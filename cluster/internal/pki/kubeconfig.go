package pki

import (
	"encoding/base64"
	"fmt"
	"os"
)

// Kubeconfig is a client's access to a cluster in one file, by certificate or by token.
type Kubeconfig struct {
	Cluster   string // shown by kubectl
	Server    string // URL
	Authority []byte // PEM
	Cert, Key []byte // PEM; unused with a token
	TokenFile string // read again when it changes
}

// Write replaces the file. Only its owner may read it, because it holds a key.
func (k Kubeconfig) Write(path string) error {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: %[1]s
  cluster:
    server: %[2]s
    certificate-authority-data: %[3]s
users:
- name: %[1]s
  user:
    %[4]s
contexts:
- name: %[1]s
  context: {cluster: %[1]s, user: %[1]s}
current-context: %[1]s
`, k.Cluster, k.Server, inline(k.Authority), k.credentials())
	next := path + ".new"
	if err := write(next, []byte(text), 0o600); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("replacing %s: %w", path, err)
	}
	return nil
}

func (k Kubeconfig) credentials() string {
	if k.TokenFile != "" {
		return fmt.Sprintf("tokenFile: %q", k.TokenFile)
	}
	return "client-certificate-data: " + inline(k.Cert) + "\n    client-key-data: " + inline(k.Key)
}

func inline(pem []byte) string { return base64.StdEncoding.EncodeToString(pem) }
