package rules

import (
	"fmt"
	"regexp"
	"strings"
)

const metricsDocument = "docs/operations/metrics.md"

var metricName = regexp.MustCompile(`\bName: "(tarn_[a-z_]+)"`)

// untoldMetrics finds metrics that are missing in their document.
func untoldMetrics(files []file) []string {
	told := ""
	for _, f := range files {
		if f.name == metricsDocument {
			told = string(f.text)
		}
	}
	var messages []string
	for _, f := range goFiles(files) {
		if f.isTest() {
			continue
		}
		for number, line := range strings.Split(string(f.text), "\n") {
			if name := metricName.FindStringSubmatch(line); name != nil && !strings.Contains(told, "`"+name[1]+"`") {
				messages = append(messages, fmt.Sprintf("%s:%d: metric %s is not in %s: say what it is", f.name, number+1, name[1], metricsDocument))
			}
		}
	}
	return messages
}
