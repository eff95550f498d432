package cli

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"tarn.dev/tarn/internal/jinja"
	"tarn.dev/tarn/internal/podvol"
)

// engineNames are what every template may read: the engine's functions, and the
// variables it sets itself. lipsum is left out by the engine, which says so better.
var engineNames = []string{
	"range", "dict", "namespace", "cycler", "joiner", "lipsum", "loop", "caller", "varargs", "kwargs", "self", "yaml",
}

// checkNames finds variables that a section's templates read and the section does
// not have. One that a template asks for with "is defined" or gives a default is
// meant to be missing at times.
func (l *linter) checkNames(s podvol.Section) {
	known, err := podvol.Variables(s.Step)
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
			return // podvol.Check says so
		}
		for _, name := range template.Globals() {
			if slices.Contains(known, name) || slices.Contains(engineNames, name) || guarded(text, name) {
				continue
			}
			line, column := placeOf(text, name)
			l.sayInTemplate(levelError, path, line, column, fmt.Sprintf("%s has no variable %q; %s", s.Field, name, suggest(name, known)))
		}
	})
}

// walkStrings calls do with each string value below a path, lists by index, maps by key.
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
			walkStrings(joinField(path, key), value[key], do)
		}
	}
}

func isTemplate(text string) bool {
	return strings.Contains(text, "{{") || strings.Contains(text, "{%") || strings.Contains(text, "{#")
}

// guarded says whether a template asks if a variable is there, or replaces it.
func guarded(template, name string) bool {
	return regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `\s*(is\s+(not\s+)?(un)?defined\b|\|\s*(default|d)\b)`).MatchString(template)
}

// templateCode finds what is between the delimiters of a template; raw text is none.
var templateCode = regexp.MustCompile(`(?s)\{%[-+]?\s*raw\s*[-+]?%\}.*?\{%[-+]?\s*endraw\s*[-+]?%\}|\{#.*?#\}|\{\{(.*?)\}\}|\{%(.*?)%\}`)

// placeOf gives line and column, from 1, of the first use of a variable.
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

// suggest names the known words nearest to one, or all where none is near.
func suggest(word string, known []string) string {
	var best []string
	least := len(word)/3 + 1
	for _, k := range known {
		d := distance(strings.ToLower(word), strings.ToLower(k))
		if min(len(word), len(k)) > 2 && (strings.HasPrefix(k, word) || strings.HasPrefix(word, k)) {
			d = min(d, 1)
		}
		switch {
		case d < least:
			best, least = []string{k}, d
		case d == least:
			best = append(best, k)
		}
	}
	if len(best) == 0 || len(best) > 3 {
		return "known are " + strings.Join(known, ", ")
	}
	return fmt.Sprintf("did you mean %s?", strings.Join(best, " or "))
}

// distance is how many characters must be changed, added or removed to make a of b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			changed := last
			if a[i] != b[j] {
				changed++
			}
			last = row[j+1]
			row[j+1] = min(changed, last+1, row[j]+1)
		}
	}
	return row[len(b)]
}
