package cli

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// yamlBlock matches an example in a page.
var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

func TestTheProvisionersOfThePagesForAuthorsAreRight(t *testing.T) {
	var blocks [][]string
	for _, name := range []string{"write-a-provisioner", "clone-a-volume"} {
		page, err := os.ReadFile("../../docs/guides/" + name + ".md")
		if err != nil {
			t.Fatal(err)
		}
		found := yamlBlock.FindAllStringSubmatch(string(page), -1)
		if len(found) == 0 {
			t.Fatalf("page %s has no example", name)
		}
		blocks = append(blocks, found...)
	}
	for _, b := range blocks {
		if !strings.Contains(b[1], "kind: PavProvisioner") {
			continue // such as a StorageClass
		}
		if out, _, status := run(t, b[1], "pav", "lint", "--strict", "-"); status != 0 {
			t.Errorf("%s\n%s", b[1], out)
		}
	}
}

func TestThePageForAuthorsShowsWhatLintPrints(t *testing.T) {
	page, err := os.ReadFile("../../docs/guides/check-a-provisioner.md")
	if err != nil {
		t.Fatal(err)
	}
	spoilt := `apiVersion: pav.albertofaria.github.io/v1alpha1
kind: PavProvisioner
metadata:
  name: scratch
spec:
  provisioningModes: [Dynamic]

  volumeCreation:
    capacity: "{{ requestedCapacity }}"
  volumeDeletion:
    podTemplate:
      spec:
        containers:
          - {name: delete, image: "busybox:1.36"}
        restartPolicy: Always
  volumeStaging:
    podTemplate: "{{ params.pod }}"
`
	out, _, _ := run(t, spoilt, "pav", "lint", "-")
	for line := range strings.Lines(strings.ReplaceAll(out, "standard input", "provisioner.yaml")) {
		if !strings.Contains(line, ": note: ") && !strings.Contains(string(page), line) {
			t.Errorf("the page lacks what lint prints: %s", line)
		}
	}
}
