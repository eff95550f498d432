package rules

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strings"
)

// watchful are the directories where changes arrive as events.
var watchful = []string{"internal/controller", "internal/node", "internal/steppod"}

// waiters are, by package, the calls that wait for a time and then check. A time.Timer is not among
// them, because it limits the wait for something else. Neither is a clock that only tells the time.
var waiters = map[string]func(name string) bool{
	"time": func(name string) bool {
		return slices.Contains([]string{"NewTicker", "Tick", "Sleep", "After"}, name)
	},
	"k8s.io/apimachinery/pkg/util/wait": func(name string) bool {
		return slices.ContainsFunc([]string{"Poll", "Until", "Forever", "ExponentialBackoff"}, func(part string) bool { return strings.Contains(name, part) })
	},
	"k8s.io/utils/clock": func(name string) bool {
		return name == "Clock" || strings.HasPrefix(name, "With")
	},
}

// polls rejects polling of something that could send an event. Polling is late by half the
// interval, and costs the API server or the node continuously.
func polls(files []file) []string {
	var wrong []string
	for _, f := range goFiles(files) {
		if f.isTest() || !slices.ContainsFunc(watchful, func(dir string) bool { return within(f.dir(), dir) != "" }) {
			continue
		}
		for _, declared := range f.syntax.Decls {
			function := "a declaration"
			if d, ok := declared.(*ast.FuncDecl); ok {
				function = d.Name.Name
			}
			for _, use := range waitsIn(f, declared) {
				wrong = append(wrong, fmt.Sprintf("%s: %s in %s: lets a time pass and looks again; wait for the event instead, or give the time to the queue by kube.Outcome, "+
					"or bound the wait by a context or a time.Timer; where nothing tells, add the function to exceptions, with the reason",
					f.at(use), nameOf(use), function))
			}
		}
	}
	return wrong
}

// waitsIn gives each use of a waiter in a part of a file.
func waitsIn(f file, part ast.Node) []*ast.SelectorExpr {
	var found []*ast.SelectorExpr
	for _, importPath := range slices.Sorted(maps.Keys(waiters)) {
		local := localName(f, importPath)
		if local == "" {
			continue
		}
		ast.Inspect(part, func(n ast.Node) bool {
			use, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			base, named := use.X.(*ast.Ident)
			if named && base.Name == local && waiters[importPath](use.Sel.Name) || isOfRealClock(use, local) {
				found = append(found, use)
			}
			return true
		})
	}
	return found
}

// isOfRealClock reports whether a use is of a method by which clock.RealClock{} waits.
func isOfRealClock(use *ast.SelectorExpr, local string) bool {
	literal, ok := use.X.(*ast.CompositeLit)
	if !ok || !waiters["time"](use.Sel.Name) {
		return false
	}
	kind, ok := literal.Type.(*ast.SelectorExpr)
	if !ok || kind.Sel.Name != "RealClock" {
		return false
	}
	from, ok := kind.X.(*ast.Ident)
	return ok && from.Name == local
}

// nameOf is a use as the source writes it, without the text in braces.
func nameOf(use *ast.SelectorExpr) string {
	switch from := use.X.(type) {
	case *ast.Ident:
		return from.Name + "." + use.Sel.Name
	case *ast.CompositeLit:
		if kind, ok := from.Type.(*ast.SelectorExpr); ok {
			return nameOf(kind) + "{}." + use.Sel.Name
		}
	}
	return use.Sel.Name
}
