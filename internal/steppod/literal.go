package steppod

import (
	"context"
	"crypto/rand"
	"regexp"
	"strings"

	"tarn.dev/tarn/jinja"
)

// expandedByKubelet matches the fields of a section in which the kubelet turns $$ into $ and
// $(NAME) into the value of an environment variable.
var expandedByKubelet = regexp.MustCompile(
	`^\.(podTemplate|nodePodTemplate)\.spec\.(initContainers|containers)\[\]\.(command\[\]|args\[\]|env\[\]\.value|volumeMounts\[\]\.subPathExpr|(liveness|readiness|startup)Probe\.exec\.command\[\])$`)

// evaluateLiterally evaluates a section so that each value reaches its container unchanged.
//
// Authors write $(NAME) in the text of a template. In the output of an expression it would let the
// user of a claim read the author's Secrets. So in fields that the kubelet expands, each $ of such
// output becomes $$. The marks are random, so that no value can contain one.
func evaluateLiterally(ctx context.Context, object any, vars map[string]any, limits jinja.Limits) (any, error) {
	nonce := rand.Text()
	marks := jinja.Marks{Dollar: nonce + "D", Edge: nonce + "E"}
	value, err := jinja.EvaluateMarked(ctx, object, vars, limits, marks)
	if err != nil {
		return nil, err
	}
	return unmark(value, "", marks), nil
}

// unmark replaces the marks in all strings of a section. path is the path of value in the section.
func unmark(value any, path string, marks jinja.Marks) any {
	switch v := value.(type) {
	case string:
		if expandedByKubelet.MatchString(path) {
			return escape(v, marks)
		}
		return marks.Strip(v)
	case []any:
		for i := range v {
			v[i] = unmark(v[i], path+"[]", marks)
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, item := range v {
			key = marks.Strip(key)
			out[key] = unmark(item, path+"."+key, marks)
		}
		return out
	}
	return value
}

// escape rewrites text for the kubelet's expansion of $(NAME). The expansion must give the text
// without its marks, with only the template's own references expanded.
//
// It reads as the kubelet does: the text after a $( of the template is a name up to the next
// parenthesis. The kubelet copies an unknown name.
func escape(text string, marks jinja.Marks) string {
	var out strings.Builder
	for text != "" {
		own, isOwn := strings.CutPrefix(text, "$")
		switch {
		case strings.HasPrefix(text, marks.Dollar):
			out.WriteString("$$")
			text = text[len(marks.Dollar):]
		case strings.HasPrefix(text, marks.Edge):
			text = text[len(marks.Edge):]
		case isOwn && strings.HasPrefix(own, marks.Edge): // would pair with the value's first character
			out.WriteString("$$")
			text = own
		case isOwn && strings.HasPrefix(own, "$"):
			out.WriteString("$$")
			text = own[1:]
		case isOwn && strings.HasPrefix(own, "(") && strings.Contains(own, ")"):
			end := strings.Index(own, ")") + 1
			out.WriteString("$" + marks.Strip(own[:end]))
			text = own[end:]
		default:
			out.WriteByte(text[0])
			text = text[1:]
		}
	}
	return out.String()
}
