package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
)

// source is the Go code of one package, without its tests.
type source struct {
	directory string
	files     []*ast.File
	constants map[string]string // texts by name
}

// parseCode reads the packages below some directories of the root.
func parseCode(root string, below ...string) ([]*source, error) {
	found := map[string]*source{}
	var all []*source
	positions := token.NewFileSet()
	for _, top := range below {
		err := filepath.WalkDir(filepath.Join(root, top), func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(positions, name, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			directory, err := filepath.Rel(root, filepath.Dir(name))
			if err != nil {
				return err
			}
			if found[directory] == nil {
				found[directory] = &source{directory: directory, constants: map[string]string{}}
				all = append(all, found[directory])
			}
			found[directory].files = append(found[directory].files, file)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("reading the code: %w", err)
		}
	}
	for _, s := range all {
		for _, file := range s.files {
			for _, declared := range file.Decls {
				for _, spec := range constantsOf(declared) {
					for i, name := range spec.Names {
						if i < len(spec.Values) {
							s.constants[name.Name] = s.text(spec.Values[i])
						}
					}
				}
			}
		}
	}
	return all, nil
}

// constantsOf gives the constants of a declaration.
func constantsOf(declared ast.Decl) []*ast.ValueSpec {
	var specs []*ast.ValueSpec
	if block, ok := declared.(*ast.GenDecl); ok && block.Tok == token.CONST {
		for _, spec := range block.Specs {
			specs = append(specs, spec.(*ast.ValueSpec))
		}
	}
	return specs
}

// text gives the value of a string expression; "" for other expressions.
func (s *source) text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return text
		}
	case *ast.Ident:
		return s.constants[e.Name]
	}
	return ""
}
