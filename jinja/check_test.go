package jinja

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCheckNamesEverySyntaxErrorOfATemplate(t *testing.T) {
	tests := []struct {
		name, source string
		want         []string // line:column and how the message begins
	}{
		{"two outputs", "{{ a b }} text\n{{ fine }}\n{{ c | }}", []string{"1:6 expected token 'end of print", "3:8 expected token 'name'"}},
		{"heads of blocks", "{% if a b %}{{ c d }}{% elif %}{% endif %}{% for x %}{{ e f }}{% endfor %}", []string{
			"1:9 expected token 'end of statement", "1:18 expected token 'end of print", "1:30 Expected an expression", "1:52 expected token 'in'", "1:59 expected token 'end of print"}},
		{"filters that do not exist, and an error", "{{ a | nosuch }}{{ b c }}{{ d | neither }}", []string{"1:8 No filter named 'nosuch'", "1:22 expected token", "1:33 No filter named 'neither'"}},
		{"a quotation mark that is missing", `{{ "a }} text {{ "b" }}{{ c d }}`, []string{"1:19 expected token", "1:29 expected token"}},
		{"an end inside a string", `{{ a "}}" }}{{ b c }}`, []string{"1:6 expected token", "1:18 expected token"}},
		{"else if", "{% if a %}1{% else if b %}2{% else %}3{% endif %}{{ c d }}", []string{"1:20 expected token 'end of statement", "1:55 expected token"}},
		{"else if in a loop", "{% for a in b %}1{% else if c %}2{% endfor %}{{ d e }}", []string{"1:26 expected token 'end of statement", "1:51 expected token"}},
		{"more after an end", "{% if a %}{% endif a %}{{ b c }}", []string{"1:20 expected token", "1:29 expected token"}},
		{"a block of a name twice", "{% block a %}{% endblock %}{% block a %}{{ b c }}{% endblock %}", []string{"1:37 block 'a' defined twice", "1:46 expected token"}},
		{"a macro", "{% macro 1() %}{{ b c }}{% endmacro %}{% call %}{% endcall %}{% filter %}{% endfilter %}", []string{
			"1:10 expected token 'name'", "1:21 expected token", "1:47 unexpected 'end of", "1:72 expected token"}},
		{"with and autoescape", "{% with a %}{% endwith %}{% autoescape true %}{% endautoescape %}", []string{"1:11 expected token '='", "1:29 autoescape is not"}},
		{"set", "{% set a = %}{% set b | %}{% endset %}{{ c d }}{% set %}{% endif %}", []string{
			"1:12 Expected an expression", "1:25 expected token 'name'", "1:44 expected token", "1:55 Expected an expression"}},
		{"across lines, in wide characters", "ä{{ ö ü }}\nä ö {{ ö ü }}", []string{"1:7 expected token", "2:10 expected token"}},
		{"limits end it", strings.Repeat("(", 3) + "{{ " + strings.Repeat("(", 120) + " }}{{ a b }}", []string{"1:57 nested more than 100 levels"}},

		// What may follow from an error is not told.
		{"a beginning of no known name", "{% fi a %}{{ b c }}{% else %}{% endif %}{{ d e }}", []string{"1:4 Encountered unknown tag 'fi'", "1:16 expected token", "1:46 expected token"}},
		{"an end of no known name", "{% if a %}{% edif %}{{ b c }}", []string{"1:14 Encountered unknown tag 'edif'", "1:26 expected token"}},
		{"ends that cross", "{% if a %}{% for b in c %}{% endif %}{% endfor %}{{ d e }}", []string{"1:30 Encountered unknown tag 'endif'", "1:55 expected token"}},
		{"a beginning that is missing", "{% endif %}{{ a b }}{% endfor %}", []string{"1:4 Encountered unknown tag 'endif'", "1:17 expected token"}},
		{"an end that is missing", "{{ a b }}{% if c %}{{ d e }}", []string{"1:6 expected token", "1:25 expected token", "1:29 Unexpected end of template"}},
		{"a tag without an end", "{{ a b }}{{ c d", []string{"1:6 expected token", "1:15 expected token"}},
		{"raw text is left alone", "{% raw x %}{{ a b }}{% endraw %}", []string{"1:4 Encountered unknown tag 'raw'"}},
		{"a comment without an end", "{{ a b }}{# {{ c d }}", []string{"1:6 expected token", "1:10 Missing end of comment"}},
		{"bytes that are no text", "{{ a b }}\xff", []string{"1:10 the template is not valid UTF-8"}},
		{"a filter in an inline if is an error when it is reached", "{{ a|nosuch if b c }}{{ d e }}", []string{"1:18 expected token", "1:27 expected token"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			errs := Check(tt.source)
			for i, e := range errs {
				text := fmt.Sprintf("%d:%d %s", e.Line, e.Column, e.Message)
				if i < len(tt.want) && strings.HasPrefix(text, tt.want[i]) {
					text = tt.want[i]
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
			first, err := Parse(tt.source)
			if err == nil {
				t.Fatalf("Parse takes it: %v", first)
			}
		})
	}
}

// Who writes a template may mean harm: whatever it is, little more is read than it is long.
func TestCheckEndsSoon(t *testing.T) {
	const many = 100_000
	for name, c := range map[string]struct {
		object any
		want   int
	}{
		"many errors":            {strings.Repeat("{{ a b }}\n", many), maxReread / (10 * many)},
		"several errors":         {strings.Repeat("{{ a b }}\n", 500), maxSyntaxErrors},
		"many unknown filters":   {strings.Repeat("{{a|b}}", many), maxSyntaxErrors},
		"many ends of one error": {"{% x %}" + strings.Repeat("{% endif %}", many), 1},
		"many beginnings":        {strings.Repeat("{% set a b %}", many), -1},
		"many templates":         {slices.Repeat([]any{"{% x %}" + strings.Repeat("{% endif %}", many/100)}, 100), 100},
	} {
		began := time.Now()
		got := Check(c.object)
		if took := time.Since(began); took > fuzzTime {
			t.Errorf("%s: it took %s", name, took)
		}
		if c.want >= 0 && len(got) != c.want || len(got) == 0 {
			t.Errorf("%s: %d errors are named, want %d", name, len(got), c.want)
			continue
		}
		if last := got[len(got)-1]; !strings.HasSuffix(last.Message, "; there may be more") {
			t.Errorf("%s: it does not say that there may be more: %s", name, last.Message)
		}
	}
	if got := Check("{{ a b }}"); len(got) != 1 || strings.Contains(got[0].Message, "more") {
		t.Errorf("more are promised than there are: %v", got)
	}
}

// Every tag of a template that can be read is broken, each by itself and all together: as
// many errors are named, there and nowhere else.
func TestCheckNamesEachTagThatIsBroken(t *testing.T) {
	tried := 0
	for _, file := range readCases(t) {
		for _, c := range file.Cases {
			source, ok := c.Template.(string)
			if _, err := Parse(source); !ok || err != nil {
				continue
			}
			source = normalise(source)
			lexer := newLexer(source)
			lexer.mended = map[int]mendedTag{}
			if _, err := (&parser{src: source, lexer: lexer}).template(); err != nil {
				t.Fatal(err)
			}
			for i := range lexer.spans {
				checkBroken(t, source, lexer.spans[i:i+1])
			}
			if len(lexer.spans) <= maxSyntaxErrors {
				checkBroken(t, source, lexer.spans)
				tried++
			}
		}
	}
	if tried < 500 {
		t.Errorf("only %d templates were tried", tried)
	}
}

func checkBroken(t *testing.T, source string, tags []span) {
	t.Helper()
	var broken strings.Builder
	var at []int
	from := 0
	for _, tag := range tags {
		end := tag.end - 2
		if source[end-1] == '-' || source[end-1] == '+' {
			end--
		}
		broken.WriteString(source[from:end])
		at = append(at, broken.Len()+1)
		broken.WriteString(" ! ")
		from = end
	}
	broken.WriteString(source[from:])
	var want, got []string
	for _, pos := range at {
		e := errorAt(broken.String(), pos, KindSyntax, "")
		want = append(want, fmt.Sprintf("%d:%d", e.Line, e.Column))
	}
	for _, e := range Check(broken.String()) {
		got = append(got, fmt.Sprintf("%d:%d", e.Line, e.Column))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%q: want -, got +:\n%s", broken.String(), diff)
	}
}
