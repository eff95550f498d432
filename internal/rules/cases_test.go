package rules

import (
	"fmt"
	"go/ast"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// caseList is the list of the numbered cases of the binder.
const caseList = "internal/controller/bind/CASES.md"

var (
	// caseWords match what a test says of its cases, such as "cases 81 and 82" or Cases81And82.
	caseWords = regexp.MustCompile(`[Cc]ases? ?(\d+(?:(?:, | and |And)\d+)*)`)
	caseRow   = regexp.MustCompile(`(?m)^\| (\d+) \| .* \| (.*) \|$`)
	digits    = regexp.MustCompile(`\d+`)
)

// numberedCases rejects a number of a case that is not in the list, a row whose case no test shows,
// and a package in a row that does not show it. A case that no test says by number names its test.
func numberedCases(files []file) []string {
	shown := map[int]map[string]string{} // a place in each package
	packages := map[string]bool{}
	for _, f := range goFiles(files) {
		if f.isTest() && (strings.HasPrefix(f.name, "internal/controller/") || strings.HasPrefix(f.name, "internal/volume/") || strings.HasPrefix(f.name, "e2e/")) {
			packages[path.Base(f.dir())] = true
			casesOf(f, shown)
		}
	}
	list := ""
	if at := slices.IndexFunc(files, func(f file) bool { return f.name == caseList }); at >= 0 {
		list = string(files[at].text)
	}
	var wrong []string
	listed := map[int]bool{}
	for _, row := range caseRow.FindAllStringSubmatch(list, -1) {
		n, _ := strconv.Atoi(row[1]) // digits alone
		listed[n] = true
		if len(shown[n]) == 0 && !testName.MatchString(row[2]) {
			wrong = append(wrong, fmt.Sprintf("%s: no test shows case %d: name one, or say its number where it is shown", caseList, n))
		}
		for _, name := range strings.Split(row[2], ", ") {
			if packages[name] && shown[n][name] == "" {
				wrong = append(wrong, fmt.Sprintf("%s: no test of %s shows case %d: name the packages that do: %s", caseList, name, n, strings.Join(slices.Sorted(maps.Keys(shown[n])), ", ")))
			}
		}
	}
	for _, n := range slices.Sorted(maps.Keys(shown)) {
		if !listed[n] {
			for _, place := range shown[n] {
				wrong = append(wrong, fmt.Sprintf("%s: case %d is not in %s: describe it there, or correct the number", place, n, caseList))
			}
		}
	}
	return wrong
}

// casesOf adds the numbers that a test file says in its comments, its texts and its names.
func casesOf(f file, shown map[int]map[string]string) {
	add := func(n ast.Node, text string) {
		for _, match := range caseWords.FindAllStringSubmatch(text, -1) {
			for _, number := range digits.FindAllString(match[1], -1) {
				i, _ := strconv.Atoi(number)
				if shown[i] == nil {
					shown[i] = map[string]string{}
				}
				shown[i][path.Base(f.dir())] = f.at(n)
			}
		}
	}
	for _, group := range f.syntax.Comments {
		add(group, group.Text())
	}
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			add(n, n.Value)
		case *ast.FuncDecl:
			add(n, n.Name.Name)
		}
		return true
	})
}
