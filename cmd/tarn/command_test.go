package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	appspec "tarn.dev/tarn/internal/app/spec"
)

func TestTheClassesOfApplicationsAreNamedByAccessMode(t *testing.T) {
	got, err := appClasses(map[string]string{"rwx": "folders"})
	if want := map[appspec.AccessMode]string{appspec.ReadWriteOnce: "ovh-csi-rbd", appspec.ReadWriteMany: "folders"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("appClasses = %v, %v; want %v", got, err, want)
	}
	for _, words := range []map[string]string{{"rox": "a"}, {"rwo": ""}, {"rwo": "a b"}} {
		if _, err := appClasses(words); err == nil || !strings.Contains(err.Error(), "--app-class") {
			t.Errorf("%v: %v", words, err)
		}
	}
}

func TestTheDescriptionOfTheAPIIsPrintedWithoutAServer(t *testing.T) {
	var out bytes.Buffer
	cmd := newAPICommand()
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"openapi"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	var document struct{ OpenAPI string }
	if err := json.Unmarshal(out.Bytes(), &document); err != nil || document.OpenAPI != "3.1.0" {
		t.Errorf("printed %.100s (%v)", out.String(), err)
	}
}

// everyCommand returns a command and all commands below it.
func everyCommand(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, below := range cmd.Commands() {
		all = append(all, everyCommand(below)...)
	}
	return all
}

func TestEveryCommandHasAnExampleAndTheVoiceOfTheOthers(t *testing.T) {
	all := everyCommand(newRoot())
	if len(all) < 30 {
		t.Fatalf("found %d commands", len(all))
	}
	for _, cmd := range all {
		path := cmd.CommandPath()
		if first := strings.SplitAfterN(cmd.Short, "", 2)[0]; cmd.Short == "" || first != strings.ToUpper(first) || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: %q is no line that begins with a capital and ends without a full stop", path, cmd.Short)
		}
		if !cmd.HasSubCommands() && cmd.Name() != "version" && !strings.Contains(cmd.Example, path) {
			t.Errorf("%s has no example of itself", path)
		}
		for line := range strings.Lines(cmd.Long + "\n" + cmd.Example) {
			if len(line) > 125 {
				t.Errorf("%s: a line of its help has %d characters; break it at 120", path, len(line))
			}
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" || strings.Contains(f.Usage, "`") || strings.HasSuffix(f.Usage, ".") {
				t.Errorf("%s --%s: %q is no line without a full stop, or has what would be taken for the name of its value", path, f.Name, f.Usage)
			}
		})
	}
}
