// Command crds lists what one set of resource definitions promised and another one breaks. Objects
// that were valid before must stay valid, so that an upgrade needs no conversion. It must not know
// which resources there are.
//
//	crds OLD NEW    directories of definitions; each line it prints is a broken promise
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "crds: give two directories: that of the last release and that of the next")
		os.Exit(2)
	}
	broken, err := run(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "crds:", err)
		os.Exit(2)
	}
	for _, line := range broken {
		fmt.Println(line)
	}
	if len(broken) > 0 {
		os.Exit(1)
	}
}

// run gives the promises of the old definitions that the new ones break.
func run(before, after string) ([]string, error) {
	old, err := read(before)
	if err != nil {
		return nil, err
	}
	now, err := read(after)
	if err != nil {
		return nil, err
	}
	return broken(old, now), nil
}

// read gives the definitions in a directory by name.
func read(folder string) (map[string]*apiext.CustomResourceDefinition, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err == nil && len(paths) == 0 {
		err = errors.New("it contains no definitions; give the directory of their .yaml files")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", folder, err)
	}
	all := map[string]*apiext.CustomResourceDefinition{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		one := &apiext.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, one); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all[one.Name] = one
	}
	return all, nil
}
