package rules

import (
	"fmt"
	"go/ast"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// e2eScript runs the end-to-end cases, and lists those that need a cluster to themselves.
const e2eScript = "hack/e2e.sh"

var listOfAlone = regexp.MustCompile(`(?s)\nalone=\((.*?)\n\)`)

// loneCases finds end-to-end cases that are not parallel but missing in the script's list, and
// would delay the others. It also finds listed cases that are parallel or do not exist.
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
		// Other scripts run the cases of other tags and of the add-on.
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

// beginsParallel reports whether a test calls Parallel at its beginning.
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

// addonScript runs the cases in which Tarn's parts are pods, and selects them by prefix.
const addonScript = "hack/addon.sh"

var (
	listOfCases = regexp.MustCompile(`(?s)\n(?:core|cases|apart)=\((.*?)\n\)`)
	remark      = regexp.MustCompile(`(?m)^\s*#.*$`)
)

// strayCases finds prefixes in the scripts that no case has. Such a prefix would select nothing.
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
