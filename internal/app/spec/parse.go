package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// position is the place of a key in the text.
type position struct{ line, column int }

// document is a parsed file before validation. Its values have the types that both decoders
// produce: string, bool, int64, float64, []any and map[string]any.
type document struct {
	// app is the name that the application already has, empty if it has none.
	app    string
	values map[string]any
	// twice are problems about keys that a JSON object has twice. TOML with such keys is not valid
	// TOML.
	twice []Problem
	// at is the place of each key by its path, such as volumes.1.size. It is nil for JSON.
	at map[string]position
}

// ParseTOML reads a paas.toml for the application named app. The file may omit that name, but may
// not give another one. If app is empty, the file must name the application. The error is of type
// Problems and lists everything that is wrong. warnings list what is valid but perhaps not
// intended.
func ParseTOML(app string, text []byte) (f *File, warnings []Problem, err error) {
	text = withoutMark(text)
	if why, at := unreadable(text); why != "" {
		return nil, nil, placed(text, at, why)
	}
	if problems := sparse(text); problems != nil {
		return nil, nil, problems
	}
	doc := document{app: app, values: map[string]any{}}
	if err := toml.Unmarshal(text, &doc.values); err != nil {
		return nil, nil, syntaxProblem(text, err)
	}
	doc.at = positions(text)
	return check(doc)
}

// ParseJSON reads the same content as JSON: {"app": {...}, "volumes": [...]}.
func ParseJSON(app string, text []byte) (f *File, warnings []Problem, err error) {
	text = withoutMark(text)
	if why, _ := unreadable(text); why != "" {
		return nil, nil, Problems{{Message: why}}
	}
	twice, problems := scanJSON(text)
	if problems != nil {
		return nil, nil, problems
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	values := map[string]any{}
	if err := decoder.Decode(&values); err != nil {
		return nil, nil, Problems{{Message: "this is not a JSON object: " + err.Error()}}
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, Problems{{Message: "something follows the JSON object: send only one object"}}
	}
	plain, _ := plainNumbers(values).(map[string]any)
	return check(document{app: app, values: plain, twice: twice})
}

func syntaxProblem(text []byte, err error) Problems {
	var decode *toml.DecodeError
	if !errors.As(err, &decode) {
		return placed(text, 0, "this is not TOML: "+err.Error())
	}
	line, column := decode.Position()
	message := "this is not TOML: " + strings.TrimPrefix(decode.Error(), "toml: ")
	if !bytes.ContainsRune(bytes.TrimSpace(text), '\n') { // curl --data joins the lines of a file
		message += "; it came as one line: send it as it is, with curl by --data-binary @paas.toml"
	}
	return Problems{{Line: line, Column: column, Message: message}}
}

// plainNumbers converts JSON's numbers to the types of TOML's.
func plainNumbers(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			v[key] = plainNumbers(v[key])
		}
	case []any:
		for i := range v {
			v[i] = plainNumbers(v[i])
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, err := v.Float64()
		if err != nil { // too large for any number type: as a string it is rejected with its key
			return v.String()
		}
		return f
	}
	return value
}

// positions walks a valid TOML document and notes the places of its keys.
func positions(text []byte) map[string]position {
	w := walker{at: map[string]position{}, tables: map[string]int{}, lines: lineStarts(text)}
	w.parser.Reset(text)
	var prefix string
	for w.parser.NextExpression() {
		node := w.parser.Expression()
		switch node.Kind {
		case unstable.Table:
			prefix = w.key(node, "")
		case unstable.ArrayTable:
			prefix = w.arrayTable(node)
		case unstable.KeyValue:
			w.keyValue(node, prefix)
		}
	}
	return w.at
}

type walker struct {
	parser unstable.Parser
	at     map[string]position
	// tables counts the [[tables]] that have begun, by path.
	tables map[string]int
	// lines are the offsets at which lines begin.
	lines []int
}

func lineStarts(text []byte) []int {
	starts := []int{0}
	for i, b := range text {
		if b == '\n' {
			starts = append(starts, i+1)
		}
	}
	return starts
}

// key notes a possibly dotted key and returns its path. A part that names an array of tables means
// the array's last table.
func (w *walker) key(node *unstable.Node, prefix string) string {
	path := prefix
	for keys := node.Key(); keys.Next(); {
		part := keys.Node()
		path = join(path, string(part.Data))
		if n := w.tables[path]; n > 0 {
			path = join(path, strconv.Itoa(n-1))
		}
		w.note(path, part)
	}
	return path
}

func (w *walker) arrayTable(node *unstable.Node) string {
	var parts []*unstable.Node
	for keys := node.Key(); keys.Next(); {
		parts = append(parts, keys.Node())
	}
	var path string
	for i, part := range parts {
		path = join(path, string(part.Data))
		w.note(path, part)
		if i == len(parts)-1 {
			w.tables[path]++
		}
		if n := w.tables[path]; n > 0 {
			path = join(path, strconv.Itoa(n-1))
		}
		w.note(path, part)
	}
	return path
}

func (w *walker) keyValue(node *unstable.Node, prefix string) {
	w.value(node.Value(), w.key(node, prefix))
}

// value notes the keys in inline tables and arrays.
func (w *walker) value(node *unstable.Node, path string) {
	switch node.Kind {
	case unstable.InlineTable:
		for children := node.Children(); children.Next(); {
			w.keyValue(children.Node(), path)
		}
	case unstable.Array:
		i := 0
		for children := node.Children(); children.Next(); {
			if child := children.Node(); child.Kind != unstable.Comment {
				item := join(path, strconv.Itoa(i))
				w.at[item] = w.at[path] // a list item has no place of its own in the syntax tree
				w.value(child, item)
				i++
			}
		}
	}
}

// note keeps the first place of a path. That is where a table was begun, not where a dotted key
// mentions it later.
func (w *walker) note(path string, part *unstable.Node) {
	if _, known := w.at[path]; known {
		return
	}
	// The parser itself would count the lines from the top for each key.
	offset := int(part.Raw.Offset)
	line, exact := slices.BinarySearch(w.lines, offset)
	if !exact {
		line--
	}
	w.at[path] = position{line + 1, offset - w.lines[line] + 1}
}

// deepest is the number of parts of a path that are told apart. No key of a paas.toml lies deeper.
// The limit prevents a text of nothing but dots from making paths as long as the text.
const deepest = 8

func join(path, part string) string {
	switch {
	case path == "":
		return part
	case strings.Count(path, ".") >= deepest:
		return path
	}
	return path + "." + part
}

// sorted sorts problems by their place in the text. Those of JSON keep their order.
func sorted(problems []Problem) []Problem {
	slices.SortStableFunc(problems, func(a, b Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return problems
}
