package jinja

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"strings"

	"go.yaml.in/yaml/v3"
)

// yamlFlag is the top-level variable yaml of a template.
type yamlFlag struct {
	set   bool
	value any
	pos   int
}

// on reads the flag; anything but a boolean is an error.
func (f yamlFlag) on(e *evaluator) bool {
	if !f.set {
		return false
	}
	b, ok := f.value.(bool)
	if !ok {
		e.at = f.pos
		fail(KindType, "the variable yaml must be true or false, not %s", typeName(f.value))
	}
	return b
}

// parseYAML parses one document as PyYAML's safe loader does, which is YAML 1.1: yes is true, 0777
// is octal. The library makes the tree, and this function gives the scalars their meaning. The result holds only JSON-like values: integers are
// int64, or json.Number when they are larger; dates are text.
func parseYAML(b *budget, text string) (value any, err error) {
	defer func() {
		if r := recover(); r != nil {
			if e, ok := r.(*Error); ok {
				err = e
				return
			}
			err = yamlError(fmt.Sprintf("%v", r))
		}
	}()
	checkFlow(b, text)
	b.alloc(8 * len(text))
	b.steps(len(text) / 4)
	d := yaml.NewDecoder(strings.NewReader(text))
	var doc yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, yamlError(err.Error())
	}
	var second yaml.Node
	if err := d.Decode(&second); err == nil {
		return nil, yamlError("expected a single document in the text, but there is another")
	} else if !errors.Is(err, io.EOF) {
		return nil, yamlError(err.Error())
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	c := &yamlReader{budget: b}
	return c.value(doc.Content[0], 0), nil
}

func yamlError(message string) *Error {
	return &Error{Kind: KindYAML, Message: "the rendered text is not YAML: " + strings.TrimPrefix(message, "yaml: ")}
}

// checkFlow bounds nested brackets before the library sees the text.
func checkFlow(b *budget, text string) {
	run := 0
	for i := range len(text) {
		switch text[i] {
		case '[', '{', '-', '?', ':', '!', '&':
			run++
			if run > maxYAMLRun {
				fail(KindLimit, "YAML nested more than %d levels deep", b.maxDepth)
			}
		case ' ', '\n', '\t':
		default:
			run = 0
		}
	}
}

// maxYAMLRun bounds the indicators that follow one another without other text.
const maxYAMLRun = 10_000

type yamlReader struct {
	*budget
	open []*yaml.Node // the aliases being expanded, to find cycles
}

func (c *yamlReader) fail(n *yaml.Node, format string, args ...any) {
	panic(yamlError(fmt.Sprintf("line %d: ", n.Line) + fmt.Sprintf(format, args...)))
}

func (c *yamlReader) value(n *yaml.Node, depth int) any {
	c.steps(2)
	c.alloc(4*anyBytes + len(n.Value))
	if depth > c.maxDepth {
		fail(KindLimit, "YAML nested more than %d levels deep", c.maxDepth)
	}
	switch n.Kind {
	case yaml.AliasNode:
		for _, open := range c.open {
			if open == n.Alias {
				c.fail(n, "the alias %s contains itself", n.Value)
			}
		}
		c.open = append(c.open, n.Alias)
		v := c.value(n.Alias, depth)
		c.open = c.open[:len(c.open)-1]
		return v
	case yaml.SequenceNode:
		c.checkTag(n, "!!seq")
		out := make([]any, 0, len(n.Content))
		c.items(len(n.Content))
		for _, item := range n.Content {
			out = append(out, c.value(item, depth+1))
		}
		return out
	case yaml.MappingNode:
		c.checkTag(n, "!!map")
		out := make(map[string]any, len(n.Content)/2)
		c.items(4 * len(n.Content))
		c.mapping(n, out, depth)
		return out
	case yaml.ScalarNode:
		return c.scalar(n)
	}
	c.fail(n, "an unknown kind of node")
	return nil
}

// explicit returns the tag that the text has, or "".
func explicit(n *yaml.Node) string {
	if n.Style&yaml.TaggedStyle == 0 {
		return ""
	}
	return n.ShortTag()
}

func (c *yamlReader) checkTag(n *yaml.Node, want string) {
	if tag := explicit(n); tag != "" && tag != want && tag != "!" {
		c.fail(n, "could not determine a constructor for the tag '%s'", tag)
	}
}

// isMerge reports whether a key is the merge key <<.
func isMerge(k *yaml.Node) bool {
	return k.Kind == yaml.ScalarNode && (k.Value == "<<" && k.Style == 0 || explicit(k) == "!!merge")
}

// mapping fills out with the entries of n: merged ones first, so that the mapping's own win.
func (c *yamlReader) mapping(n *yaml.Node, out map[string]any, depth int) {
	if depth > c.maxDepth {
		fail(KindLimit, "YAML nested more than %d levels deep", c.maxDepth)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if isMerge(n.Content[i]) {
			c.merge(n.Content[i+1], out, depth)
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if k := n.Content[i]; !isMerge(k) {
			out[c.key(k, depth)] = c.value(n.Content[i+1], depth+1)
		}
	}
}

func (c *yamlReader) merge(n *yaml.Node, out map[string]any, depth int) {
	c.steps(2)
	target := n
	if n.Kind == yaml.AliasNode {
		target = n.Alias
	}
	switch target.Kind {
	case yaml.MappingNode:
		c.mapping(target, out, depth+1)
	case yaml.SequenceNode:
		for i := len(target.Content) - 1; i >= 0; i-- {
			item := target.Content[i]
			if item.Kind == yaml.AliasNode {
				item = item.Alias
			}
			if item.Kind != yaml.MappingNode {
				c.fail(n, "expected a mapping for merging")
			}
			c.steps(2)
			c.mapping(item, out, depth+1)
		}
	default:
		c.fail(n, "expected a mapping or list of mappings for merging")
	}
}

// key returns a key as JSON needs it: a string.
func (c *yamlReader) key(n *yaml.Node, depth int) string {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.ScalarNode {
		c.fail(n, "found unhashable key")
	}
	if n.Value == "=" && n.Style == 0 {
		return "="
	}
	switch v := c.scalar(n).(type) {
	case string:
		return v
	case nil:
		return "null"
	case bool:
		return map[bool]string{true: "true", false: "false"}[v]
	case int64:
		return fmt.Sprint(v)
	case float64:
		return jsonFloat(v)
	case json.Number:
		return string(v)
	}
	c.fail(n, "found unhashable key")
	return ""
}

func (c *yamlReader) scalar(n *yaml.Node) any {
	s := n.Value
	tag := explicit(n)
	if tag == "" || tag == "!" {
		if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 || tag == "!" {
			return s
		}
		tag = resolveYAML(s)
	}
	switch tag {
	case "!!str":
		return s
	case "!!null":
		return nil
	case "!!bool":
		switch strings.ToLower(s) {
		case "yes", "true", "on":
			return true
		case "no", "false", "off":
			return false
		}
		c.fail(n, "%s is not a boolean", shortRepr(s))
	case "!!int":
		if v, ok := yamlInt(s); ok {
			return c.integer(n, v)
		}
		fail(KindValue, "%s is not an integer", shortRepr(s))
	case "!!float":
		if v, ok := yamlFloat(s); ok {
			if math.IsInf(v, 0) || math.IsNaN(v) {
				c.fail(n, "%s cannot be written as JSON", s)
			}
			return v
		}
		fail(KindValue, "%s is not a number", shortRepr(s))
	case "!!timestamp":
		if !validDate(s) {
			fail(KindValue, "%s is not a date", shortRepr(s))
		}
		return s
	case "!!binary", "!!set", "!!omap", "!!pairs":
		c.fail(n, "a value tagged %s cannot be written as JSON", tag)
	}
	c.fail(n, "could not determine a constructor for the tag '%s'", tag)
	return nil
}

func (c *yamlReader) integer(n *yaml.Node, v *big.Int) any {
	if v.IsInt64() {
		return v.Int64()
	}
	if v.BitLen() > 1024 {
		c.fail(n, "an integer of more than 1024 bits is too large")
	}
	return json.Number(v.String())
}
