package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tarn.dev/tarn/cluster/internal/layout"
)

// patience is how long a test waits for something that usually takes seconds. The machine may be
// busy.
const patience = 90 * time.Second

// bin is the directory with the programs under test.
func bin(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("TARN_CLUSTER_BIN")
	if dir == "" {
		dir = "../../bin"
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "tarn-cluster")); err != nil {
		t.Fatalf("tarn-cluster is not built (%v): run `make -C cluster build` first", err)
	}
	if os.Geteuid() != 0 {
		t.Fatal("clusters need root: run the tests with sudo")
	}
	return dir
}

// cluster is a cluster under test.
type cluster struct {
	t       *testing.T
	bin     string
	name    string
	dataDir string
}

// newCluster names a cluster after the test and removes it when the test ends.
func newCluster(t *testing.T, name string) *cluster {
	t.Helper()
	c := &cluster{t: t, bin: bin(t), name: fmt.Sprintf("%s-%d", name, os.Getpid())}
	c.dataDir = filepath.Join("/var/lib/tarn-cluster", c.name)
	t.Cleanup(func() {
		if t.Failed() {
			for _, log := range []string{"supervisor", "kubelet"} {
				text, _ := c.try("logs", log)
				t.Logf("end of the log of %s:\n%s", log, tail(text, 15))
			}
		}
		c.run("down")
	})
	return c
}

// try runs tarn-cluster for this cluster and returns both its outputs.
func (c *cluster) try(args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.bin, "tarn-cluster"), append([]string{"--name", c.name}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *cluster) run(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatalf("tarn-cluster %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// kubectl runs kubectl as the administrator, or with another kubeconfig of the cluster.
func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.tryKubectl("kubeconfig", "", args...)
	if err != nil {
		c.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (c *cluster) tryKubectl(config, input string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.bin, "kubectl"), append([]string{"--kubeconfig", filepath.Join(c.dataDir, config)}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (c *cluster) apply(manifest string) {
	c.t.Helper()
	if out, err := c.tryKubectl("kubeconfig", manifest, "apply", "-f", "-"); err != nil {
		c.t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// status is the output of `status --output json`.
type status struct {
	Stage      string
	PID        int
	Components []component
	Nodes      []struct {
		Name       string
		Components []component
	}
}

type component struct {
	Name, State, LastExit string
	PID, Restarts         int
}

func (c *cluster) status() status {
	c.t.Helper()
	cmd := exec.Command(filepath.Join(c.bin, "tarn-cluster"), "--name", c.name, "status", "--output", "json")
	out, _ := cmd.Output() // its exit status says what the stage does
	var s status
	if err := json.Unmarshal(out, &s); err != nil {
		c.t.Fatalf("status: %v in %s", err, out)
	}
	return s
}

// component is what status reports of a component.
func (c *cluster) component(name string) component {
	c.t.Helper()
	for _, one := range c.status().Components {
		if one.Name == name {
			return one
		}
	}
	c.t.Fatalf("status knows no component %s", name)
	return component{}
}

func (c *cluster) port(use string) int {
	c.t.Helper()
	raw, err := os.ReadFile(filepath.Join(c.dataDir, "state.json"))
	if err != nil {
		c.t.Fatal(err)
	}
	var s struct{ Ports map[string]int }
	if err := json.Unmarshal(raw, &s); err != nil {
		c.t.Fatal(err)
	}
	return s.Ports[use]
}

func (c *cluster) eventually(what string, is func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// crash kills the supervisor with SIGKILL and waits until it has ended.
func (c *cluster) crash() {
	c.t.Helper()
	pid := c.status().PID
	if err := exec.Command("kill", "-9", strconv.Itoa(pid)).Run(); err != nil {
		c.t.Fatal(err)
	}
	c.eventually("the killed supervisor is gone", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/stat", pid))
		return os.IsNotExist(err)
	})
}

// traces searches for everything a cluster may leave on a machine, by kind. It matches the whole
// name only, because a parallel run may have clusters whose names begin with it.
func (c *cluster) traces() map[string]string {
	c.t.Helper()
	l, err := layout.New(c.name, "")
	if err != nil {
		c.t.Fatal(err)
	}
	found := map[string]string{}
	for what, command := range map[string]string{
		"cgroups":            "find /sys/fs/cgroup -name 'tarn-cluster-" + c.name + "' -o -name 'tarn-nodes-" + c.name + "'",
		"loop devices":       "grep -lsw '" + c.name + "' /sys/block/loop*/loop/backing_file || true",
		"network interfaces": "ls /sys/class/net | grep -x '" + l.LinkName() + "' || true",
		"mounts":             "grep -sw '" + c.name + "' /proc/self/mountinfo || true",
		"folders":            "ls -d '" + c.dataDir + "' '/run/tarn-cluster/" + c.name + "' 2>/dev/null || true",
		// A container names its cluster only in its cgroup and mounts, so the search covers those
		// too.
		"processes": "grep -lsw -e '" + c.name + "' /proc/[0-9]*/cmdline /proc/[0-9]*/cgroup /proc/[0-9]*/mountinfo | grep -v \"/proc/$$/\" || true",
	} {
		out, err := exec.Command("sh", "-c", command).Output()
		if err != nil {
			c.t.Fatalf("looking for %s: %v", what, err)
		}
		if what == "processes" {
			out = living(out)
		}
		if text := strings.TrimSpace(string(out)); text != "" {
			found[what] = text
		}
	}
	return found
}

// living drops processes that have ended since the list was made, above all those that made it.
func living(files []byte) []byte {
	var left []string
	for file := range strings.FieldsSeq(string(files)) {
		if _, err := os.Stat(file); err == nil {
			left = append(left, file)
		}
	}
	return []byte(strings.Join(left, "\n"))
}

// isSeen fails where the search finds nothing of a running cluster. Such a search would always
// succeed.
func (c *cluster) isSeen(kinds ...string) {
	c.t.Helper()
	found := c.traces()
	for _, kind := range kinds {
		if found[kind] == "" {
			c.t.Errorf("the cluster runs, and the search for leftovers sees no %s", kind)
		}
	}
}

// leavesNothing removes the cluster and fails if it left anything.
func (c *cluster) leavesNothing() {
	c.t.Helper()
	c.run("down")
	for what, found := range c.traces() {
		c.t.Errorf("%s are left:\n%s", what, found)
	}
}

// marks gives the words by which mounts and packet filters reveal a running cluster: its name, its
// pods and the addresses of its services. Each word occurs where the cluster has such things, and
// nowhere else.
func (c *cluster) marks() []string {
	c.t.Helper()
	pods := strings.Fields(c.kubectl("get", "pods", "--all-namespaces", "--field-selector=status.phase=Running", "-o", "jsonpath={.items[*].metadata.uid}"))
	addresses := strings.Fields(c.kubectl("get", "services", "--all-namespaces", "-o", "jsonpath={.items[*].spec.clusterIP}"))
	marks := slices.Concat([]string{c.name}, pods, addresses)
	proxy := c.component("kube-proxy").PID
	for _, mark := range marks {
		if len(c.seenBy(proxy, mark)) == 0 {
			c.t.Errorf("the cluster runs, and neither its mounts nor its packet filter say %s", mark)
		}
	}
	return marks
}

// untouched fails where the host's mounts or packet filter mention the cluster. This process sees
// the host's mounts.
func (c *cluster) untouched(when string, marks []string) {
	c.t.Helper()
	if seen := c.seenBy(os.Getpid(), marks...); len(seen) > 0 {
		c.t.Errorf("%s the host's mounts or packet filter tell of the cluster:\n%s", when, strings.Join(seen, "\n"))
	}
}

// seenBy gives the lines of a process's mounts and packet filter that contain one of the words.
// Changes by other clusters and tests do not match.
func (c *cluster) seenBy(pid int, words ...string) []string {
	c.t.Helper()
	enter := fmt.Sprintf("nsenter --net=/proc/%d/ns/net ", pid)
	out, err := exec.Command("sh", "-c", fmt.Sprintf("cat /proc/%d/mountinfo && { %snft list ruleset || %siptables-save; }", pid, enter, enter)).Output()
	if err != nil {
		c.t.Fatalf("looking at what process %d sees: %v", pid, err)
	}
	return slices.DeleteFunc(strings.Split(string(out), "\n"), func(line string) bool {
		return !slices.ContainsFunc(words, func(word string) bool {
			return regexp.MustCompile(`\b` + regexp.QuoteMeta(word) + `\b`).MatchString(line)
		})
	})
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// standIn builds the program that stands in for tarn.
var standIn = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "tarn-stand-in-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "tarn")
	cmd := exec.Command("go", "build", "-o", path, "./testdata/tarn")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the stand-in for tarn: %w: %s", err, out)
	}
	return path, nil
})

// shareMounts restarts the tests where mounts are shared, unless they are shared already. systemd
// shares them on most machines. With private mounts, no mount of a cluster could ever reach the
// host.
func shareMounts() error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || regexp.MustCompile(`(?m)^\S+ \S+ \S+ \S+ / .* shared:`).Match(text) || os.Geteuid() != 0 {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return err
	}
	return syscall.Exec(unshare, append([]string{"unshare", "--mount", "--propagation=shared", self}, os.Args[1:]...), os.Environ())
}

func TestMain(m *testing.M) {
	if err := shareMounts(); err != nil {
		fmt.Fprintln(os.Stderr, "sharing mounts:", err)
		os.Exit(1)
	}
	code := m.Run()
	if path, err := standIn(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

func sorted(words string) []string {
	fields := strings.Fields(words)
	slices.Sort(fields)
	return fields
}
