package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"
	kyaml "sigs.k8s.io/yaml"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
)

// manifest is one YAML document of a file. It holds what kubectl reads in the document, and the
// position of each field in the file.
type manifest struct {
	file   string
	number int // of the document, from 1
	line   int // of its first field, from 1
	object map[string]any
	json   []byte
	// lines are the lines of the whole file.
	lines []string
	// values and keys are the nodes of the fields, by path. A field that comes from an anchor has
	// the nodes of the anchor.
	values, keys map[string]*yaml.Node
	// twice are the keys that a mapping has more than once.
	twice []field
}

// field is a path and its node.
type field struct {
	path string
	node *yaml.Node
}

func (m *manifest) text(path ...string) string {
	var at any = m.object
	for _, key := range path {
		fields, _ := at.(map[string]any)
		at = fields[key]
	}
	text, _ := at.(string)
	return text
}

func (m *manifest) kind() string { return m.text("kind") }
func (m *manifest) name() string { return m.text("metadata", "name") }

func (m *manifest) isProvisioner() bool {
	return m.kind() == "PavProvisioner" && strings.HasPrefix(m.text("apiVersion"), pavv1.Group+"/")
}

// readManifests reads the documents of a file that are not empty. A document that is not YAML, or
// not a mapping, yields a finding instead.
func readManifests(file string, text []byte) ([]*manifest, findings) {
	lines := strings.Split(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n")
	var found []*manifest
	var wrong findings
	for i, d := range splitDocuments(lines) {
		m := &manifest{file: file, number: i + 1, lines: lines, line: d.first + 1}
		problem := m.read(lines[d.first:d.end])
		switch {
		case problem != nil:
			wrong = append(wrong, *problem)
		case m.object != nil:
			found = append(found, m)
		}
	}
	return found, wrong
}

// document is a range of lines, counted from 0. It does not include end.
type document struct{ first, end int }

// splitDocuments splits a file into documents where kubectl does.
func splitDocuments(lines []string) []document {
	var found []document
	first := 0
	for i, line := range lines {
		rest, separates := strings.CutPrefix(line, "---")
		if rest = strings.TrimSpace(rest); !separates || rest != "" && rest[0] != '#' {
			continue
		}
		found = append(found, document{first, i})
		first = i + 1
	}
	found = append(found, document{first, len(lines)})
	if len(found) > 1 && strings.TrimSpace(strings.Join(lines[:found[0].end], "")) == "" {
		found = found[1:]
	}
	return found
}

// yamlLine finds the line number in an error of the YAML library.
var yamlLine = regexp.MustCompile(`line (\d+): `)

// read fills the manifest from its lines. It leaves object nil if they hold nothing.
func (m *manifest) read(lines []string) *finding {
	fail := func(err error) *finding {
		f := m.findingAt(levelError, "", nil, "is not YAML: "+strings.TrimPrefix(err.Error(), "yaml: "))
		if at := yamlLine.FindStringSubmatch(err.Error()); at != nil {
			f.Line, _ = strconv.Atoi(at[1])
			f.Message = "is not YAML: " + strings.TrimPrefix(strings.Replace(err.Error(), at[0], "", 1), "yaml: ")
		}
		return &f
	}
	// Empty lines in front make the library count lines as the file does.
	text := []byte(strings.Repeat("\n", m.line-1) + strings.Join(lines, "\n"))
	data, err := kyaml.YAMLToJSON(text)
	if err != nil {
		return fail(err)
	}
	if string(bytes.TrimSpace(data)) == "null" {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if d.Decode(&m.object) != nil {
		f := m.findingAt(levelError, "", nil, "is not an object: it must be a mapping with apiVersion, kind and metadata")
		return &f
	}
	m.json = data
	root := &yaml.Node{}
	if err := yaml.Unmarshal(text, root); err != nil {
		return fail(err)
	}
	m.values, m.keys = map[string]*yaml.Node{}, map[string]*yaml.Node{}
	if len(root.Content) > 0 {
		m.line = root.Content[0].Line
		m.walk("", root.Content[0])
	}
	return nil
}

// walk records where each field below a path stands.
func (m *manifest) walk(path string, n *yaml.Node) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	m.values[path] = n
	switch n.Kind {
	case yaml.SequenceNode:
		for i, item := range n.Content {
			m.walk(fmt.Sprintf("%s[%d]", path, i), item)
		}
	case yaml.MappingNode:
		m.walkMapping(path, n, map[string]bool{})
	}
}

// walkMapping walks the keys of a mapping that are not in has. Then it walks the mappings that it
// merges; the mapping's own keys override theirs.
func (m *manifest) walkMapping(path string, n *yaml.Node, has map[string]bool) {
	own := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if isMerge(key) {
			continue
		}
		if own[key.Value] {
			m.twice = append(m.twice, field{steppod.JoinField(path, key.Value), key})
		}
		own[key.Value] = true
		if has[key.Value] {
			continue
		}
		m.keys[steppod.JoinField(path, key.Value)] = key
		m.walk(steppod.JoinField(path, key.Value), value)
	}
	for key := range own {
		has[key] = true
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if isMerge(n.Content[i]) {
			m.walkMerged(path, n.Content[i+1], has)
		}
	}
}

func (m *manifest) walkMerged(path string, n *yaml.Node, has map[string]bool) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch n.Kind {
	case yaml.MappingNode:
		m.walkMapping(path, n, has)
	case yaml.SequenceNode:
		for _, item := range n.Content {
			m.walkMerged(path, item, has)
		}
	}
}

func isMerge(key *yaml.Node) bool { return key.Tag == "!!merge" || key.Value == "<<" && key.Style == 0 }

// inTemplate converts a position in a template to a line and column of the file. The template is
// the value at path. exact is false if the result is only where the value begins.
func (m *manifest) inTemplate(path string, line, column int) (int, int, bool) {
	n := m.values[path]
	if n == nil || n.Kind != yaml.ScalarNode {
		return m.line, 0, false
	}
	switch {
	case n.Style&yaml.LiteralStyle != 0:
		at := n.Line + line // the text begins below its |
		return at, m.indent(n) + column, true
	case n.Style&yaml.FoldedStyle != 0 || strings.Contains(n.Value, "\n") || line != 1:
		return n.Line, n.Column, false
	case n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0:
		before := []rune(n.Value)[:min(column-1, utf8.RuneCountInString(n.Value))]
		if strings.ContainsAny(string(before), "'\"\\\t") || m.lastLine(n) != n.Line {
			return n.Line, n.Column, false
		}
		return n.Line, n.Column + column, true
	}
	if m.lastLine(n) != n.Line {
		return n.Line, n.Column, false
	}
	return n.Line, n.Column + column - 1, true
}

// lastLine returns the line of the file in which the text of a flow scalar ends. It differs from
// the first one where the text was folded.
func (m *manifest) lastLine(n *yaml.Node) int {
	if n.Line < 1 || n.Line > len(m.lines) {
		return n.Line
	}
	rest := []rune(m.lines[n.Line-1])[min(n.Column-1, utf8.RuneCountInString(m.lines[n.Line-1])):]
	last := strings.TrimRight(n.Value, " ")
	if i := strings.LastIndexByte(last, ' '); i >= 0 {
		last = last[i+1:]
	}
	if strings.Contains(string(rest), last) {
		return n.Line
	}
	return n.Line + 1
}

// indent returns by how many characters the lines of a literal block are indented.
func (m *manifest) indent(n *yaml.Node) int {
	text := strings.Split(n.Value, "\n")
	for i, line := range text {
		if strings.TrimSpace(line) == "" || n.Line+i >= len(m.lines) {
			continue
		}
		return max(len([]rune(m.lines[n.Line+i]))-len([]rune(line)), 0)
	}
	return 0
}

// findingAt makes a finding about the field at a path. node, if given, has its position.
func (m *manifest) findingAt(level level, path string, node *yaml.Node, message string) finding {
	f := finding{Level: level, File: m.file, Document: m.number, Provisioner: m.name(), Field: path, Line: m.line, Message: message}
	for at := path; node == nil && at != ""; at = parentField(at) {
		if node = m.keys[at]; node == nil {
			node = m.values[at]
		}
	}
	if node != nil {
		f.Line, f.Column = node.Line, node.Column
	}
	return f
}

// parentField cuts the last part off a path.
func parentField(path string) string {
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

// unstructured returns the object as clients have it, with numbers that are int64 or float64.
func (m *manifest) unstructured() *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	_ = kjson.UnmarshalCaseSensitivePreserveInts(m.json, &o.Object) // read has parsed it before
	return o
}
