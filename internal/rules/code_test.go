package rules

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strings"
)

// Files and functions longer than these limits, in lines, must be split. While writing, aim for 400
// and 60.
const (
	maxFileLines     = 500
	maxFunctionLines = 80
)

// parses rejects a Go file that does not parse, because no other rule could judge it.
func parses(files []file) []string {
	var wrong []string
	for _, f := range files {
		if f.problem != nil {
			wrong = append(wrong, f.problem.Error())
		}
	}
	return wrong
}

// packageComments rejects a package without a comment on its purpose.
func packageComments(files []file) []string {
	type found struct{ name, comment string }
	packages := map[string]found{}
	for _, f := range files {
		if !f.isGo() || f.problem != nil {
			continue
		}
		name := f.syntax.Name.Name
		if strings.HasSuffix(name, "_test") {
			continue
		}
		p := packages[f.dir()]
		p.name = name
		if f.syntax.Doc != nil {
			p.comment = f.syntax.Doc.Text()
		}
		packages[f.dir()] = p
	}
	var wrong []string
	for dir, p := range packages {
		want := "Package " + p.name + " "
		if p.name == "main" {
			want = "Command "
		}
		if !strings.HasPrefix(p.comment, want) {
			wrong = append(wrong, fmt.Sprintf("%s: no package comment that begins %q and says what it is for and what it must not know", dir, want))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// fileSizes rejects files that are too long.
func fileSizes(files []file) []string {
	var wrong []string
	for _, f := range goFiles(files) {
		if f.lines() > maxFileLines {
			wrong = append(wrong, fmt.Sprintf("%s: %d lines, at most %d; split it by what it does", f.name, f.lines(), maxFileLines))
		}
	}
	return wrong
}

// functionSizes rejects functions that are too long. Lines of a test's tables do not count, because
// they are data.
func functionSizes(files []file) []string {
	var wrong []string
	for _, f := range goFiles(files) {
		for _, declared := range f.syntax.Decls {
			function, ok := declared.(*ast.FuncDecl)
			if !ok || function.Body == nil {
				continue
			}
			lines := span(f, function)
			if f.isTest() {
				lines -= tableLines(f, function.Body)
			}
			if lines > maxFunctionLines {
				wrong = append(wrong, fmt.Sprintf("%s: function %s has %d lines, at most %d", f.at(function), function.Name.Name, lines, maxFunctionLines))
			}
		}
	}
	return wrong
}

// span gives the number of lines of a node.
func span(f file, n ast.Node) int {
	return f.set.Position(n.End()).Line - f.set.Position(n.Pos()).Line + 1
}

// tableLines gives the number of lines of a body that are inside literals of slices, arrays and
// maps. A literal within a literal counts once.
func tableLines(f file, body ast.Node) int {
	lines := 0
	ast.Inspect(body, func(n ast.Node) bool {
		literal, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		switch literal.Type.(type) {
		case *ast.ArrayType, *ast.MapType:
			lines += span(f, literal) - 1
			return false
		}
		return true
	})
	return lines
}

// recursiveDeletes rejects os.RemoveAll outside tests. A mount may lie beneath one of our
// directories, with a user's data beneath it. A function may delete a temporary directory that it
// made.
func recursiveDeletes(files []file) []string {
	var wrong []string
	for _, f := range goFiles(files) {
		if f.isTest() {
			continue
		}
		for _, declared := range f.syntax.Decls {
			temporary := temporaryFolders(declared)
			ast.Inspect(declared, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || !isCall(call, "os", "RemoveAll") {
					return true
				}
				if name, ok := call.Args[0].(*ast.Ident); !ok || !temporary[name.Name] {
					wrong = append(wrong, fmt.Sprintf("%s: os.RemoveAll may delete through a mount; remove what is known by name", f.at(call)))
				}
				return true
			})
		}
	}
	return wrong
}

// temporaryFolders names the variables that a declaration sets with os.MkdirTemp.
func temporaryFolders(declared ast.Node) map[string]bool {
	found := map[string]bool{}
	ast.Inspect(declared, func(n ast.Node) bool {
		assignment, ok := n.(*ast.AssignStmt)
		if !ok || len(assignment.Rhs) != 1 || len(assignment.Lhs) != 2 {
			return true
		}
		call, ok := assignment.Rhs[0].(*ast.CallExpr)
		if name, named := assignment.Lhs[0].(*ast.Ident); ok && named && isCall(call, "os", "MkdirTemp") {
			found[name.Name] = true
		}
		return true
	})
	return found
}

// isCall reports whether a call is of a package's function, by the package's own name.
func isCall(call *ast.CallExpr, in, name string) bool {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || selector.Sel.Name != name {
		return false
	}
	base, ok := selector.X.(*ast.Ident)
	return ok && base.Name == in
}

// sleeps rejects time.Sleep outside tests.
func sleeps(files []file) []string {
	return banned(files, "time", []string{"Sleep"}, "waits blindly; use a watch, a timer in a select, or a deadline")
}

// banned rejects uses of a package's names outside tests.
func banned(files []file, importPath string, names []string, why string) []string {
	var wrong []string
	for _, f := range goFiles(files) {
		if f.isTest() {
			continue
		}
		for _, use := range calls(f, importPath, names...) {
			wrong = append(wrong, fmt.Sprintf("%s: %s.%s %s", f.at(use), path.Base(importPath), use.Sel.Name, why))
		}
	}
	return wrong
}

// printers are the directories that may print, as every command may.
var printers = []string{"internal/cli", "cmd", "hack", "bench"}

// prints rejects fmt.Print and its variants outside printers.
func prints(files []file) []string {
	var quiet []file
	for _, f := range goFiles(files) {
		if f.syntax.Name.Name != "main" && !slices.ContainsFunc(printers, func(dir string) bool { return within(f.dir(), dir) != "" }) {
			quiet = append(quiet, f)
		}
	}
	return banned(quiet, "fmt", []string{"Print", "Printf", "Println"}, "prints from a package that has no terminal; return it or log it")
}

// unwinders are the directories that may panic, because their panics never leave them. The template
// engine unwinds its recursive descent with panics, and recovers in its public functions.
var unwinders = []string{"jinja"}

// panics rejects panic outside tests.
func panics(files []file) []string {
	var wrong []string
	for _, f := range goFiles(files) {
		if f.isTest() || slices.Contains(unwinders, f.dir()) {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if name, ok := call.Fun.(*ast.Ident); ok && name.Name == "panic" {
				wrong = append(wrong, fmt.Sprintf("%s: panic outside a test; return an error", f.at(call)))
			}
			return true
		})
	}
	return wrong
}

// silentSkips rejects a test that skips itself without a reason.
func silentSkips(files []file) []string {
	var wrong []string
	for _, f := range goFiles(files) {
		if !f.isTest() {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			selector, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			name := selector.Sel.Name
			if name == "SkipNow" || name == "Skip" && (len(call.Args) == 0 || isEmptyText(call.Args[0])) {
				wrong = append(wrong, fmt.Sprintf("%s: a test skips without saying why", f.at(call)))
			}
			return true
		})
	}
	return wrong
}

// isEmptyText reports whether an expression is the literal of a blank string.
func isEmptyText(e ast.Expr) bool {
	literal, ok := e.(*ast.BasicLit)
	return ok && strings.Trim(literal.Value, "\"` ") == ""
}
