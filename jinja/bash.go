package jinja

import (
	"math/big"
	"strings"
)

// filterToBash quotes any text as one word of a shell. Lines of harmless characters stay as they
// are, others are put in single quotes, and newlines become $'\n', so that the word is on one line.
func filterToBash(e *evaluator, v any, _ []any) any {
	var s string
	switch v := norm(v).(type) {
	case string:
		s = v
	case int, float64, bool, *big.Int:
		s = e.str(v)
	case *undefined:
		kind := v.kind
		if kind == "" {
			kind = KindUndefined
		}
		fail(kind, "the filter tobash cannot be applied to undefined: %s", v.text())
	default:
		fail(KindType, "the filter tobash takes a string or a number, not %s", typeName(v))
	}
	if s == "" {
		return "''"
	}
	e.items(strings.Count(s, "\n"))
	e.text(len(s) + 2)
	var b strings.Builder
	for i, line := range strings.Split(s, "\n") {
		if i > 0 {
			b.WriteString(`$'\n'`)
		}
		switch {
		case line == "":
		case strings.IndexFunc(line, needsQuote) < 0:
			b.WriteString(line)
		default:
			b.WriteString("'" + strings.ReplaceAll(line, "'", `'"'"'`) + "'")
		}
	}
	e.text(b.Len())
	return b.String()
}

func needsQuote(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		return false
	}
	return !strings.ContainsRune("_@%+=:,./-", r)
}
