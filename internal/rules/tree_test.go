package rules

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// modulePath is the path of the product's module; nested modules start with it too.
const modulePath = "tarn.dev/tarn"

// file is one file of the tree. name is relative to the root, with slashes.
type file struct {
	name string
	text []byte
	// syntax and set are nil for a file that is not Go.
	syntax *ast.File
	set    *token.FileSet
	// generated says that the Go file is marked as generated.
	generated bool
	// problem is the error of parsing the Go file.
	problem error
}

func (f file) dir() string         { return path.Dir(f.name) }
func (f file) isGo() bool          { return f.syntax != nil }
func (f file) isTest() bool        { return strings.HasSuffix(f.name, "_test.go") }
func (f file) line(n ast.Node) int { return f.set.Position(n.Pos()).Line }

// lines gives the number of lines of the file.
func (f file) lines() int { return bytes.Count(f.text, []byte("\n")) }

// at gives "name:line" for messages.
func (f file) at(n ast.Node) string { return fmt.Sprintf("%s:%d", f.name, f.line(n)) }

// newFile parses text if the name is a Go file's.
func newFile(name string, text []byte) file {
	f := file{name: name, text: text}
	if !strings.HasSuffix(name, ".go") {
		return f
	}
	f.set = token.NewFileSet()
	f.syntax, f.problem = parser.ParseFile(f.set, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if f.problem == nil {
		f.generated = ast.IsGenerated(f.syntax)
	}
	return f
}

// root gives the directory of the repository: the nearest parent with its go.mod.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(text, []byte("module "+modulePath+"\n")) {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatalf("no go.mod of %s above this package", modulePath)
		}
		dir = filepath.Dir(dir)
	}
}

// built are the directories for results of builds and runs.
var built = []string{".git", "bin", ".tarn", "node_modules", "testdata"}

// maxFileBytes is the largest size of a file other than Go that is read. Larger files are data.
const maxFileBytes = 1 << 20

// readTree reads every text file below root that belongs to the source.
func readTree(t *testing.T, root string) []file {
	t.Helper()
	var files []file
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			if slices.Contains(built, entry.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		var text []byte
		if err == nil {
			text, err = readText(name, entry)
		}
		// Another process may build meanwhile. A file that has vanished is not source.
		if errors.Is(err, fs.ErrNotExist) || err == nil && text == nil {
			return nil
		}
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		files = append(files, newFile(filepath.ToSlash(relative), text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// readText gives a file's text, nil if it is not text or too large.
func readText(name string, entry fs.DirEntry) ([]byte, error) {
	info, err := entry.Info()
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxFileBytes {
		return nil, err
	}
	text, err := os.ReadFile(name)
	if bytes.IndexByte(text, 0) >= 0 {
		return nil, err
	}
	return text, err
}

// goFiles gives the Go files that are not generated.
func goFiles(files []file) []file {
	var kept []file
	for _, f := range files {
		if f.isGo() && f.problem == nil && !f.generated {
			kept = append(kept, f)
		}
	}
	return kept
}

// imports gives the paths a Go file imports, with their nodes.
func imports(f file) map[string]ast.Node {
	found := map[string]ast.Node{}
	for _, spec := range f.syntax.Imports {
		found[strings.Trim(spec.Path.Value, `"`)] = spec
	}
	return found
}

// calls gives every use of name.selector for the packages and names given, such as "time" and
// "Now", as "time.Now" -> nodes. It knows the package by its import, so it does not mistake a local
// variable called time for it.
func calls(f file, importPath string, names ...string) []*ast.SelectorExpr {
	local := localName(f, importPath)
	if local == "" {
		return nil
	}
	var found []*ast.SelectorExpr
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		base, ok := selector.X.(*ast.Ident)
		if ok && base.Name == local && slices.Contains(names, selector.Sel.Name) {
			found = append(found, selector)
		}
		return true
	})
	return found
}

// localName is the name by which a file calls an imported package, "" if it does not import it.
func localName(f file, importPath string) string {
	local := ""
	for _, spec := range f.syntax.Imports {
		if strings.Trim(spec.Path.Value, `"`) != importPath {
			continue
		}
		local = path.Base(importPath)
		if spec.Name != nil {
			local = spec.Name.Name
		}
	}
	return local
}
