package rules

import (
	"fmt"
	"path"
	"regexp"
	"strings"
)

var (
	target   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	pagePath = regexp.MustCompile(`(?:^|[^\w/.-]|\.\./)(docs/[a-z0-9/-]+\.md)`)
	heading  = regexp.MustCompile(`^#{1,6} (.*)`)
	givenID  = regexp.MustCompile(`<a id="([^"]+)">`)
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchorsOf gives the anchors of a page: those it sets, and those GitHub derives from its headings.
func anchorsOf(text string) map[string]bool {
	found := map[string]bool{}
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		for _, m := range givenID.FindAllStringSubmatch(line, -1) {
			found[m[1]] = true
		}
		if m := heading.FindStringSubmatch(strings.TrimSpace(line)); m != nil && !fenced {
			found[strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(linkText.ReplaceAllString(m[1], "$1")), ""), " ", "-")] = true
		}
	}
	return found
}

// deadLinks finds links without a target, pages that a text names but that do not exist, and pages
// missing in the index of the documentation.
func deadLinks(files []file) []string {
	const index = "docs/README.md"
	there, pages, anchors := map[string]bool{".": true}, map[string]bool{}, map[string]map[string]bool{}
	for _, f := range files {
		for name := f.name; name != "."; name = path.Dir(name) {
			there[name] = true
		}
		if strings.HasSuffix(f.name, ".md") {
			pages[f.name], anchors[f.name] = true, anchorsOf(string(f.text))
		}
	}
	var wrong []string
	listed := map[string]bool{index: true}
	for _, f := range files {
		for number, line := range strings.Split(string(f.text), "\n") {
			if !strings.Contains(line, "docs/") && !strings.Contains(line, "](") || f.dir() == "internal/rules" {
				continue
			}
			at := fmt.Sprintf("%s:%d", f.name, number+1)
			for _, m := range pagePath.FindAllStringSubmatch(line, -1) {
				if !there[m[1]] {
					wrong = append(wrong, fmt.Sprintf("%s: there is no %s: name the page that says it now", at, m[1]))
				}
			}
			if !pages[f.name] {
				continue
			}
			for _, m := range target.FindAllStringSubmatch(codeSpan.ReplaceAllString(line, ""), -1) {
				to, anchor, hasAnchor := strings.Cut(m[1], "#")
				if strings.Contains(to, ":") {
					continue
				}
				page := f.name
				if to != "" {
					page = path.Join(f.dir(), to)
				}
				if f.name == index {
					listed[page] = true
				}
				if !there[page] {
					wrong = append(wrong, fmt.Sprintf("%s: the link to %s leads nowhere", at, m[1]))
				} else if hasAnchor && !anchors[page][anchor] {
					wrong = append(wrong, fmt.Sprintf("%s: %s has no heading for #%s", at, page, anchor))
				}
			}
		}
	}
	for _, f := range files {
		if pages[index] && strings.HasPrefix(f.name, "docs/") && strings.HasSuffix(f.name, ".md") && !listed[f.name] {
			wrong = append(wrong, fmt.Sprintf("%s:1: is not in %s: add a line for it", f.name, index))
		}
	}
	return wrong
}
