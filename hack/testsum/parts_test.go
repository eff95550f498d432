package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// shell runs a script as suite "addon", with the parts of hack/addon.sh that it sources. It returns
// the report.
func shell(t *testing.T, script string) (shown, report string, ran, reported error) {
	t.Helper()
	hack, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	for _, name := range []string{"parts.sh", "addon-uninstall.sh"} {
		text, err := os.ReadFile(filepath.Join(hack, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out, sums strings.Builder
	ran = run([]string{"run", "addon", "--", "bash", "-euo", "pipefail", "-c", ". ./parts.sh\n" + script}, &out)
	reported = run([]string{"report", "addon"}, &sums)
	return out.String(), sums.String(), ran, reported
}

func TestPartsOfAScriptCountAsTestsDo(t *testing.T) {
	for _, c := range []struct{ name, parts, want string }{
		{"all is well", "one two", "2 passed, 0 failed, 0 skipped\n"},
		{"one fails", "one wrong two", "1 passed, 1 failed, 1 skipped\n"},
		{"the last fails", "one wrong", "1 passed, 1 failed, 0 skipped\n"},
		{"one ends the shell", "gone one", "0 passed, 1 failed, 1 skipped\n"},
		{"one is not there", "missing", "0 passed, 1 failed, 0 skipped\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			shown, report, ran, reported := shell(t, `
one() { echo "--- FAIL: one (0.00s)"; printf 'no newline'; }
two() { one; }
wrong() { echo "why it fails"; false; echo "and goes on"; }
gone() { exit 3; }
parts hack/addon `+c.parts)
			good := strings.Contains(c.want, " 0 failed")
			if (ran == nil) != good || (reported == nil) != good || !strings.HasSuffix(report, c.want) {
				t.Errorf("the suite says %v, its report %v, want it to end with %q:\n%s", ran, reported, c.want, report)
			}
			if strings.Contains(shown, "and goes on") || strings.Contains(c.parts, "wrong") != strings.Contains(shown, "why it fails") {
				t.Errorf("shown is:\n%s", shown)
			}
		})
	}
}

// tools stand in for the tools that nothing_left calls. The named one fails without output.
const tools = `
KUBECONFIG=$PWD/kubeconfig TARN_HOST_PATH_ROOT=$PWD process=$$
kubectl() {
	case $* in
	*crd,namespace,*) [ "$broken" != objects ] && echo namespace/default ;;
	*storageclass*) [ "$broken" != classes ] && echo storageclass.storage.k8s.io/theirs ;;
	*) [ "$broken" != volumes ] && echo "PersistentVolume theirs [] map[] other" ;;
	esac
}
on_cluster() {
	[ "$broken" != status ] || return 1
	[ "$broken" != kubelet ] || process=
	printf '{\n"name": "kubelet",\n"pid": %s\n}\n' "$process"
}
ls() { [ "$broken" != folder ]; }
cat() { [ "$broken" != mounts ] && echo "1 1 0:1 / / rw"; }
. ./addon-uninstall.sh
parts hack/addon nothing_left`

func TestWhoeverCannotTellHasNotSaidThatNothingIsLeft(t *testing.T) {
	for broken, want := range map[string]string{
		"nothing": "", "objects": "objects cannot be listed", "classes": "classes cannot be listed", "volumes": "volumes cannot be listed",
		"status": "no process of the kubelet", "kubelet": "no process of the kubelet", "mounts": "the mounts of the node cannot be read", "folder": "the folder of the node cannot be read",
	} {
		t.Run(broken, func(t *testing.T) {
			shown, _, _, reported := shell(t, "broken="+broken+tools)
			if (reported == nil) != (want == "") || !strings.Contains(shown, want) {
				t.Errorf("the report says %v, want a failure with %q:\n%s", reported, want, shown)
			}
		})
	}
}
