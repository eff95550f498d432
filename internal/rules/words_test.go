package rules

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// retired are words that have a standard term. The words of pages are rejected in the documentation
// too.
var retired = []struct {
	words  *regexp.Regexp
	better string
	pages  bool
}{
	{regexp.MustCompile(`(?i)\bfolders?\b`), "directory", true},
	{regexp.MustCompile(`(?i)\b(whoever|somebody)\b`), "who acts: an administrator, a user", true},
	{regexp.MustCompile(`(?i)\blooks? again\b`), "reconcile, retry or check", true},
	{regexp.MustCompile(`(?i)\bis no [a-z ]+ that can be\b`), "is not a valid ...", true},
	{regexp.MustCompile(`(?i)\bgo(es)? on\b`), "continue", false},
	{regexp.MustCompile(`(?i)\banew\b`), "again", false},
	{regexp.MustCompile(`(?i)\bagain and again\b`), "keeps ...", false},
	{regexp.MustCompile(`(?i)\brefuse[sd]?\b`), "reject", false},
}

// plainMessages rejects retired words in the messages of programs, which are strings with blanks.
func plainMessages(files []file) []string {
	var wrong []string
	for _, f := range goFiles(files) {
		if f.isTest() || f.generated {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil || !strings.Contains(strings.TrimSpace(text), " ") {
				return true
			}
			for _, r := range retired {
				if found := r.words.FindString(text); found != "" {
					wrong = append(wrong, fmt.Sprintf("%s: a message says %q; say %s", f.at(literal), found, r.better))
				}
			}
			return true
		})
	}
	return wrong
}
