package cli

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// update writes the output of the commands into the golden files.
var update = flag.Bool("update", false, "write the golden files anew")

// No test may call the developer's own cluster.
func init() { _ = os.Setenv("KUBECONFIG", os.DevNull) }

// run runs a command and returns its standard output, standard error and exit status.
func run(t *testing.T, stdin string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := NewRoot()
	cmd.SetArgs(args)
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	status = ExitStatus(cmd.ExecuteContext(t.Context()), &errOut)
	return out.String(), errOut.String(), status
}

// golden compares a text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "pav", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: want -, got +:\n%s", path, diff)
	}
}

func testFile(name string) string { return filepath.Join("testdata", "pav", name) }

func TestLintSaysEverythingThatIsWrongAndWhere(t *testing.T) {
	out, errOut, status := run(t, "", "pav", "lint", testFile("wrong.yaml"))
	if status != 1 || errOut != "note: no API server checked this, as no kubeconfig names one\n" {
		t.Errorf("exit status %d and %q on standard error, want 1 and that no API server was asked", status, errOut)
	}
	golden(t, "lint-wrong", out)
}

func TestLintIsToldWhetherToAskAServer(t *testing.T) {
	file := testFile("claim.yaml")
	for _, c := range []struct{ flag, want string }{
		{"--server=sometimes", `--server "sometimes" is unknown; give auto, always or never`},
		{"--server", "--server: no cluster is configured: "},
		{"--kubeconfig=" + file + ".not-there", "no cluster is configured: "},
		{"--context=not-there", "no cluster is configured: "},
	} {
		if _, said, status := run(t, "", "pav", "lint", c.flag, testFile("wrong.yaml")); status != 1 || !strings.Contains(said, c.want) {
			t.Errorf("%s: exit status %d and %q, want 1 and %q", c.flag, status, said, c.want)
		}
	}
	if out, said, _ := run(t, provisioner, "pav", "lint", "--server=never", "-"); said != "" || out == "" {
		t.Errorf("--server=never: printed %q and on standard error %q, want findings alone", out, said)
	}
}

func TestLintFindsNothingWrongWithTheExamplesAndReadyProvisioners(t *testing.T) {
	var files []string
	for _, folder := range []string{"examples", "provisioners"} {
		found, err := filepath.Glob("../../" + folder + "/*/*provisioner.yaml")
		if err != nil || len(found) < 2 {
			t.Fatalf("found %v, %v; want those of %s", found, err, folder)
		}
		files = append(files, found...)
	}
	out, _, status := run(t, "", append([]string{"pav", "lint", "--strict"}, files...)...)
	if status != 0 || strings.Contains(out, "error: ") || strings.Contains(out, "warning: ") {
		t.Errorf("exit status %d:\n%s", status, out)
	}
}

func TestLintPrintsJSON(t *testing.T) {
	out, _, status := run(t, "", "pav", "lint", "--output", "json", testFile("wrong.yaml"))
	var r lintReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if status != 1 || r.Errors != len(r.Findings.only(levelError)) || r.Errors < 20 || r.Provisioners != 2 {
		t.Errorf("exit status %d, %d errors, %d provisioners", status, r.Errors, r.Provisioners)
	}
	for _, f := range r.Findings {
		if f.File == "" || f.Document == 0 || f.Line == 0 || f.Message == "" {
			t.Errorf("%+v lacks its place or message", f)
		}
	}
}

// provisioner is valid; the tests break it.
const provisioner = `apiVersion: pav.albertofaria.github.io/v1alpha1
kind: PavProvisioner
metadata:
  name: right
spec:
  provisioningModes: [Static]
  volumeStaging:
    podTemplate:
      spec:
        restartPolicy: Never
        containers:
          - name: main
            image: busybox
            args: ["{{ handle }}"]
`

func TestLintReadsStandardInputAndPointsIntoEachKindOfText(t *testing.T) {
	for name, c := range map[string]struct{ args, want string }{
		"nothing":        {`["{{ handle }}"]`, "0 errors, 0 warnings in 1 PavProvisioner"},
		"plain":          {"\n              - a {{ x }}", "standard input:15:22: error: "},
		"plain, folded":  {"\n              - a b\n                c {{ x }}", "standard input:15:17: error: "},
		"double quotes":  {`["a {{ x }}"]`, "standard input:14:26: error: "},
		"escaped":        {`["\t{{ x }}"]`, "standard input:14:20: error: spec.volumeStaging.podTemplate.spec.containers[0].args[0]: column 5 of the template: "},
		"single quotes":  {`['{{ "" }}', 'é{{ x }}']`, "standard input:14:37: error: "},
		"literal":        {"\n              - |\n                a\n\n                é{{ x }}", "standard input:18:21: error: "},
		"literal, far":   {"\n              - |2\n                 \n                 b {{ x }}", "standard input:17:23: error: "},
		"a default":      {`["{{ x | default(1) }}{% if y is not defined %}{% endif %}{{ y }}"]`, "0 errors, 0 warnings"},
		"own variables":  {`["{% set a = 1 %}{% for b in [1] %}{{ a }}{{ b }}{{ loop.index }}{% endfor %}{% macro m(c) %}{{ c }}{% endmacro %}{{ m(range(2)|list) }}{{ get_pvc('a', 'b').kind }}{{ get_pv('a', none).spec.capacity.storage | tobytes }}"]`, "0 errors, 0 warnings"},
		"another's":      {`["{{ requestedMinCapacity }}"]`, `spec.volumeStaging has no variable "requestedMinCapacity"`},
		"a near one":     {`["{{ pvs.metadata.name }}"]`, "did you mean pv or pvc?"},
		"twice":          {"[]\n            args: []", "standard input:15:13: error: spec.volumeStaging.podTemplate.spec.containers[0].args: appears twice"},
		"an attribute":   {`["{{ pv.x.nope }} {{ nope }}"]`, "standard input:14:40: error: "},
		"a flag and tag": {`["{% if nope %}{% endif %}"]`, "standard input:14:27: error: "},
	} {
		t.Run(name, func(t *testing.T) {
			out, _, status := run(t, strings.Replace(provisioner, `["{{ handle }}"]`, c.args, 1), "pav", "lint", "-")
			if !strings.Contains(out, c.want) {
				t.Errorf("want %q in:\n%s", c.want, out)
			}
			if wantStatus := strings.Contains(c.want, "0 errors"); (status == 0) != wantStatus {
				t.Errorf("exit status %d", status)
			}
		})
	}
}

func TestWarningsFailOnlyWhenLintIsStrict(t *testing.T) {
	text := strings.Replace(provisioner, "restartPolicy: Never", "restartPolicy: Always", 1)
	if out, _, status := run(t, text, "pav", "lint", "-"); status != 0 || !strings.Contains(out, "14") && !strings.Contains(out, "/pav/ready") {
		t.Errorf("exit status %d:\n%s", status, out)
	}
	if _, _, status := run(t, text, "pav", "lint", "--strict", "-"); status != 1 {
		t.Errorf("exit status %d with --strict", status)
	}
}

func TestLintRecommendsNeverForAServerToo(t *testing.T) {
	server := strings.Replace(provisioner, `["{{ handle }}"]`, `["serve", "/pav/volume", "/pav/ready"]`, 1)
	for policy, want := range map[string]bool{"restartPolicy: Never": false, "restartPolicy: OnFailure": false, "restartPolicy: Always": true, "hostPID: true": true} {
		out, _, _ := run(t, strings.Replace(server, "restartPolicy: Never", policy, 1), "pav", "lint", "-")
		if got := strings.Contains(out, "warning: spec.volumeStaging.podTemplate.spec") && strings.Contains(out, "write Never for a server too"); got != want {
			t.Errorf("with %s:\n%s", policy, out)
		}
	}
}

func TestLintKnowsBothPodsOfAnExpansion(t *testing.T) {
	text, err := os.ReadFile(testFile("bucket.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if out, _, status := run(t, string(text), "pav", "lint", "--strict", "-"); status != 0 || !strings.Contains(out, "in each node-expansion pod") || !strings.Contains(out, "reads readOnly, so a node") {
		t.Errorf("exit status %d:\n%s", status, out)
	}
	spoilt := strings.NewReplacer(`"{{ capacity }}", "{{ newCapacity }}"]}`, `"{{ node.metadata.name }}"], volumeMounts: [{name: pav, mountPath: /pav}]}`,
		"nodePodTemplate:\n      spec:", "nodePodTemplate:\n      spec:\n        restartPolicy: Always").Replace(string(text))
	out, _, _ := run(t, spoilt, "pav", "lint", "-")
	for _, want := range []string{
		`spec.volumeExpansion has no variable "node"`, "spec.volumeExpansion.nodePodTemplate.spec.restartPolicy: a node-expansion pod must end",
		"spec.volumeExpansion.podTemplate.spec.containers[0].volumeMounts[0].mountPath", "3 errors",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in:\n%s", want, out)
		}
	}
}

func TestDynamicWithoutCreationIsAWarning(t *testing.T) {
	out, _, status := run(t, strings.Replace(provisioner, "[Static]", "[Dynamic]", 1), "pav", "lint", "-")
	if status != 0 || !strings.Contains(out, "standard input:6:3: warning: spec.provisioningModes: provisioningModes contains Dynamic, but there is no spec.volumeCreation to make a volume") {
		t.Errorf("exit status %d:\n%s", status, out)
	}
}

func TestRenderTiesAPodToItsNode(t *testing.T) {
	text, err := os.ReadFile(testFile("bucket.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	tied := strings.Replace(string(text), "spec:\n", "spec:\n  topology: Node\n", 1)
	out, errOut, status := run(t, tied, "pav", "render", "-", "--section", "deletion", "--node", testFile("node.yaml"))
	if status != 0 || !strings.Contains(out, "nodeAffinity") || !strings.Contains(out, "- worker-7") {
		t.Errorf("exit status %d: %s%s", status, out, errOut)
	}
}

func TestAFileWithoutProvisionerIsAnError(t *testing.T) {
	out, _, status := run(t, "kind: Pod\n", "pav", "lint", "-")
	if status != 1 || !strings.Contains(out, "there is no PavProvisioner in this file") {
		t.Errorf("exit status %d:\n%s", status, out)
	}
}

func TestRenderPrintsThePodOfEachSection(t *testing.T) {
	claims := writeFile(t, "claims.json", `{"team-a/base": {"spec": {"volumeName": "pv-7"}},
		"pv-7": {"spec": {"csi": {"driver": "bucket", "volumeHandle": "vol-7"}, "claimRef": {"namespace": "team-a", "name": "base"}}, "status": {"phase": "Bound"}}}`)
	given := []string{"--claim", testFile("claim.yaml"), "--class", testFile("claim.yaml"), "--pvcs", claims}
	for section, more := range map[string][]string{
		"validation": nil, "creation": nil, "deletion": nil, "unstaging": {"--node", testFile("node.yaml")},
		"staging": {"--node", testFile("node.yaml"), "--read-only"}, "expansion": nil,
		"recycling":      {"--method", "Zero"},
		"node-expansion": {"--node", testFile("node.yaml"), "--new-capacity", "8Gi"},
	} {
		t.Run(section, func(t *testing.T) {
			args := append([]string{"pav", "render", testFile("bucket.yaml"), "--section", section}, append(given, more...)...)
			out, errOut, status := run(t, "", args...)
			if status != 0 {
				t.Errorf("exit status %d: %s", status, errOut)
			}
			golden(t, "render-"+section, out)
		})
	}
}

func TestRenderHoldsAVolumeWrittenByHandAgainstTheValidation(t *testing.T) {
	const volume = "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: pv-7}\n" +
		"spec: {capacity: {storage: %s}, accessModes: [ReadWriteMany], csi: {driver: bucket, volumeHandle: b7, volumeAttributes: {shared: 'yes'}}}\n"
	for size, want := range map[string]string{
		"1Ti": "# spec.volumeValidation has no podTemplate: no pod is run",
		"2Ti": `PersistentVolume "pv-7": spec.capacity.storage is 2Ti, PavProvisioner "bucket" has 1Ti in spec.volumeValidation.maxCapacity`,
	} {
		file := writeFile(t, "volume.yaml", fmt.Sprintf(volume, size))
		out, errOut, status := run(t, "", "pav", "render", testFile("bucket.yaml"), "--section", "validation", "--claim", testFile("claim.yaml"), "--volume", file)
		if refused := size == "2Ti"; (status == 1) != refused || !strings.Contains(out+errOut, want) {
			t.Errorf("exit status %d, want %q in %s%s", status, want, out, errOut)
		}
	}
}

func TestLintKnowsWhatAValidationHasInEachMode(t *testing.T) {
	section := "  volumeValidation: {maxCapacity: \"{{ %s }}\"}\n  volumeStaging:"
	for modes, names := range map[string]map[string]string{
		"[Static]":          {"handle": "0 errors, 0 warnings", "sc.parameters.most": `error: spec.volumeValidation.maxCapacity: spec.volumeValidation has no variable "sc"`},
		"[Dynamic]":         {"sc.parameters.most": "0 errors, 1 warning", "handle": `has no variable "handle"`},
		"[Dynamic, Static]": {"handle": `warning: spec.volumeValidation.maxCapacity: spec.volumeValidation has "handle" only for volumes of mode Static`, "handle | default(1)": "0 errors, 1 warning"},
	} {
		for name, want := range names {
			text := strings.NewReplacer("[Static]", modes, "  volumeStaging:", fmt.Sprintf(section, name)).Replace(provisioner)
			if out, _, _ := run(t, text, "pav", "lint", "-"); !strings.Contains(out, want) {
				t.Errorf("%s, %s: want %q in\n%s", modes, name, want, out)
			}
		}
	}
}

func TestLintJudgesWhatTemplatesComeToForAClaim(t *testing.T) {
	text, err := os.ReadFile(testFile("bucket.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	given := []string{"--claim", testFile("claim.yaml"), "--class", testFile("claim.yaml"), "--node", testFile("node.yaml")}
	const remove = "\n          - " + `{name: remove, image: "busybox:1.36", command: [remove-bucket, "{{ handle }}"]}`
	for _, c := range []struct {
		name, from, to string
		args           []string
		want           string
	}{
		{"an undefined value", `"{{ handle }}"]}`, `"{{ params.nope }}"]}`, given,
			"error: spec.volumeDeletion.podTemplate.spec.containers[0].command[1]: undefined error: an expression must not evaluate to undefined: 'dict object' has no attribute 'nope'"},
		{"a value that another class has", `"{{ handle }}"]}`, `"{{ params.region }}"]}`, given, "0 errors"},
		{"a field of a pod that is a template", remove, ` "{% set yaml = true %}[{name: a, image: b, imag: c}]"`, given,
			"error: spec.volumeDeletion.podTemplate.spec.containers[0].imag: unknown field; did you mean image or imagePullPolicy?"},
		{"but not without a claim", remove, ` "{% set yaml = true %}[{name: a, image: b, imag: c}]"`, nil, "0 errors"},
		{"a claim that is refused", "", "", given[:2], "error: spec.volumeValidation: ClaimRefused: "},
		{"a value of a node that is made up", "", "", given[:4], "has no attribute 'example.org/zone'"},
		{"another object", "", "", given, "note: spec.volumeCreation.podTemplate.spec.containers[0].args[0]: is not evaluated, as it reads another object"},
		{"the class of another", "name: bucket", "name: pail", given, `note: --class: StorageClass bucket names provisioner "bucket", not "pail"`},
		{"a parameter of the class that no template reads", "params.shared", "params.share", given,
			`warning: --class: StorageClass "bucket": parameter "shared" has no effect, because no template of PavProvisioner "bucket" reads it; did you mean share?`},
		{"a flag that is wrong", "", "", []string{"--claim", testFile("bucket.yaml")}, "--claim: " + testFile("bucket.yaml") + " has no PersistentVolumeClaim"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(string(text), c.from) {
				t.Fatalf("there is no %q", c.from)
			}
			out, errOut, _ := run(t, strings.Replace(string(text), c.from, c.to, 1), append([]string{"pav", "lint", "-"}, c.args...)...)
			if !strings.Contains(out+errOut, c.want) {
				t.Errorf("want %q in\n%s%s", c.want, out, errOut)
			}
		})
	}
}

func TestRenderShowsWhereATemplateFails(t *testing.T) {
	for name, args := range map[string][]string{
		"undefined": {"--section", "staging", "--claim", testFile("claim.yaml")},
		"refused":   {"--section", "validation", "--claim", testFile("claim.yaml")},
		"no-claim":  {"--section", "creation", "--claim", testFile("claim.yaml"), "--class", testFile("claim.yaml")},
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, status := run(t, "", append([]string{"pav", "render", testFile("bucket.yaml")}, args...)...)
			if status != 1 || out != "" {
				t.Errorf("exit status %d, standard output %q", status, out)
			}
			golden(t, "render-error-"+name, errOut)
		})
	}
}

func TestRenderNamesTheFlagThatIsWrong(t *testing.T) {
	file := testFile("bucket.yaml")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{file, "--section", "nope"}, `--section "nope"`},
		{[]string{file, "--section", "creation", "--claim", file}, "--claim: " + file + " has no PersistentVolumeClaim"},
		{[]string{file, "--section", "creation", "--name", "other"}, `no PavProvisioner "other"`},
		{[]string{file, "--section", "recycling", "--method", "Discard", "--claim", testFile("claim.yaml"), "--class", testFile("claim.yaml")}, "does Files, Zero, not Discard"},
		{[]string{testFile("wrong.yaml"), "--section", "creation", "--name", "static-only"}, "spec.volumeStaging: is missing"},
	} {
		if _, errOut, status := run(t, "", append([]string{"pav", "render"}, c.args...)...); status != 1 || !strings.Contains(errOut, c.want) {
			t.Errorf("%q: exit status %d, %s", c.args, status, errOut)
		}
	}
}

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

// Each pod is a validation pod, because pods of a node always need Tarn's hostPath. The levels are
// Kubernetes' Pod Security Standards.
func TestLintTellsWhatThePodSecurityLevelMustAllow(t *testing.T) {
	const privileged, pod = ": namespace \"tarn-volumes\" must allow the Pod Security level privileged", "spec.volumeValidation.podTemplate."
	const container = pod + "spec.containers[0]."
	for name, c := range map[string]struct {
		// metadata, spec and container are added to the required fields.
		metadata, spec, container string
		want                      []string
	}{
		"nothing": {},
		"what baseline lets do": {
			metadata: `annotations: {container.apparmor.security.beta.kubernetes.io/main: runtime/default, container.apparmor.security.beta.kubernetes.io/b: localhost/x, other: unconfined}`,
			spec: `hostNetwork: false, securityContext: {seccompProfile: {type: RuntimeDefault}, appArmorProfile: {type: Localhost, localhostProfile: x},
			  seLinuxOptions: {type: container_t, level: "s0:c1,c2"}, windowsOptions: {hostProcess: false}, sysctls: [{name: net.ipv4.tcp_rmem, value: "1"}]}`,
			container: `ports: [{containerPort: 80, hostPort: 0}, {containerPort: 81}], livenessProbe: {httpGet: {port: 80, path: /}},
			  securityContext: {privileged: false, procMount: Default, seccompProfile: {type: Localhost, localhostProfile: x}, seLinuxOptions: {type: ""}}`,
		},
		"hostPort":              {container: `ports: [{containerPort: 80}, {containerPort: 81, hostPort: 8081}]`, want: []string{container + "ports[1].hostPort: needs hostPort 8081" + privileged}},
		"hostPort by template":  {container: `ports: [{containerPort: 80, hostPort: "{{ params.port }}"}]`, want: []string{container + "ports[0].hostPort: needs hostPort {{ params.port }}, if its template says so" + privileged}},
		"seccomp of the pod":    {spec: `securityContext: {seccompProfile: {type: Unconfined}}`, want: []string{pod + "spec.securityContext.seccompProfile.type: needs seccompProfile.type Unconfined" + privileged}},
		"seccomp":               {container: `securityContext: {seccompProfile: {type: Unconfined}}`, want: []string{container + "securityContext.seccompProfile.type: needs seccompProfile.type Unconfined" + privileged}},
		"AppArmor of the pod":   {spec: `securityContext: {appArmorProfile: {type: Unconfined}}`, want: []string{pod + "spec.securityContext.appArmorProfile.type: needs appArmorProfile.type Unconfined" + privileged}},
		"AppArmor":              {container: `securityContext: {appArmorProfile: {type: Unconfined}}`, want: []string{container + "securityContext.appArmorProfile.type: needs appArmorProfile.type Unconfined" + privileged}},
		"AppArmor, annotated":   {metadata: `annotations: {container.apparmor.security.beta.kubernetes.io/main: unconfined}`, want: []string{pod + "metadata.annotations['container.apparmor.security.beta.kubernetes.io/main']: needs AppArmor profile unconfined" + privileged}},
		"procMount":             {container: `securityContext: {procMount: Unmasked}`, want: []string{container + "securityContext.procMount: needs procMount Unmasked" + privileged}},
		"procMount, own users":  {spec: `hostUsers: false`, container: `securityContext: {procMount: Unmasked}`, want: []string{container + "securityContext.procMount: needs procMount Unmasked" + privileged + " before Kubernetes 1.35, then baseline"}},
		"sysctl":                {spec: `securityContext: {sysctls: [{name: net.ipv4.tcp_syncookies, value: "1"}, {name: net.core.somaxconn, value: "1"}]}`, want: []string{pod + "spec.securityContext.sysctls[1].name: needs sysctl net.core.somaxconn" + privileged}},
		"SELinux of the pod":    {spec: `securityContext: {seLinuxOptions: {user: u, role: r}}`, want: []string{pod + "spec.securityContext.seLinuxOptions.user: needs seLinuxOptions.user u" + privileged, pod + "spec.securityContext.seLinuxOptions.role: needs seLinuxOptions.role r" + privileged}},
		"SELinux":               {container: `securityContext: {seLinuxOptions: {type: spc_t}}`, want: []string{container + "securityContext.seLinuxOptions.type: needs seLinuxOptions.type spc_t" + privileged}},
		"hostProcess of a pod":  {spec: `securityContext: {windowsOptions: {hostProcess: true}}`, want: []string{pod + "spec.securityContext.windowsOptions.hostProcess: needs windowsOptions.hostProcess true" + privileged}},
		"hostProcess":           {container: `securityContext: {windowsOptions: {hostProcess: true}}`, want: []string{container + "securityContext.windowsOptions.hostProcess: needs windowsOptions.hostProcess true" + privileged}},
		"a host to be probed":   {container: `readinessProbe: {tcpSocket: {port: 80, host: h}}`, want: []string{container + "readinessProbe.tcpSocket.host: needs tcpSocket.host h" + privileged + " from Kubernetes 1.34 on"}},
		"a host to be told":     {container: `lifecycle: {preStop: {httpGet: {port: 80, host: h}}}`, want: []string{container + "lifecycle.preStop.httpGet.host: needs httpGet.host h" + privileged + " from Kubernetes 1.34 on"}},
		"the host's namespaces": {spec: `hostPID: true`, want: []string{pod + "spec.hostPID: needs hostPID" + privileged}},
		"of an init container": {
			spec: `initContainers: [{name: first, image: i, ports: [{containerPort: 1, hostPort: 1}]}]`,
			want: []string{pod + "spec.initContainers[0].ports[0].hostPort: needs hostPort 1" + privileged},
		},
	} {
		t.Run(name, func(t *testing.T) {
			beside := func(own, more string) string { return "{" + strings.TrimSuffix(own+", "+more, ", ") + "}" }
			spec := beside("containers: ["+beside("name: main, image: i", c.container)+"]", c.spec)
			text := strings.ReplaceAll(provisioner+"  volumeValidation: {podTemplate: {metadata: {"+c.metadata+"}, spec: "+spec+"}}\n", "\t", "")
			out, _, _ := run(t, text, "pav", "lint", "-")
			var got []string
			for line := range strings.Lines(out) {
				if _, note, ok := strings.Cut(strings.TrimSpace(line), ": note: "); ok && strings.HasPrefix(note, pod) {
					got = append(got, note)
				}
			}
			slices.Sort(got)
			slices.Sort(c.want)
			if !slices.Equal(got, c.want) || strings.Contains(out, "unknown field") || strings.Contains(out, "YAML") {
				t.Errorf("notes:\n%s\nwant:\n%s\nall:\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"), out)
			}
		})
	}
}
