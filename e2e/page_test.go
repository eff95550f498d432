//go:build e2e

package e2e

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
)

// shown matches the blocks of a page: the commands, and their output.
var shown = regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```")

// hasLines reports whether an output contains each line of a page, where ... matches anything.
func hasLines(out, page string) bool {
	words := func(line string) string { return strings.Join(strings.Fields(line), " ") }
	var printed []string
	for line := range strings.Lines(out) {
		printed = append(printed, words(line))
	}
	for line := range strings.Lines(page) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		pattern := "(?m)^" + strings.ReplaceAll(regexp.QuoteMeta(words(line)), `\.\.\.`, ".*") + "$"
		if !regexp.MustCompile(pattern).MatchString(strings.Join(printed, "\n")) {
			return false
		}
	}
	return true
}

// followsThePageForAStart runs the commands of docs/getting-started.md, from the first shell block
// on. The expected output may take a moment, so each block is repeated until it appears.
func followsThePageForAStart(t *testing.T) {
	s := &scenario{t: t, ctx: t.Context()}
	text, err := os.ReadFile("../docs/getting-started.md")
	blocks := shown.FindAllStringSubmatch(string(text), -1)
	if err != nil || len(blocks) < 10 {
		t.Fatalf("the page has %d blocks: %v", len(blocks), err)
	}
	t.Cleanup(func() {
		pod, claim := &corev1.Pod{ObjectMeta: named("notes")}, &corev1.PersistentVolumeClaim{ObjectMeta: named("notes")}
		pod.Namespace, claim.Namespace = corev1.NamespaceDefault, corev1.NamespaceDefault
		for _, o := range []client.Object{pod, claim, &storagev1.StorageClass{ObjectMeta: named("notes")}, &pav.PavProvisioner{ObjectMeta: named("notes")}} {
			s.ctx = context.Background()
			s.deleteIfThere(o)
		}
	})
	setup := strings.NewReplacer("tarn-cluster kubeconfig", "tarn-cluster kubeconfig --name "+suite.machine.name, "$(mktemp -d)", t.TempDir()).Replace(blocks[0][2])
	for i, block := range blocks[1:] {
		want := ""
		if i+2 < len(blocks) && blocks[i+2][1] == "text" {
			want = blocks[i+2][2]
		}
		if block[1] == "sh" {
			s.types(setup+block[2], want)
		}
	}
}

// types runs commands in a shell in a checkout until they print the output shown on the page.
func (s *scenario) types(commands, want string) {
	s.t.Helper()
	over, again := time.NewTimer(s.limit()), time.NewTicker(time.Second)
	defer over.Stop()
	defer again.Stop()
	for {
		shell := exec.CommandContext(s.ctx, "bash", "-euc", commands)
		shell.Dir = ".."
		out, err := shell.CombinedOutput()
		if err != nil {
			s.t.Fatalf("%s\n%v: %s", commands, err, out)
		}
		if hasLines(string(out), want) {
			return
		}
		select {
		case <-again.C:
		case <-over.C:
			s.t.Fatalf("%s\nthe page shows:\n%s\nit printed:\n%s", commands, want, out)
		}
	}
}
