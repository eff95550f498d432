package deploy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"tarn.dev/tarn/api/crds"
)

// Objects are all objects Tarn needs in a cluster, the CustomResourceDefinitions
// first.
func Objects() ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for _, files := range []fs.FS{crds.FS, FS} {
		err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			read, err := readFile(files, path)
			objects = append(objects, read...)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return objects, nil
}

func readFile(files fs.FS, path string) ([]*unstructured.Unstructured, error) {
	file, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}
