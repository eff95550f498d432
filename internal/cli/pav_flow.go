package cli

import (
	"path"
	"slices"
	"strings"

	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/jinja"
)

// theirs are the values that the author of a provisioner does not write. They come from users of
// claims, and from users who may label a node.
func theirs(filters ...string) jinja.Taint {
	return jinja.Taint{
		Sources: []string{"pvc", "get_pvc", "node"},
		Trusted: []string{"get_pv"}, // only binders and administrators write volumes
		Filters: append(filters, "int", "float", "length", "count", "tobytes"),
		Harmless: func(path string) bool { // the API server rejects characters that could end a quoted word
			return slices.Contains([]string{
				"metadata.name", "metadata.namespace", "metadata.uid", "metadata.creationTimestamp", "metadata.resourceVersion",
				"spec.volumeName", "spec.volumeMode", "spec.storageClassName", "status.phase",
			}, path)
		},
	}
}

var shells = []string{"sh", "bash", "ash", "dash", "ksh", "zsh", "busybox"}

// checkShells reports values from users of claims or nodes in the text of a shell, where they do
// not pass through the filter tobash. The shell would run them.
func (l *linter) checkShells(at string, spec fields) {
	for _, c := range containers(at, spec) {
		command, _ := c.fields["command"].([]any)
		if len(command) == 0 {
			continue
		}
		if program, _ := command[0].(string); !slices.Contains(shells, path.Base(program)) {
			continue
		}
		walk := func(path, text string) {
			l.checkFlow(path, text, theirs("tobash"), "comes from a user of claims or nodes, and this shell would run it: end it with \"| tobash\"")
		}
		walkStrings(c.path+".command", c.fields["command"], walk)
		walkStrings(c.path+".args", c.fields["args"], walk)
	}
}

// checkYAML reports values from users of claims or nodes in templates whose text is parsed as YAML,
// where they do not pass through tojson. They could add fields of their own.
func (l *linter) checkYAML(s steppod.Section) {
	walkStrings(s.Field, s.Object, func(path, text string) {
		if template, err := jinja.Parse(text); err == nil && strings.Contains(text, "yaml") && template.SetsYAML() {
			l.checkFlow(path, text, theirs("tojson"), "comes from a user of claims or nodes, and could add fields to this YAML: end it with \"| tojson\"")
		}
	})
}

func (l *linter) checkFlow(path, text string, taint jinja.Taint, message string) {
	template, err := jinja.Parse(text)
	if err != nil {
		return // steppod.Check says so
	}
	for _, place := range template.Tainted(taint) {
		l.sayInTemplate(levelError, path, place.Line, place.Column, message)
	}
}
