package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// proposed runs the completion of a command line and returns what a shell would show.
func proposed(t *testing.T, args ...string) []string {
	t.Helper()
	out, said, status := run(t, "", append([]string{"__complete"}, args...)...)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if status != 0 || len(lines) == 0 || !strings.HasPrefix(lines[len(lines)-1], ":") {
		t.Fatalf("completing %q: exit status %d\n%s%s", args, status, out, said)
	}
	var names []string
	for _, line := range lines[:len(lines)-1] {
		name, _, _ := strings.Cut(line, "\t")
		names = append(names, name)
	}
	return names
}

func TestWhatNeedsNoClusterIsCompletedWithoutOne(t *testing.T) {
	config := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncontexts:\n- {name: staging, context: {cluster: c}}\n- {name: live, context: {cluster: c}}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"stat"}, []string{"status"}},
		{[]string{"app", ""}, []string{"delete", "deploy", "list", "plan", "scale", "show"}},
		{[]string{"status", "--output", ""}, []string{"json", "table", "yaml"}},
		{[]string{"app", "list", "-o", ""}, []string{"json", "table", "yaml"}},
		{[]string{"explain", "p"}, []string{"pod", "pvset"}},
		{[]string{"status", "--kubeconfig", config, "--context", ""}, []string{"live", "staging"}},
		{[]string{"app", "show", "--kubeconfig", "/nonexistent", ""}, nil},
	} {
		if got := proposed(t, c.args...); !slices.Equal(slices.Sorted(slices.Values(got)), c.want) {
			t.Errorf("completing %q: got %q, want %q", c.args, got, c.want)
		}
	}
}

func TestThereIsACompletionForEachShell(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if out, said, status := run(t, "", "completion", shell); status != 0 || !strings.Contains(out, "__complete") {
			t.Errorf("tarn completion %s: exit status %d, %d characters\n%s", shell, status, len(out), said)
		}
	}
}

func TestAsAPluginOfKubectlItSaysSoAndCompletes(t *testing.T) {
	call := func(program string, args ...string) string {
		var out bytes.Buffer
		root := NewRoot()
		root.SetArgs(args)
		CalledAs(root, program, args)
		root.SetOut(&out)
		root.SetErr(&out)
		status := ExitStatus(root.ExecuteContext(t.Context()), &out)
		return strings.TrimSpace(strings.Join([]string{out.String(), string(rune('0' + status))}, "\n"))
	}
	for _, c := range []struct{ program, args, want, wantNot string }{
		{"/usr/bin/tarn", "status --help", "  tarn status [flags]", "kubectl tarn status [flags]"},
		{"/usr/bin/kubectl-tarn", "status --help", "kubectl tarn status [flags]", ""},
		{"kubectl-tarn", "status --no", "see kubectl tarn status --help\n\n2", ""},
		{"/usr/bin/kubectl_complete-tarn", "trash l", "list\tList", "Usage"},
	} {
		got := call(c.program, strings.Fields(c.args)...)
		if !strings.Contains(got, c.want) || c.wantNot != "" && strings.Contains(got, c.wantNot) {
			t.Errorf("%s %s: want %q and not %q in\n%s", c.program, c.args, c.want, c.wantNot, got)
		}
	}
}
