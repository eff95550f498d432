//go:build e2e

package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
)

// demo is the program that `make demo` ends with.
type demo struct {
	*exec.Cmd
	out, complaint strings.Builder
}

// newDemo is the program in a directory with the examples.
func newDemo(program, folder string) *demo {
	d := &demo{Cmd: exec.Command(program)}
	d.Dir, d.Stdout, d.Stderr = folder, &d.out, &d.complaint
	return d
}

// triesNext runs the commands that a successful demo suggests, in a shell without a kubeconfig.
func triesNext(t *testing.T, out string) {
	t.Helper()
	_, commands, _ := strings.Cut(out, "\nTry next:\n\n")
	shell := exec.CommandContext(t.Context(), "sh", "-ec", commands)
	shell.Dir = ".."
	shell.Env = slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "KUBECONFIG=") })
	said, err := shell.CombinedOutput()
	greeting := regexp.MustCompile(`Hello, hello-world! I am volume (pvc-\S+)\.`).FindStringSubmatch(out)
	if err != nil || strings.Count(commands, "\n") != 3 || greeting == nil {
		t.Fatalf("what the demo suggests to try next, want three commands that work: %v\n%s\nit printed:\n%s", err, said, out)
	}
	want := []string{"pavprovisioner.pav.albertofaria.github.io/hello-world ", "/" + greeting[1] + " ", "pavstage.tarn.dev/", greeting[0]}
	if !containsAll(string(said), want) {
		t.Errorf("the commands to try next have printed this, want in it %q:\n%s", want, said)
	}
}

// brokenHello gives a directory whose examples/hello-world has a staging pod that fails.
func (s *scenario) brokenHello() string {
	s.t.Helper()
	const from, to = "../examples/hello-world", "examples/hello-world"
	folder := s.t.TempDir()
	if err := os.CopyFS(filepath.Join(folder, to), os.DirFS(from)); err != nil {
		s.t.Fatal(err)
	}
	path := filepath.Join(folder, to, "1-provisioner.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	broken := strings.Replace(string(text), "mkdir /pav/volume", "echo '"+complaint+"' > /pav/error; exit 1", 1)
	if broken == string(text) {
		s.t.Fatalf("nothing to break in %s", path)
	}
	if err := os.WriteFile(path, []byte(broken), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return folder
}

// Not parallel: the demo uses the fixed names of the example's objects.
func TestTheDemoRunsAgainAndItsStatusTellsTheTruth(t *testing.T) {
	s := begin(t, "demo")
	program := filepath.Join(t.TempDir(), "demo")
	build := exec.Command("go", "build", "-trimpath", "-o", program, "./hack/demo")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pod := &corev1.Pod{ObjectMeta: named("hello-world")}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: named("hello-world")}
	pod.Namespace, claim.Namespace = corev1.NamespaceDefault, corev1.NamespaceDefault
	t.Cleanup(func() {
		for _, o := range []client.Object{pod, claim, &storagev1.StorageClass{ObjectMeta: named("hello-world")}, &pav.PavProvisioner{ObjectMeta: named("hello-world")}} {
			s.deleteIfThere(o)
			s.gone(o)
		}
		// Where the cluster is kept, the next round must wait for an Event of its own.
		if err := suite.live.DeleteAllOf(s.ctx, &corev1.Event{}, client.InNamespace(pod.Namespace), client.MatchingFields{"involvedObject.name": pod.Name}); err != nil {
			t.Errorf("deleting the Events of the demo's pod: %v", err)
		}
	})
	const earlier, soonAgain = "deleted what an earlier demo left", 30 * time.Second
	for i := range 2 {
		d := newDemo(program, "..")
		began := time.Now()
		if err := d.Run(); err != nil {
			t.Fatalf("%v:\n%s%s", err, d.out.String(), d.complaint.String())
		}
		if took := time.Since(began); i == 1 && took >= soonAgain {
			t.Errorf("a second demo took %s, want less than %s", took, soonAgain)
		}
		out := d.out.String()
		if !containsAll(out, []string{"Hello, hello-world! I am volume pvc-", "claim Bound after", "pod Ready after"}) || strings.Contains(out, earlier) != (i == 1) {
			t.Errorf("the demo, run after %d others, has printed:\n%s", i, out)
		}
		triesNext(t, out)
	}
	d := newDemo(program, s.brokenHello())
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	defer d.Process.Kill() //nolint:errcheck // it has ended, if all is well
	s.told(pod, "FailedMount", complaint)
	if err := d.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := d.Wait()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(d.out.String(), earlier) || strings.Contains(d.out.String(), "Ready after") {
		t.Errorf("a demo that cannot succeed and is told to end: %v\n%s%s", err, d.out.String(), d.complaint.String())
	}
}
