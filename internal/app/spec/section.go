package spec

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"tarn.dev/tarn/internal/suggest"
)

// section is one table of a document, read key by key. A value of the wrong type is reported, and
// then treated as missing.
type section struct {
	c *checker
	// path of the table, as volumes.1; empty for the document.
	path   string
	values map[string]any
}

func (s section) problem(key, message string) { s.c.problem(join(s.path, key), message) }

func (s section) warn(key, message string) {
	s.c.warnings = append(s.c.warnings, s.c.said(join(s.path, key), message))
}

// refuse reports a problem, if the message is not empty.
func (s section) refuse(key, message string) {
	if message != "" {
		s.problem(key, message)
	}
}

func (s section) has(key string) bool { _, ok := s.values[key]; return ok }

func (s section) isText(key string) bool { _, ok := s.values[key].(string); return ok }

// known reports keys that are not among the given ones, with the one that was probably meant.
func (s section) known(keys ...string) {
	for _, key := range slices.Sorted(maps.Keys(s.values)) {
		if slices.Contains(keys, key) {
			continue
		}
		message := "is unknown: this section has " + strings.Join(keys, ", ")
		if near := suggest.Near(key, keys); near != nil {
			message = fmt.Sprintf("is unknown: write %s", near[0])
		}
		s.problem(key, message)
	}
}

func (s section) text(key string) string {
	value, ok := s.values[key]
	if text, is := value.(string); is || !ok {
		return text
	}
	s.problem(key, fmt.Sprintf("is %s, not a string: put it in quotes", kind(value)))
	return ""
}

// required reads a text that must be present.
func (s section) required(key, example string) string {
	text := s.text(key)
	if !s.has(key) || s.isText(key) && text == "" {
		s.problem(key, "is missing: write it "+example)
	}
	return text
}

func (s section) texts(key string) []string {
	value, ok := s.values[key]
	if !ok {
		return nil
	}
	items, is := value.([]any)
	if !is {
		s.problem(key, fmt.Sprintf(`is %s, not a list: write it as ["a", "b"]`, kind(value)))
		return nil
	}
	texts := make([]string, 0, len(items))
	for i, item := range items {
		text, is := item.(string)
		switch {
		case !is:
			s.problem(join(key, strconv.Itoa(i)), fmt.Sprintf("is %s, not a string: put it in quotes", kind(item)))
		case strings.ContainsRune(text, 0):
			s.problem(join(key, strconv.Itoa(i)), "contains a zero byte, which an argument cannot")
		}
		texts = append(texts, text)
	}
	return texts
}

// whole reads a whole number within bounds; ok is false if there is none.
func (s section) whole(key string, least, most int64) (n int64, ok bool) {
	value, there := s.values[key]
	if !there {
		return 0, false
	}
	n, is := value.(int64)
	if !is || n < least || n > most {
		shown := kind(value)
		if is {
			shown = strconv.FormatInt(n, 10)
		}
		s.problem(key, fmt.Sprintf("is %s: write a whole number from %d to %d", shown, least, most))
		return 0, false
	}
	return n, true
}

func (s section) flag(key string) bool {
	value, there := s.values[key]
	flag, is := value.(bool)
	if there && !is {
		s.problem(key, fmt.Sprintf("is %s: write true or false, without quotes", kind(value)))
	}
	return flag
}

func (s section) table(key string) (section, bool) {
	value, there := s.values[key]
	values, is := value.(map[string]any)
	switch {
	case !there && s.path == "":
		s.problem(key, fmt.Sprintf("is missing: begin the file with [%s]", key))
	case there && !is:
		s.problem(key, fmt.Sprintf("is %s, not a table: write it as [%s]", kind(value), join(s.path, key)))
	}
	return section{c: s.c, path: join(s.path, key), values: values}, is
}

// tables reads an array of tables. It is no error if there is none.
func (s section) tables(key string) []section {
	value, there := s.values[key]
	if !there {
		return nil
	}
	var sections []section
	items, is := value.([]any)
	if !is {
		s.problem(key, fmt.Sprintf("is %s, not a list of tables: write each as [[%s]]", kind(value), key))
	}
	for i, item := range items {
		at := join(key, strconv.Itoa(i))
		values, is := item.(map[string]any)
		if !is {
			s.problem(at, fmt.Sprintf("is %s, not a table: write each as [[%s]]", kind(item), key))
			continue
		}
		sections = append(sections, section{c: s.c, path: at, values: values})
	}
	return sections
}

// clean returns the plain form of a path.
func clean(p string) string { return path.Clean(p) }
