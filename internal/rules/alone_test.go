package rules

import (
	"fmt"
	"go/ast"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// e2eScript runs the end-to-end cases, and lists those that keep a cluster to themselves.
const e2eScript = "hack/e2e.sh"

var listOfAlone = regexp.MustCompile(`(?s)\nalone=\((.*?)\n\)`)

// loneCases finds end-to-end cases that are not parallel and would hold up the others, as
// the script does not list them, and what it lists though it is parallel or not there.
func loneCases(files []file) []string {
	listed := map[string]bool{}
	for _, f := range files {
		if f.name == e2eScript {
			for _, list := range listOfAlone.FindAllStringSubmatch("\n"+string(f.text), -1) {
				for name := range strings.FieldsSeq(list[1]) {
					listed[name] = true
				}
			}
		}
	}
	var messages []string
	for _, f := range goFiles(files) {
		// Those of other tags, and of the add-on, are run by others.
		if f.dir() != "e2e" || !strings.HasPrefix(string(f.text), "//go:build e2e\n") {
			continue
		}
		for _, d := range f.syntax.Decls {
			function, ok := d.(*ast.FuncDecl)
			if !ok || !isCase(function) || beginsParallel(function) {
				continue
			}
			if name := function.Name.Name; !listed[name] {
				messages = append(messages, fmt.Sprintf("%s: %s is not parallel and not among those in %s that have a cluster to themselves", f.at(function), name, e2eScript))
			} else {
				delete(listed, name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		messages = append(messages, fmt.Sprintf("%s: %s is parallel, or there no more: take it off the list", e2eScript, name))
	}
	return messages
}

func isCase(function *ast.FuncDecl) bool {
	name := function.Name.Name
	return function.Recv == nil && name != "TestMain" && testName.MatchString(name) && !strings.HasPrefix(name, "TestAddOn")
}

// beginsParallel says whether a test says of itself that others may run beside it.
func beginsParallel(function *ast.FuncDecl) bool {
	return slices.ContainsFunc(function.Body.List, func(s ast.Stmt) bool {
		statement, ok := s.(*ast.ExprStmt)
		if !ok {
			return false
		}
		call, ok := statement.X.(*ast.CallExpr)
		if !ok {
			return false
		}
		called, ok := call.Fun.(*ast.SelectorExpr)
		return ok && called.Sel.Name == "Parallel"
	})
}

// addonScript runs cases where Tarn is pods, and names them by how they begin.
const addonScript = "hack/addon.sh"

var (
	listOfCases = regexp.MustCompile(`(?s)\n(?:core|cases|apart)=\((.*?)\n\)`)
	remark      = regexp.MustCompile(`(?m)^\s*#.*$`)
)

// strayCases finds what the scripts choose cases by and no case bears: it would choose nothing.
func strayCases(files []file) []string {
	var cases []string
	for _, f := range goFiles(files) {
		for _, d := range f.syntax.Decls {
			if function, ok := d.(*ast.FuncDecl); ok && f.dir() == "e2e" && testName.MatchString(function.Name.Name) {
				cases = append(cases, function.Name.Name)
			}
		}
	}
	var messages []string
	for _, f := range files {
		if f.name != e2eScript && f.name != addonScript {
			continue
		}
		for _, list := range listOfCases.FindAllStringSubmatch("\n"+string(f.text), -1) {
			for word := range strings.FieldsSeq(remark.ReplaceAllString(list[1], "")) {
				name := "Test" + strings.TrimPrefix(strings.Trim(word, "'"), "Test")
				bears := func(c string) bool { return c == name || f.name == addonScript && strings.HasPrefix(c, name) }
				if !slices.ContainsFunc(cases, bears) {
					messages = append(messages, fmt.Sprintf("%s: no case is called %s: mend the list, or take it off", f.name, name))
				}
			}
		}
	}
	return messages
}
