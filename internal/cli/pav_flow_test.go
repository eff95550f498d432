package cli

import (
	"fmt"
	"strings"
	"testing"
)

func TestLintKeepsUsersOfClaimsOutOfShellsAndYAML(t *testing.T) {
	const about = "apiVersion: pav.albertofaria.github.io/v1alpha1\nkind: PavProvisioner\nmetadata: {name: a}\nspec:\n  provisioningModes: [Static]\n  volumeStaging:\n    podTemplate: "
	const pod = `{spec: {containers: [{name: main, image: i, command: [%s], args: ["echo {{ %s }}"]}]}}`
	for _, c := range []struct{ template, want string }{
		{fmt.Sprintf(pod, "bash, -c", "pvc.metadata.annotations.a"), `.args[0]: comes from a user of claims or nodes, and this shell would run it: end it with "| tobash"`},
		{fmt.Sprintf(pod, "/bin/sh, -ec", "get_pvc('a', 'b').metadata.labels.x | upper"), `| tobash`},
		{fmt.Sprintf(pod, "bash, -c", "pvc.metadata.annotations.a | tobash"), ""},
		{fmt.Sprintf(pod, "bash, -c", "pvc.metadata.name"), ""},
		{`"{% if params.a %}{% set yaml = true %}{% endif %}{spec: {{ pvc.metadata.labels.pod }}}"`, "| tojson"},
		{fmt.Sprintf(pod, "rclone, mount", "pvc.metadata.annotations.a"), ""}, // no shell sees it
		{`"{% set yaml = true %}{spec: {containers: [{name: main, image: {{ pvc.metadata.labels.image }}}]}}"`, `could add fields to this YAML: end it with "| tojson"`},
		{`"{% set yaml = true %}{spec: {containers: [{name: main, image: {{ pvc.metadata.labels.image | tojson }}}]}}"`, ""},
	} {
		out, errOut, status := run(t, about+c.template+"\n", "pav", "lint", "--server=never", "-")
		if c.want == "" && status != 0 || c.want != "" && (status != 1 || !strings.Contains(out, c.want)) {
			t.Errorf("%s: status %d\n%s%s\nwant %q", c.template, status, out, errOut, c.want)
		}
	}
}
