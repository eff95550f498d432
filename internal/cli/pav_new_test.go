package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestANewProvisionerOfEachKindLintsClean(t *testing.T) {
	entries, err := scaffolds.ReadDir("scaffold")
	if err != nil || len(entries) != len(newKinds) {
		t.Fatalf("%v, %d directories for %d kinds", err, len(entries), len(newKinds))
	}
	for _, k := range newKinds {
		t.Run(k.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "made", "tape")
			out, errOut, status := run(t, "", "pav", "new", "tape", "--kind", k.name, "--directory", dir)
			if status != 0 {
				t.Fatal(errOut)
			}
			file := func(name string) string { return filepath.Join(dir, name) }
			out, errOut, status = run(t, "", "pav", "lint", "--strict", "--server=never", file("provisioner.yaml"), "--class", file("class.yaml"), "--claim", file("example.yaml"))
			if status != 0 {
				t.Errorf("lint: %s%s", out, errOut)
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, entry := range entries {
				text, err := os.ReadFile(file(entry.Name()))
				if err != nil {
					t.Fatal(err)
				}
				if names = append(names, entry.Name()); strings.Contains(string(text), scaffoldName) {
					t.Errorf("%s still has %s", entry.Name(), scaffoldName)
				}
			}
			for _, want := range []string{"README.md", "class.yaml", "example.yaml", "provisioner.yaml"} {
				if !strings.Contains(strings.Join(names, " "), want) {
					t.Errorf("%s is missing in %v", want, names)
				}
			}
			if _, errOut, status = run(t, "", "pav", "new", "tape", "--kind", k.name, "--directory", dir); status != 1 || !strings.Contains(errOut, "exists already") {
				t.Errorf("a second time: %d, %s", status, errOut)
			}
		})
	}
}

func TestWhatCannotBeANewProvisionerIsRejected(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"tape"}, `required flag(s) "kind" not set`},
		{[]string{"tape", "--kind", "fus"}, `--kind "fus": use one of folder, fuse, block`},
		{[]string{"My_Tape", "--kind", "fuse"}, `name "My_Tape": a lowercase RFC 1123 label`},
		{[]string{"../tape", "--kind", "fuse"}, `name "../tape": a lowercase RFC 1123 label`},
	} {
		_, errOut, status := run(t, "", append([]string{"pav", "new"}, c.args...)...)
		if status == 0 || !strings.Contains(errOut, c.want) {
			t.Errorf("%v: %d, %s; want %s", c.args, status, errOut, c.want)
		}
	}
	if left, err := os.ReadDir("."); err != nil || len(left) > 0 {
		t.Errorf("%v, %v; want nothing written", left, err)
	}
}
