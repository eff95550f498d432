package rules

import (
	"fmt"
	"go/ast"
	"regexp"
	"strings"
)

var testName = regexp.MustCompile(`\bTest[A-Z][A-Za-z0-9]*`)

// namedTests finds tests that a document refers to but that do not exist.
func namedTests(files []file) []string {
	there := map[string]bool{}
	for _, f := range goFiles(files) {
		for _, d := range f.syntax.Decls {
			if function, ok := d.(*ast.FuncDecl); ok && f.isTest() {
				there[function.Name.Name] = true
			}
		}
	}
	var messages []string
	for _, f := range files {
		if !strings.HasSuffix(f.name, ".md") {
			continue
		}
		for number, line := range strings.Split(string(f.text), "\n") {
			for _, name := range testName.FindAllString(line, -1) {
				pattern := strings.Contains(line, "-run "+name)
				if !there[name] && !pattern {
					messages = append(messages, fmt.Sprintf("%s:%d: there is no test %s: name the one that shows it now", f.name, number+1, name))
				}
			}
		}
	}
	return messages
}
