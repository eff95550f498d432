package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/jinja"
)

// pavLint is one run of lint.
type pavLint struct {
	output     output
	connection connection
	strict     bool
	server     string
	// The objects in these files are the sample that the templates are evaluated for.
	claimFile, classFile, nodeFile string
}

// Values of --server. They say whether the API server checks too: if one can be reached, always, or
// never.
const (
	serverAuto   = "auto"
	serverAlways = "always"
	serverNever  = "never"
)

func newPavLintCommand() *cobra.Command {
	var lint pavLint
	cmd := &cobra.Command{
		Use:   "lint FILE...|-",
		Short: "Find errors in PavProvisioners",
		Long: "Find errors in the PavProvisioners of YAML files, with file, line and column: unknown fields,\n" +
			"invalid values, syntax errors in templates, variables that a section does not have, and pods\n" +
			"that cannot work. Notes list the privileges that the pods need: the Pod Security level of their namespace\n" +
			"must allow them. Other kinds of objects are skipped.\n\n" +
			"If the kubeconfig names a cluster that responds, its API server checks each provisioner and its pods too, by dry runs\n" +
			"that create nothing. With --server a cluster must respond; with --server=never lint does not use a cluster.\n\n" +
			"With --claim, --class or --node lint evaluates the templates for these objects, as tarn pav render does, and checks\n" +
			"the results. Objects that you do not give are made up.\n\n" +
			"The exit status is 1 if there is an error, with --strict also if there is a warning.",
		Example: "  tarn pav lint provisioner.yaml\n" +
			"  tarn pav lint provisioner.yaml --claim claim.yaml --class class.yaml\n" +
			"  helm template ./chart | tarn pav lint --strict -",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return lint.run(cmd, args) },
	}
	cmd.Flags().BoolVar(&lint.strict, "strict", false, "fail on warnings too")
	cmd.Flags().StringVar(&lint.claimFile, "claim", "", "YAML file with a PersistentVolumeClaim to evaluate the templates for")
	cmd.Flags().StringVar(&lint.classFile, "class", "", "YAML file with the claim's StorageClass")
	cmd.Flags().StringVar(&lint.nodeFile, "node", "", "YAML file with the Node, for sections that run on a node")
	cmd.Flags().StringVar(&lint.server, "server", serverAuto, "whether an API server checks too: auto (if the kubeconfig names one that responds), always, or never")
	cmd.Flags().Lookup("server").NoOptDefVal = serverAlways
	lint.output.register(cmd)
	lint.connection.register(cmd, cmd.Flags())
	return cmd
}

func (l *pavLint) run(cmd *cobra.Command, files []string) error {
	given, err := readSample(cmd, l.claimFile, l.classFile, l.nodeFile)
	if err != nil {
		return err
	}
	server, err := l.reach(cmd)
	if err != nil {
		return err
	}
	namespaces, err := stepNamespaces(cmd)
	if err != nil {
		return err
	}
	var found findings
	checked := 0
	for _, file := range files {
		name, text, err := readInput(cmd, file)
		if err != nil {
			return err
		}
		all, wrong := readManifests(name, text)
		found = append(found, wrong...)
		here := 0
		for _, m := range all {
			if !m.isProvisioner() {
				found = append(found, m.findingAt(levelNote, "", nil, skipped(m)))
				continue
			}
			here++
			p, problems := checkProvisioner(m, namespaces)
			right := len(problems.only(levelError)) == 0
			if right && given != (sample{}) {
				problems = append(problems, given.check(cmd.Context(), p, m, namespaces, problems)...)
			}
			found = append(found, problems...)
			if server != nil {
				found = append(found, server.check(cmd.Context(), m)...)
				if right {
					found = append(found, server.checkPods(cmd.Context(), p, m, given)...)
				}
			}
		}
		if here == 0 && len(wrong) == 0 {
			found = append(found, finding{Level: levelError, File: name, Document: 1, Line: 1, Message: "there is no PavProvisioner in this file"})
		}
		checked += here
	}
	return l.report(cmd, found.sorted(), checked)
}

func skipped(m *manifest) string {
	what := strings.TrimSpace(m.kind() + " " + m.name())
	if what == "" {
		what = "an object without kind"
	}
	return what + " is not a PavProvisioner of " + pavv1.Group + " and is skipped"
}

// lintReport is what --output json prints.
type lintReport struct {
	Provisioners int      `json:"provisioners"`
	Errors       int      `json:"errors"`
	Warnings     int      `json:"warnings"`
	Findings     findings `json:"findings"`
}

func (r lintReport) print(w io.Writer) error {
	r.Findings.print(w)
	_, err := fmt.Fprintf(w, "%s, %s in %s\n", count(r.Errors, "error"), count(r.Warnings, "warning"), count(r.Provisioners, "PavProvisioner"))
	return err
}

func (l *pavLint) report(cmd *cobra.Command, found findings, checked int) error {
	r := lintReport{checked, len(found.only(levelError)), len(found.only(levelWarning)), found}
	if r.Findings == nil {
		r.Findings = findings{}
	}
	if err := l.output.print(cmd.OutOrStdout(), r, r.print); err != nil {
		return err
	}
	if r.Errors > 0 || l.strict && r.Warnings > 0 {
		return exitError{1}
	}
	return nil
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// checkProvisioner returns the provisioner as far as it can be read, and all findings about it.
func checkProvisioner(m *manifest, n steppod.Namespaces) (*pavv1.PavProvisioner, findings) {
	l := &linter{manifest: m, namespaces: n}
	for _, f := range m.twice {
		l.found = append(l.found, m.findingAt(levelError, f.path, f.node, "appears twice in one mapping; remove one"))
	}
	p := l.checkSchema()
	for _, problem := range steppod.Check(p, n) {
		l.problem(problem)
	}
	for _, s := range steppod.Sections(p) {
		l.checkYAML(s)
		l.checkNames(s, p.Spec.ProvisioningModes)
		l.checkPod(s)
	}
	for _, s := range steppod.ClaimSections(p) {
		l.checkYAML(s)
		l.checkNames(s, p.Spec.ProvisioningModes)
	}
	l.checkWhole(p)
	return p, l.found.sorted()
}

// linter collects the findings about one manifest.
type linter struct {
	*manifest
	namespaces steppod.Namespaces
	found      findings
}

func (l *linter) say(level level, path, format string, args ...any) {
	l.found = append(l.found, l.findingAt(level, path, nil, fmt.Sprintf(format, args...)))
}

// problem adds a problem that steppod reports. The condition Accepted shows the same one.
func (l *linter) problem(p steppod.Problem) {
	if p.Line == 0 {
		l.say(levelError, p.Field, "%s", p.Message)
		return
	}
	l.sayInTemplate(levelError, p.Field, p.Line, p.Column, p.Message)
}

// sayInTemplate adds a finding about a place in the template at a path.
func (l *linter) sayInTemplate(level level, path string, line, column int, message string) {
	f := l.findingAt(level, path, nil, message)
	var exact bool
	if f.Line, f.Column, exact = l.inTemplate(path, line, column); !exact && line == 1 {
		f.Message = fmt.Sprintf("column %d of the template: %s", column, message)
	}
	f.TemplateLine, f.TemplateColumn = line, column
	if n := l.values[path]; n != nil {
		f.snippet = snippet(n.Value, line, column)
	}
	l.found = append(l.found, f)
}

// snippet returns a line of a template with a caret below a column, both indented.
func snippet(template string, line, column int) string {
	lines := strings.Split(template, "\n")
	if line < 1 || line > len(lines) {
		return ""
	}
	e := jinja.Error{Line: line, Column: column, Snippet: lines[line-1]}
	_, shown, _ := strings.Cut(e.Detail(), "\n")
	return shown
}

// checkWhole checks what a single section does not show.
func (l *linter) checkWhole(p *pavv1.PavProvisioner) {
	if steppod.StagesApart(p) {
		l.say(levelNote, "spec.volumeStaging", "a staging or unstaging template reads readOnly, so a node that has read-only pods and other pods of a volume stages it twice, "+
			"and unstages each separately; neither may remove what the other needs")
	}
	var create map[string]any
	creates, deletes := false, false
	for _, s := range steppod.Sections(p) {
		switch fields, _ := s.Object.(map[string]any); s.Field {
		case "spec.volumeCreation":
			create, creates = fields, true
		case "spec.volumeDeletion":
			deletes = true
		}
	}
	if p.Spec.ClaimAccess == pavv1.ClaimAccessAny {
		l.say(levelWarning, "spec.claimAccess", "with this, each author of a claim can make get_pvc read every claim of the cluster; remove it, and let claims allow it by annotation %s", tarnv1.AnnotationReadableFrom)
	}
	if !creates && slices.Contains(p.Spec.ProvisioningModes, pavv1.ModeDynamic) {
		l.say(levelWarning, "spec.provisioningModes", "provisioningModes contains Dynamic, but there is no spec.volumeCreation to make a volume; add it with a capacity or a podTemplate, or remove Dynamic")
	}
	if create["podTemplate"] != nil && !deletes && len(p.Spec.Claims) == 0 { // a claim goes with its data
		l.say(levelWarning, "spec.volumeCreation.podTemplate", "nothing deletes what the creation pod makes; add spec.volumeDeletion")
	}
}
