package rules

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// homes are directories that exist on one person's machine only.
var homes = regexp.MustCompile(`(^|[^A-Za-z0-9_./-])/(home|Users)/[a-z][A-Za-z0-9_.-]*`)

// machinePaths gives a rule that rejects paths of this machine: the directory of the checkout, or a
// home directory.
func machinePaths(checkout string) func([]file) []string {
	return func(files []file) []string {
		var wrong []string
		for _, f := range files {
			for number, line := range strings.Split(string(f.text), "\n") {
				if found := homes.FindString(line); found != "" {
					wrong = append(wrong, fmt.Sprintf("%s:%d: names %s, a folder of one machine", f.name, number+1, strings.TrimSpace(found)))
				}
				if deep(checkout) && strings.Contains(line, checkout) {
					wrong = append(wrong, fmt.Sprintf("%s:%d: names %s, the folder of this checkout", f.name, number+1, checkout))
				}
			}
		}
		return wrong
	}
}

// deep reports whether a path is specific enough that its occurrence in a file is no accident. /src
// may be anything; /src/tarn is a checkout.
func deep(checkout string) bool {
	return filepath.IsAbs(checkout) && strings.Count(filepath.Clean(checkout), "/") >= 2
}
