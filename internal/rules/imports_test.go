package rules

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// layer is one row of the import table.
type layer struct {
	name string
	// dirs are the directories of the layer, relative to the root. A directory includes everything
	// below it.
	dirs []string
	// may are the layers that this one may import. Its own directory is always allowed.
	may []string
	// apart says that the directories of the layer must not import each other.
	apart bool
	// testsOnly says that only test files, or testsOnly layers, may import it.
	testsOnly bool
}

// table lists each layer and the layers it may import. Directories of nested modules have rows too,
// because importing the product is a decision wherever the go.mod lies.
var table = []layer{
	{name: "api", dirs: []string{"api"}},
	{name: "manifests", dirs: []string{"deploy", "charts", "provisioners", "examples"}, may: []string{"api"}},
	{name: "domain", dirs: []string{"internal/volume", "internal/app/spec", "internal/app/plan", "internal/suggest"}, may: []string{"domain", "api"}},
	{name: "engine", dirs: []string{"jinja"}},
	{name: "fakes", dirs: []string{"internal/steppod/steppodtest", "internal/plugin/plugintest"}, may: []string{"domain", "adapters", "api"}, testsOnly: true},
	{name: "adapters", dirs: []string{"internal/action", "internal/kube", "internal/steppod", "internal/plugin", "internal/scrub", "internal/app/service", "internal/kubelet"}, may: []string{"adapters", "domain", "engine", "api"}},
	{name: "controllers", dirs: []string{"internal/controller/*"}, may: []string{"adapters", "domain", "api"}, apart: true},
	{name: "client", dirs: []string{"internal/api/client"}, may: []string{"domain", "api"}},
	{name: "frontends", dirs: []string{"internal/node", "internal/api", "internal/cli"}, may: []string{"client", "adapters", "domain", "engine", "api", "manifests"}, apart: true},
	{name: "testkit", dirs: []string{"internal/testkit"}, may: []string{"adapters", "domain", "api", "manifests"}, testsOnly: true},
	{name: "rules", dirs: []string{"internal/rules"}},
	{name: "wiring", dirs: []string{"cmd/tarn"}, may: []string{"frontends", "controllers", "client", "adapters", "domain", "api", "manifests"}},
	{name: "black box", dirs: []string{"e2e", "hack"}, may: []string{"api", "manifests"}, apart: true},
	{name: "bench", dirs: []string{"bench"}, may: []string{"client", "adapters", "domain", "engine", "api"}},
	{name: "cluster", dirs: []string{"cluster"}},
}

// place gives the row of a directory, and the directory in that row that contains it. The most
// specific row wins: internal/steppod/steppodtest before internal/steppod.
func place(dir string) (layer, string) {
	var best layer
	var home string
	for _, row := range table {
		for _, pattern := range row.dirs {
			if found := within(dir, pattern); len(found) > len(home) {
				best, home = row, found
			}
		}
	}
	return best, home
}

// within gives the directory matched by pattern that is dir or contains it, else "". A final * in
// the pattern matches any one directory.
func within(dir, pattern string) string {
	base, each := strings.CutSuffix(pattern, "/*")
	if dir != base && !strings.HasPrefix(dir, base+"/") {
		return ""
	}
	if !each {
		return base
	}
	rest := strings.TrimPrefix(strings.TrimPrefix(dir, base), "/")
	first, _, _ := strings.Cut(rest, "/")
	return path.Join(base, first)
}

// importTable rejects an import that the table does not allow.
func importTable(files []file) []string {
	var wrong []string
	for _, f := range goFiles(files) {
		from, home := place(f.dir())
		if home == "" {
			wrong = append(wrong, fmt.Sprintf("%s: folder %q has no row in the import table; give it one in internal/rules/imports_test.go", f.name, f.dir()))
			continue
		}
		for imported, node := range imports(f) {
			target, ours := strings.CutPrefix(imported, modulePath+"/")
			if !ours {
				continue
			}
			if reason := refused(f, from, home, target); reason != "" {
				wrong = append(wrong, fmt.Sprintf("%s: %s imports %s: %s", f.at(node), f.dir(), target, reason))
			}
		}
	}
	return wrong
}

// refused says why a file of a row may not import target; "" if it may.
func refused(f file, from layer, home, target string) string {
	to, toHome := place(target)
	switch {
	case toHome == "":
		return "the folder has no row in the import table"
	case toHome == home:
		return ""
	case to.testsOnly && (f.isTest() || from.testsOnly):
		return ""
	case to.testsOnly:
		return to.name + " are for tests alone"
	case f.isTest() && to.name == "client" && from.name != "cluster":
		return ""
	case from.apart && to.name == from.name:
		return "siblings never import each other; they meet in API objects"
	case !slices.Contains(from.may, to.name):
		return fmt.Sprintf("%s may import %s only", from.name, strings.Join(append([]string{"themselves"}, from.may...), ", "))
	}
	return ""
}

// outside are the imports through which a package reaches the outside world.
var outside = []string{
	"k8s.io/client-go", "sigs.k8s.io/controller-runtime", "google.golang.org/grpc",
	"net", "net/http", "os", "os/exec", "syscall", "golang.org/x/sys",
}

// reaches reports whether an import path is in a list or lies below an entry.
func reaches(imported string, list []string) bool {
	return slices.ContainsFunc(list, func(banned string) bool {
		return imported == banned || strings.HasPrefix(imported, banned+"/")
	})
}

// clockNames are the names of package time that read or wait for the clock.
var clockNames = []string{"Now", "Since", "Until", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Sleep"}

// clock gives a message for each use of the clock.
func clock(f file) []string {
	var wrong []string
	for _, use := range calls(f, "time", clockNames...) {
		wrong = append(wrong, fmt.Sprintf("%s: time.%s reads the clock; take the time as an argument", f.at(use), use.Sel.Name))
	}
	for _, use := range calls(f, "k8s.io/apimachinery/pkg/apis/meta/v1", "Now") {
		wrong = append(wrong, fmt.Sprintf("%s: metav1.Now reads the clock; take the time as an argument", f.at(use)))
	}
	return wrong
}

// purePlans rejects a plan.go that could do more than compute.
func purePlans(files []file) []string {
	var wrong []string
	for _, f := range goFiles(files) {
		row, _ := place(f.dir())
		if row.name != "controllers" || path.Base(f.name) != "plan.go" {
			continue
		}
		for imported, node := range imports(f) {
			if imported == "context" || reaches(imported, outside) {
				wrong = append(wrong, fmt.Sprintf("%s: a plan imports %s; gather before it, apply after it", f.at(node), imported))
			}
		}
		wrong = append(wrong, clock(f)...)
	}
	return wrong
}

// pureWords rejects a domain package that can reach the outside world. Only the template engine has
// a context: it calls functions of its host, and stops when the host cancels.
func pureWords(files []file) []string {
	var wrong []string
	for _, f := range goFiles(files) {
		row, _ := place(f.dir())
		if row.name != "domain" && row.name != "engine" || f.isTest() {
			continue
		}
		for imported, node := range imports(f) {
			if reaches(imported, outside) || imported == "context" && row.name != "engine" {
				wrong = append(wrong, fmt.Sprintf("%s: packages of the %s are pure and import no %s", f.at(node), row.name, imported))
			}
		}
		wrong = append(wrong, clock(f)...)
	}
	return wrong
}

// controllerFiles are the files of each controller, in the order of its work. A controller that
// reads live between its writes has apply.go, too.
var controllerFiles = []string{"controller.go", "gather.go", "plan.go"}

// controllerFilesThere rejects a controller that lacks one of them.
func controllerFilesThere(files []file) []string {
	has := map[string]map[string]bool{}
	for _, f := range goFiles(files) {
		row, home := place(f.dir())
		if row.name != "controllers" || f.dir() != home {
			continue
		}
		if has[home] == nil {
			has[home] = map[string]bool{}
		}
		has[home][path.Base(f.name)] = true
	}
	var wrong []string
	for home, names := range has {
		for _, name := range controllerFiles {
			if !names[name] {
				wrong = append(wrong, fmt.Sprintf("%s: a controller without %s; see the order of its work in ARCHITECTURE.md", home, name))
			}
		}
	}
	return wrong
}
