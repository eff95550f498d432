// Package provisioners carries the ready PavProvisioners: a folder each, with the
// provisioner and a StorageClass of its name. `tarn install --provisioners` applies
// them. It knows nothing of clients, nor of what the provisioners do.
package provisioners

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

//go:embed */*.yaml
var files embed.FS

// Names of the ready provisioners, sorted.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil // the program carries no files at all
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// Provisioner gives the PavProvisioner of a name. A name that is not among Names is an
// error that lists them.
func Provisioner(name string) (*unstructured.Unstructured, error) {
	return read(name, "provisioner.yaml")
}

// Class gives the StorageClass of a name, as it serves clusters of several nodes.
func Class(name string) (*unstructured.Unstructured, error) { return read(name, "class.yaml") }

func read(name, file string) (*unstructured.Unstructured, error) {
	if !slices.Contains(Names(), name) {
		return nil, fmt.Errorf("there is no ready provisioner %q: take any of %s", name, strings.Join(Names(), ", "))
	}
	text, err := files.ReadFile(name + "/" + file)
	if err != nil {
		return nil, fmt.Errorf("reading the ready provisioner %s: %w", name, err)
	}
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &object.Object); err != nil {
		return nil, fmt.Errorf("reading %s of the ready provisioner %s: %w", file, name, err)
	}
	return object, nil
}
