package supervisor

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"tarn.dev/tarn/cluster/internal/layout"
)

func TestOnlyProcessesThatCanEndBySIGTERMAreWaitedFor(t *testing.T) {
	for status, want := range map[string]bool{
		"State:\tS (sleeping)\nNSpid:\t90\t1\nSigCgt:\t0000000000000000\n": false, // `sleep` as a container's first process
		"State:\tS (sleeping)\nNSpid:\t90\t1\nSigCgt:\t0000000000004000\n": true,  // catches it
		"State:\tS (sleeping)\nNSpid:\t90\t8\nSigCgt:\t0000000000000000\n": true,  // not the first
		"State:\tZ (zombie)\nNSpid:\t90\t8\nSigCgt:\t0000000000004000\n":   false,
	} {
		if got := readStatus(status).canEnd(); got != want {
			t.Errorf("a process with %q can end: %t", status, got)
		}
	}
}

func TestMainProcessesOfContainersAreTheChildrenOfShims(t *testing.T) {
	const pod = "4:memory:/tarn-cluster-x/kubepods/besteffort/pod11111111-2222-3333-4444-555555555555/c0\n0::/\n"
	proc := t.TempDir()
	for pid, p := range map[int]struct{ name, state, parent, cgroup string }{
		1: {"tarn-cluster", "S", "0", "0::/\n"},
		// The kernel cuts names: this is what it keeps of containerd-shim-runc-v2.
		20: {"containerd-shim", "S", "1", "0::/\n"},
		29: {"pause", "S", "20", pod},
		30: {"sh", "S", "20", pod},
		31: {"sleep", "S", "30", pod},
		32: {"sh", "Z", "20", pod},
		33: {"pause", "S", "30", pod}, // a program of the pod's own
		40: {"kubelet", "S", "1", "0::/\n"},
	} {
		dir := filepath.Join(proc, fmt.Sprint(pid))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"status": "Name:\t" + p.name + "\nState:\t" + p.state + " (as said)\nPPid:\t" + p.parent + "\nNSpid:\t" + fmt.Sprint(pid) + "\nSigCgt:\t0000000000000000\n",
			"cgroup": p.cgroup,
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Mkdir(filepath.Join(proc, "sys"), 0o700); err != nil {
		t.Fatal(err)
	}
	got, err := processes(proc)
	if err != nil {
		t.Fatal(err)
	}
	const uid = "11111111-2222-3333-4444-555555555555"
	if want := []process{
		{pid: 1, canEnd: true}, {pid: 20, canEnd: true}, {pid: 29, pod: uid, main: true, sandbox: true, canEnd: true}, {pid: 30, pod: uid, main: true, canEnd: true}, {pid: 31, pod: uid, canEnd: true},
		{pid: 33, pod: uid, canEnd: true}, {pid: 40, canEnd: true},
	}; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestSandboxesAreEndedAfterTheirContainers(t *testing.T) {
	container, sandbox := process{pod: "meant", main: true}, process{pod: "meant", main: true, sandbox: true}
	other := process{pod: "other", main: true, sandbox: true}
	for i, turn := range turns(func(pod string) bool { return pod == "meant" }) {
		if turn(container) != (i == 0) || turn(sandbox) != (i == 1) || turn(other) || turn(process{pod: "meant"}) {
			t.Errorf("in turn %d are the container: %t, the sandbox: %t, another pod's: %t", i, turn(container), turn(sandbox), turn(other))
		}
	}
}

// supervising gives a supervisor that uses the given API server.
func supervising(t *testing.T, api http.Handler) *Supervisor {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	l, err := layout.New("x", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: '" + server.URL + "'}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	if err := layout.WriteFile(l.Kubeconfig(), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return &Supervisor{config: Config{Layout: l}}
}

func TestCriticalPodsAreEndedInARoundAfterTheOthers(t *testing.T) {
	pod := func(uid string, priority int32) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: corev1.PodSpec{Priority: &priority}}
	}
	s := supervising(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.Query().Get("fieldSelector"); r.URL.Path != "/api/v1/pods" || got != "spec.nodeName=x" {
			t.Errorf("asked for %s of %q", r.URL.Path, got)
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(corev1.PodList{ //nolint:errcheck // the client would tell
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
			Items:    []corev1.Pod{pod("plain", 0), pod("high", 1_999_999_999), pod("critical", 2_000_000_000), pod("node", 2_000_001_000), {ObjectMeta: metav1.ObjectMeta{UID: "none"}}},
		})
	}))
	rounds := s.rounds(10 * time.Second)
	if len(rounds) != 2 {
		t.Fatalf("there are %d rounds, want 2", len(rounds))
	}
	for uid, first := range map[string]bool{"plain": true, "high": true, "critical": false, "node": false, "none": true, "unknown": true, "": true} {
		if rounds[0](uid) != first || rounds[1](uid) == first {
			t.Errorf("pod %q is in the first round: %t, in the second: %t", uid, rounds[0](uid), rounds[1](uid))
		}
	}
}

func TestAllPodsAreEndedAtOnceWhereTheAPIServerDoesNotAnswer(t *testing.T) {
	for name, api := range map[string]http.HandlerFunc{
		"refuses":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"is silent": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		began := time.Now()
		rounds := supervising(t, api).rounds(300 * time.Millisecond)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("where it %s, asking took %s", name, took)
		}
		if len(rounds) != 1 || !rounds[0]("one") || !rounds[0]("") {
			t.Errorf("where it %s, there are %d rounds, want one of all pods", name, len(rounds))
		}
	}
}
