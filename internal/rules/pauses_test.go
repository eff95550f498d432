package rules

import (
	"fmt"
	"go/ast"
)

// pauses rejects a controller that keeps controller-runtime's default backoff. It grows to a
// quarter of an hour, and an object would wait that long after an outage.
func pauses(files []file) []string {
	var wrong []string
	for _, f := range goFiles(files) {
		if f.isTest() || within(f.dir(), "internal/controller") == "" {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			options, ok := n.(*ast.CompositeLit)
			if ok && isOptions(options.Type) && !sets(options, "RateLimiter") {
				wrong = append(wrong, fmt.Sprintf("%s: controller.Options without RateLimiter; give it kube.RateLimiter()", f.at(options)))
			}
			return true
		})
	}
	return wrong
}

func isOptions(kind ast.Expr) bool {
	name, ok := kind.(*ast.SelectorExpr)
	if !ok || name.Sel.Name != "Options" {
		return false
	}
	from, ok := name.X.(*ast.Ident)
	return ok && from.Name == "controller"
}

func sets(literal *ast.CompositeLit, field string) bool {
	for _, element := range literal.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			if key, ok := pair.Key.(*ast.Ident); ok && key.Name == field {
				return true
			}
		}
	}
	return false
}
