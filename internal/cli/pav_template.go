package cli

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/suggest"
	"tarn.dev/tarn/jinja"
)

// engineNames are the names that every template may read: the engine's functions, and the variables
// that it sets itself. The list lacks lipsum, because the engine rejects it with a better message.
var engineNames = []string{
	"range", "dict", "namespace", "cycler", "joiner", "lipsum", "loop", "caller", "varargs", "kwargs", "self", "yaml",
}

// checkNames finds variables that a section's templates read but the section does not have. A
// variable that a template tests with "is defined", or gives a default, may be missing. A variable
// that exists in only one of the provisioner's modes must be tested like that.
func (l *linter) checkNames(s steppod.Section, modes []pavv1.ProvisioningMode) {
	known, only, err := variables(s.Step, modes)
	if err != nil {
		l.say(levelError, s.Field, "%v", err)
		return
	}
	walkStrings(s.Field, s.Object, func(path, text string) {
		if !isTemplate(text) {
			return
		}
		template, err := jinja.Parse(text)
		if err != nil {
			return // steppod.Check says so
		}
		for _, name := range template.Globals() {
			mode := only[name]
			if slices.Contains(known, name) && mode == "" || slices.Contains(engineNames, name) || guarded(text, name) {
				continue
			}
			line, column := placeOf(text, name)
			if mode != "" {
				l.sayInTemplate(levelWarning, path, line, column, fmt.Sprintf(
					"%s has %q only for volumes of mode %s, and the provisioner has others too; test it with \"is defined\", or give it a default", s.Field, name, mode))
				continue
			}
			l.sayInTemplate(levelError, path, line, column, fmt.Sprintf("%s has no variable %q; %s", s.Field, name, suggest.Hint(name, known)))
		}
	})
}

// variables returns the names that a step's templates may read in any of the modes. only maps each
// name that not all modes have to the mode that has it.
func variables(step tarnv1.Step, modes []pavv1.ProvisioningMode) (known []string, only map[string]pavv1.ProvisioningMode, err error) {
	if len(modes) == 0 {
		modes = []pavv1.ProvisioningMode{pavv1.ModeDynamic}
	}
	in := map[string]int{}
	only = map[string]pavv1.ProvisioningMode{}
	for _, mode := range modes {
		names, err := steppod.Variables(step, mode)
		if err != nil {
			return nil, nil, err
		}
		for _, name := range names {
			in[name]++
			only[name] = mode
		}
	}
	maps.DeleteFunc(only, func(name string, _ pavv1.ProvisioningMode) bool { return in[name] == len(modes) })
	return slices.Sorted(maps.Keys(in)), only, nil
}

// walkStrings calls do with each string below a path: lists by index, mappings by key.
func walkStrings(path string, value any, do func(path, text string)) {
	switch value := value.(type) {
	case string:
		do(path, value)
	case []any:
		for i, item := range value {
			walkStrings(fmt.Sprintf("%s[%d]", path, i), item, do)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			walkStrings(steppod.JoinField(path, key), value[key], do)
		}
	}
}

func isTemplate(text string) bool {
	return strings.Contains(text, "{{") || strings.Contains(text, "{%") || strings.Contains(text, "{#")
}

// guarded says whether a template tests if a variable is defined, or gives it a default.
func guarded(template, name string) bool {
	return regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `\s*(is\s+(not\s+)?(un)?defined\b|\|\s*(default|d)\b)`).MatchString(template)
}

// templateCode finds the code between the delimiters of a template. Raw text is not code.
var templateCode = regexp.MustCompile(`(?s)\{%[-+]?\s*raw\s*[-+]?%\}.*?\{%[-+]?\s*endraw\s*[-+]?%\}|\{#.*?#\}|\{\{(.*?)\}\}|\{%(.*?)%\}`)

// placeOf returns the line and column of the first use of a variable, both from 1.
func placeOf(template, name string) (line, column int) {
	use := regexp.MustCompile(`(?:^|[^.\w'"])(` + regexp.QuoteMeta(name) + `)\b`)
	at := 0
	for _, m := range templateCode.FindAllStringSubmatchIndex(template, -1) {
		first, end := max(m[2], m[4]), max(m[3], m[5])
		if first < 0 {
			continue
		}
		if found := use.FindStringSubmatchIndex(template[first:end]); found != nil {
			at = first + found[2]
			break
		}
	}
	start := strings.LastIndexByte(template[:at], '\n') + 1
	return strings.Count(template[:start], "\n") + 1, utf8.RuneCountInString(template[start:at]) + 1
}

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
