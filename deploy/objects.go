package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"tarn.dev/tarn/api/crds"
)

// workloadsPolicy is the policy of policies/workloads.yaml.
const workloadsPolicy = "workloads.tarn.dev"

// Objects returns all objects Tarn needs in a cluster, the CustomResourceDefinitions first.
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

// AllowSteps adds these namespaces, the value of --step-namespaces, to the policy on what the
// controller may run. Without this call, the policy allows only the default ones.
func AllowSteps(objects []*unstructured.Unstructured, namespaces []string) error {
	text, err := json.Marshal(namespaces)
	if err != nil {
		return err
	}
	for _, o := range objects {
		if o.GetKind() != "ValidatingAdmissionPolicy" || o.GetName() != workloadsPolicy {
			continue
		}
		variables, _, err := unstructured.NestedSlice(o.Object, "spec", "variables")
		if err != nil {
			return err
		}
		for _, v := range variables {
			if v, ok := v.(map[string]any); ok && v["name"] == "allowed" {
				v["expression"] = string(text)
				return unstructured.SetNestedSlice(o.Object, variables, "spec", "variables")
			}
		}
	}
	return fmt.Errorf("policy %s has no variable \"allowed\"", workloadsPolicy)
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
