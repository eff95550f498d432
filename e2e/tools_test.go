//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

// tarnBinary is the path of the program, beside tarn-cluster or where `make build` writes it. It is
// "" where the program is not built.
func tarnBinary() string {
	path := "../bin/tarn"
	if suite.machine.here() {
		path = filepath.Join(filepath.Dir(suite.machine.binary), "tarn")
	}
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// tool runs the program and gives its output and its exit status.
func tool(input string, args ...string) (stdout, stderr string, status int, err error) {
	command := exec.Command(tarnBinary(), args...)
	var out, complaint strings.Builder
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(input), &out, &complaint
	err = command.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status, err = exit.ExitCode(), nil
	}
	return out.String(), complaint.String(), status, err
}

// mustTool is tool for a case that needs the program and the given exit status.
func mustTool(t *testing.T, wantStatus int, input string, args ...string) (stdout, stderr string) {
	t.Helper()
	if tarnBinary() == "" {
		t.Skip("the program tarn is not built: run `make build`")
	}
	stdout, stderr, status, err := tool(input, args...)
	if err != nil || status != wantStatus {
		t.Fatalf("tarn %s: exit status %d, want %d (%v)\n%s%s", strings.Join(args, " "), status, wantStatus, err, stdout, stderr)
	}
	return stdout, stderr
}

// audited runs tarn audit, on the node too where that is this machine. It returns an error for
// orphaned objects of a provisioner, or of all for "". Audit also lists objects whose owner it
// cannot determine. A parallel case may cause those, so they count only if they have a uid seen of
// the provisioner. The audit of all finds the others.
func audited(provisioner string) error { return auditedOn(suite.machine, provisioner) }

// auditedOn is audited with a certain node.
func auditedOn(m machine, provisioner string) error {
	if tarnBinary() == "" {
		return errors.New("the program tarn is not built, so nothing can be audited: run `make build`")
	}
	args := []string{"audit", "--output", "json", "--provisioner", provisioner, "--node-state-dir", "none"}
	if m.here() {
		pid, err := m.kubelet()
		if err != nil {
			return err
		}
		args[len(args)-1] = fmt.Sprintf("/proc/%d/root%s", pid, stateDir)
		if root := m.hostPathRoot(); root != "" {
			args = append(args, "--host-path-root", root)
		}
	}
	stdout, stderr, status, err := tool("", args...)
	if err != nil || status == 0 {
		return err
	}
	var report struct {
		Items []struct{ Kind, Name, Provisioner, Orphaned string }
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		return fmt.Errorf("tarn audit: exit status %d\n%s%s", status, stdout, stderr)
	}
	var orphaned error
	ours := seenOf(provisioner)
	for _, i := range report.Items {
		if i.Orphaned != "" && (i.Provisioner != "" || ours(i.Name+i.Orphaned)) {
			orphaned = errors.Join(orphaned, fmt.Errorf("tarn audit: orphaned: %s %s: %s", i.Kind, i.Name, i.Orphaned))
		}
	}
	return orphaned
}

func TestLintFindsThreeMistakesAndTheAPIServerAFourth(t *testing.T) {
	t.Parallel()
	document := func(name string, sections fields) string {
		text, err := yaml.Marshal((&scenario{name: name}).provisioner(sections).Object)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	three := document("three", fields{
		"volumeCreation": fields{"capacity": "{{ requestedCapacity }}"},
		"volumeDeletion": fields{"podTemplate": fields{"spec": fields{
			"restartPolicy": "Always", "containers": []any{fields{"name": "a", "image": "b"}},
		}}},
		"volumeStaging": script{text: "mount {{ handle | }}", privileged: true}.section(nil),
	})
	// The case asks about its pods, because nothing else is wrong with it.
	fourth := script{text: "true"}.section(nil)
	container(fourth)["name"] = "Main_Container"
	out, _ := mustTool(t, 1, three+"---\n"+document("fourth", fields{"volumeStaging": fourth}), "pav", "lint", "-")
	const staging = "spec.volumeStaging.podTemplate.spec.containers[0]"
	for _, want := range []string{
		`has no variable "requestedCapacity"`, "must end, so write Never or OnFailure", "expected token 'name'",
		staging + ".name: the API server rejects it: ",
		staging + `.securityContext.privileged: needs privileged: namespace "tarn-volumes" must allow the Pod Security level privileged`,
		"4 errors, ", " in 2 PavProvisioners",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("lint does not say %q:\n%s", want, out)
		}
	}
	if out, _ := mustTool(t, 0, document("fourth", fields{"volumeStaging": fourth}), "pav", "lint", "--server=never", "-"); strings.Contains(out, "API server") {
		t.Errorf("lint says with --server=never what the API server would:\n%s", out)
	}
}

// objectFile writes an object to a file as kubectl prints it.
func objectFile(t *testing.T, kind string, o any) string {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var content fields
	if err := json.Unmarshal(data, &content); err != nil {
		t.Fatal(err)
	}
	content["apiVersion"], content["kind"] = "v1", kind
	text, err := yaml.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), kind+".yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// tried holds the fields that the cases read of tarn pav test's JSON.
type tried struct {
	Name, Namespace string
	Passed          bool
	Steps           []struct {
		Name, Detail string
		Passed       bool
		Seconds      float64
	}
	Story []string
	Left  []string
}

// tries runs tarn pav test and proves that it leaves nothing behind.
func tries(t *testing.T, wantStatus int, input string, args ...string) tried {
	t.Helper()
	out, _ := mustTool(t, wantStatus, input, append([]string{"pav", "test", "--output", "json", "--namespace-prefix", namePrefix + "try-"}, args...)...)
	var r tried
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in:\n%s", err, out)
	}
	s := &scenario{t: t, ctx: t.Context(), name: r.Name}
	s.gone(&corev1.Namespace{ObjectMeta: named(r.Namespace)})
	s.gone(&pav.PavProvisioner{ObjectMeta: named(r.Name)})
	if err := s.nothingLeft(); err != nil {
		t.Errorf("tarn pav test has left something behind: %v", err)
	}
	return r
}

// words fails the case if the report of a step does not begin with its word, or there is another
// step.
func (r tried) words(t *testing.T, failed, undone, validated, created string) {
	t.Helper()
	want := []struct{ name, detail string }{
		{"accepted", ""}, {"registered", "on "}, {"failed", failed}, {"undone", undone},
		{"validated", validated}, {"created", created}, {"bound", "volume pvc-"}, {"staged", "on node "}, {"written", ""}, {"ready", ""}, {"expanded", "skipped: there is no spec.volumeExpansion"}, {"read", ""}, {"unstaged", ""},
		{"recycled", "skipped: there is no spec.volumeRecycling"}, {"deleted", ""}, {"nothing left", ""}, {"cleaned up", ""},
	}
	if !r.Passed || len(r.Steps) != len(want) {
		t.Fatalf("want %d steps that pass, got %+v", len(want), r)
	}
	for i, w := range want {
		got := r.Steps[i]
		if got.Name != w.name || !got.Passed || w.detail == "" && got.Detail != "" || !strings.HasPrefix(got.Detail, w.detail) {
			t.Errorf("step %d: got %+v, want %s to say %q", i+1, got, w.name, w.detail)
		}
		if strings.HasPrefix(got.Detail, "by its pod") && got.Seconds <= 0 {
			t.Errorf("step %d: %s has a pod and took no time: %+v", i+1, w.name, got)
		}
	}
}

func TestTheExamplesPassTarnPavTest(t *testing.T) {
	t.Parallel()
	waits := objectFile(t, "StorageClass", fields{"metadata": fields{"name": "any"}, "provisioner": "any", "volumeBindingMode": "WaitForFirstConsumer"})
	ofNodes, err := yaml.Marshal((&scenario{name: "of-nodes"}).provisioner(fields{
		"topology":       "Node",
		"volumeCreation": script{text: "true"}.section(asRequested),
		"volumeDeletion": script{text: "true"}.section(nil),
		"volumeStaging":  greeting,
	}).Object)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, file, text string
		args             []string
		// These are the reports of the steps. creations and deletions are the least numbers of pods
		// that other clients must see.
		failed, undone, validated, created string
		creations, deletions               int
	}{
		{"without a creation pod", "../examples/hello-world/1-provisioner.yaml", "", nil,
			"skipped: there is no creation pod", "skipped: nothing failed",
			"there is no spec.volumeValidation", "without a pod, handle ", 0, 0},
		{"with a pod in each section", "../examples/five-sections/provisioner.yaml", "", nil, "creation made to fail", "",
			"by its pod", "by its pod, handle ", 2, 2},
		{"for the first pod of a volume", "-", string(ofNodes), []string{"--class", waits}, "creation made to fail", "",
			"there is no spec.volumeValidation", "by its pod, handle ", 2, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := tries(t, 0, c.text, append(c.args, c.file)...)
			r.words(t, c.failed, c.undone, c.validated, c.created)
			s := &scenario{t: t, ctx: t.Context(), name: r.Name}
			s.await("the pods of both attempts to be seen", func() (bool, string) {
				seen := suite.news.of(r.Name).pods
				return seen[tarn.StepCreation] >= c.creations && seen[tarn.StepDeletion] >= c.deletions, fmt.Sprint(seen)
			})
		})
	}
	kinds := []string{"folder", "block"}
	if wide() {
		kinds = append(kinds, "fuse", "middleware")
	}
	for _, kind := range kinds {
		t.Run("a new one of kind "+kind, func(t *testing.T) {
			t.Parallel()
			name, dir := namePrefix+"new-"+kind, filepath.Join(t.TempDir(), "new")
			mustTool(t, 0, "", "pav", "new", name, "--kind", kind, "--directory", dir)
			if kind == "fuse" {
				if out, err := suite.machine.run("image", "build", "--tag", "tarn.dev/"+name+":1", "--packages", "bindfs"); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			file := func(name string) string { return filepath.Join(dir, name) }
			r := tries(t, 0, "", "--class", file("class.yaml"), "--claim", file("example.yaml"), file("provisioner.yaml"))
			if !r.Passed || len(r.Left) > 0 {
				t.Errorf("want it to pass: %+v", r)
			}
			if suite.machine.here() && kind != "middleware" {
				if err := os.Remove("/var/lib/tarn/" + name); err != nil {
					t.Errorf("a volume is left: %v", err)
				}
			}
		})
	}
}

func TestAProvisionerThatCanExpandIsTestedGrowing(t *testing.T) {
	t.Parallel()
	sections := inMemory()
	sections["volumeExpansion"] = fields{"nodePodTemplate": remounting("")}
	text, err := yaml.Marshal((&scenario{name: "grows"}).provisioner(sections).Object)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, text string
		wantStatus int
		want       string
	}{
		{"one that grows", string(text), 0, "to 2Gi"},
		{"one that cannot", strings.Replace(string(text), "mount -o remount", "echo the shelf is too short > /pav/error; false; mount -o remount", 1), 1, "the shelf is too short"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.wantStatus != 0 && c.text == string(text) {
				t.Fatal("nothing was changed")
			}
			r := tries(t, c.wantStatus, c.text, "-")
			found := false
			for _, step := range r.Steps {
				if step.Name == "expanded" {
					found = step.Passed == (c.wantStatus == 0) && strings.Contains(step.Detail, c.want)
				}
			}
			if !found || r.Passed != (c.wantStatus == 0) || len(r.Left) > 0 {
				t.Errorf("want the step expanded to say %q:\n%+v", c.want, r)
			}
		})
	}
}

func TestAProvisionerThatFailsItsTestLeavesNothing(t *testing.T) {
	t.Parallel()
	lacks := func(change func(spec, container fields)) fields {
		section := script{text: "mkdir /pav/volume"}.section(nil)
		spec := section["podTemplate"].(fields)["spec"].(fields)
		change(spec, spec["containers"].([]any)[0].(fields))
		return section
	}
	const secret = "no-such-secret"
	for _, c := range []struct {
		name    string
		staging fields
		want    []string
	}{
		{"its staging fails", fails(nil), []string{complaint}},
		// A missing object of a pod is reported at once and not at the deadline.
		{"an image is not there", lacks(func(_, container fields) { container["image"] = "localhost:1/none:1" }),
			[]string{" cannot start: container main: ", "localhost:1/none:1"}},
		{"a Secret is not there", lacks(func(_, container fields) {
			container["envFrom"] = []any{fields{"secretRef": fields{"name": secret}}}
		}), []string{" cannot start: container main: CreateContainerConfigError: ", secret}},
		{"a Secret to be mounted is not there", lacks(func(spec, container fields) {
			container["volumeMounts"] = []any{fields{"name": "key", "mountPath": "/key"}}
			spec["volumes"] = []any{fields{"name": "key", "secret": fields{"secretName": secret}}}
		}), []string{" cannot start: FailedMount: ", secret}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			text, err := yaml.Marshal((&scenario{name: "fails-its-test"}).provisioner(fields{"volumeCreation": asRequested, "volumeStaging": c.staging}).Object)
			if err != nil {
				t.Fatal(err)
			}
			r := tries(t, 1, string(text), "-")
			failed := ""
			for _, step := range r.Steps {
				if !step.Passed {
					failed += step.Name + ": " + step.Detail
				}
			}
			if r.Passed || !strings.HasPrefix(failed, "staged: ") || !containsAll(failed, c.want) || len(r.Story) == 0 || len(r.Left) > 0 {
				t.Errorf("want the staging alone to fail with %q, and a story:\n%+v", c.want, r)
			}
		})
	}
}

func TestAuditNamesAnOrphanUntilItIsGone(t *testing.T) {
	t.Parallel()
	s := begin(t, "audit")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	if err := audited(s.name); err != nil {
		t.Fatalf("while the volume is used: %v", err)
	}
	stranger := &corev1.Pod{ObjectMeta: named("stranger"), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "busybox:1.36"}}}}
	stranger.Namespace = s.name
	stranger.Labels = map[string]string{tarn.LabelStep: "creation", tarn.LabelProvisioner: s.name, tarn.LabelRecord: "no-such-uid"}
	s.create(stranger)
	out, _ := mustTool(t, 1, "", "audit", "--output", "json", "--provisioner", s.name, "--node-state-dir", "none", "--settle", "0s")
	for _, want := range []string{`"name": "stranger"`, "kubectl delete pod -n " + s.name + " stranger", `"orphaned": 1`} {
		if !strings.Contains(out, want) {
			t.Errorf("audit does not say %s:\n%s", want, out)
		}
	}
	s.remove(stranger)
	s.remove(claim)
	if err := audited(s.name); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
