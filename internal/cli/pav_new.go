package cli

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
)

// scaffolds has a directory for each kind of new provisioner. Its name stands as NAME in them.
//
//go:embed scaffold
var scaffolds embed.FS

const scaffoldName = "NAME"

// newKinds are the kinds of provisioners that `tarn pav new` writes, with what each is for.
var newKinds = []struct{ name, purpose string }{
	{"folder", "directories that are mounted, such as those of a local disk or of NFS"},
	{"fuse", "programs that serve files while the volume is used"},
	{"block", "block devices"},
	{"middleware", "layers over volumes of another class, such as encryption"},
}

func newPavNewCommand() *cobra.Command {
	var kind, directory string
	var names, purposes []string
	for _, k := range newKinds {
		names = append(names, k.name)
		purposes = append(purposes, fmt.Sprintf("Use `%s` for %s.", k.name, k.purpose))
	}
	cmd := &cobra.Command{
		Use:   "new NAME --kind " + strings.Join(names, "|"),
		Short: "Write a provisioner to start from",
		Long: "Write a directory with a PavProvisioner that works as it is, its StorageClass, a claim with a pod, and a README.\n" +
			"Comments with CHANGE say where the commands of your own storage go.\n\n" +
			strings.Join(purposes, "\n") + "\n\n" +
			"Nothing is overwritten: the directory must not exist.",
		Example: "  tarn pav new tape --kind block\n" +
			"  tarn pav new drive --kind fuse --directory provisioners/drive",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			if wrong := validation.IsDNS1123Label(name); len(wrong) > 0 {
				return fmt.Errorf("name %q: %s", name, wrong[0])
			}
			if !slices.Contains(names, kind) {
				return fmt.Errorf("--kind %q: use one of %s", kind, strings.Join(names, ", "))
			}
			if directory == "" {
				directory = name
			}
			written, err := writeScaffold(kind, name, directory)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			_, err = fmt.Fprintf(out, "%s has %s\n\nNext:\n\n  cd %s\n", directory, strings.Join(written, ", "), directory)
			if slices.Contains(written, "Dockerfile") {
				_, err = fmt.Fprintf(out, "  docker build -t tarn.dev/%s:1 .   # on the embedded cluster: see README.md\n", name)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(out, "  tarn pav lint --strict provisioner.yaml --class class.yaml --claim example.yaml\n"+
				"  tarn pav test provisioner.yaml --class class.yaml --claim example.yaml\n")
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&kind, "kind", "", "what the volumes are: "+strings.Join(names, ", "))
	f.StringVar(&directory, "directory", "", "directory to write; the default is ./NAME")
	_ = cmd.MarkFlagRequired("kind")
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// writeScaffold writes the files of a kind into a new directory, under a name. It returns the names
// of the files.
func writeScaffold(kind, name, dir string) ([]string, error) {
	from := path.Join("scaffold", kind)
	entries, err := fs.ReadDir(scaffolds, from)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o777); errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("%s exists already; choose another directory with --directory", dir)
	} else if err != nil {
		return nil, err
	}
	written := make([]string, 0, len(entries))
	for _, entry := range entries {
		text, err := scaffolds.ReadFile(path.Join(from, entry.Name()))
		if err != nil {
			return nil, err
		}
		text = bytes.ReplaceAll(text, []byte(scaffoldName), []byte(name))
		if err := os.WriteFile(filepath.Join(dir, entry.Name()), text, 0o666); err != nil {
			return nil, err
		}
		written = append(written, entry.Name())
	}
	return written, nil
}
