// Package provisioners carries the ready PavProvisioners: a directory each, with the provisioner, a
// StorageClass of its name and an example. `tarn provisioner` lists and installs them. It knows
// nothing of clients, nor of what the provisioners do.
package provisioners

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

//go:embed Dockerfile */*
var files embed.FS

// Names of the ready provisioners, sorted.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil // the program carries no files at all
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names
}

// Provisioner gives the PavProvisioner of a name. A name that is not among Names is an error that
// lists them.
func Provisioner(name string) (*unstructured.Unstructured, error) {
	return read(name, "provisioner.yaml")
}

// Class gives the StorageClass of a name, as it serves clusters of several nodes.
func Class(name string) (*unstructured.Unstructured, error) { return read(name, "class.yaml") }

// ToolImage is the image of the provisioners that have no Dockerfile. The embedded cluster has it.
const ToolImage = "tarn.dev/volume-tools:1"

// Image gives the image that the pods of a provisioner use, and the Debian packages that its
// Dockerfile installs. The embedded cluster makes the image from the same packages.
func Image(name string) (reference string, packages []string, err error) {
	template, err := content(name, "provisioner.yaml")
	if err != nil {
		return "", nil, err
	}
	image := imageField.FindSubmatch(template)
	if image == nil {
		return "", nil, fmt.Errorf("provisioner %s names no image", name)
	}
	reference = string(image[1])
	// Provisioners without a Dockerfile share one.
	dockerfile, err := files.ReadFile(name + "/Dockerfile")
	if errors.Is(err, fs.ErrNotExist) {
		dockerfile, err = files.ReadFile("Dockerfile")
	}
	if err != nil {
		return "", nil, fmt.Errorf("reading the Dockerfile of provisioner %s: %w", name, err)
	}
	_, after, _ := strings.Cut(strings.ReplaceAll(string(dockerfile), "\\\n", " "), "apt-get install")
	line, _, _ := strings.Cut(after, "\n")
	line, _, _ = strings.Cut(line, "&&")
	for word := range strings.FieldsSeq(line) {
		if !strings.HasPrefix(word, "-") {
			packages = append(packages, word)
		}
	}
	if len(packages) == 0 {
		return "", nil, fmt.Errorf("the Dockerfile of provisioner %s has no apt-get install line", name)
	}
	return reference, packages, nil
}

var imageField = regexp.MustCompile(`(?m)^[ -]*image: *"?([^"\s]+)`)

// Replacement gives the provisioner that replaced one of an earlier release, or the name itself.
func Replacement(name string) string {
	switch name {
	case "ovh-csi-rbd":
		return "xfs"
	case "ovh-csi-nfs":
		return "shared"
	}
	return name
}

// Description says in one line what a volume of a provisioner is: the first sentence of the comment
// at the top of its file, without "A volume is".
func Description(name string) (string, error) {
	text, err := content(name, "provisioner.yaml")
	if err != nil {
		return "", err
	}
	var words []string
	for line := range strings.Lines(string(text)) {
		comment, is := strings.CutPrefix(line, "#")
		if !is || strings.TrimSpace(comment) == "" {
			break
		}
		words = append(words, strings.TrimSpace(comment))
	}
	sentence, _, _ := strings.Cut(strings.Join(words, " ")+" ", ". ")
	return strings.TrimSuffix(strings.TrimPrefix(sentence, "A volume is "), "."), nil
}

// Manifest gives the text with which kubectl applies a provisioner and its class.
func Manifest(name string) (string, error) {
	provisioner, err := content(name, "provisioner.yaml")
	if err != nil {
		return "", err
	}
	class, err := content(name, "class.yaml")
	return string(provisioner) + "---\n" + string(class), err
}

// Example gives the text of a claim and a pod that uses it.
func Example(name string) (string, error) {
	text, err := content(name, "example.yaml")
	return string(text), err
}

func content(name, file string) ([]byte, error) {
	if !slices.Contains(Names(), name) {
		return nil, fmt.Errorf("there is no ready provisioner %q; the ready ones are %s", name, strings.Join(Names(), ", "))
	}
	text, err := files.ReadFile(name + "/" + file)
	if err != nil {
		return nil, fmt.Errorf("reading the ready provisioner %s: %w", name, err)
	}
	return text, nil
}

func read(name, file string) (*unstructured.Unstructured, error) {
	text, err := content(name, file)
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &object.Object); err != nil {
		return nil, fmt.Errorf("reading %s of the ready provisioner %s: %w", file, name, err)
	}
	return object, nil
}
